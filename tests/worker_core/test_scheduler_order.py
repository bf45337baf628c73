"""Scheduling: sharing, order and room, each known behaviour or fault as a small input."""

from __future__ import annotations

import pytest

from tests.worker_core.cases import everything_is_back, names, words
from tests.worker_core.support import Engine, chain, new_scheduler, reference, request
from trieway.worker.core.scheduler import Scheduler

# Sharing


def test_a_second_request_waits_for_the_prefill_that_computes_its_prefix() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", [*words(0, 60), 9], 2))
    engine.add(request("b", [*words(0, 60), 10], 2))
    engine.add(request("c", words(5, 10), 2))
    assert names(engine) == ["a"]
    assert names(engine) == ["a", "c"], "b waits, c does not"
    engine.run()
    assert engine.cached("b") == 60
    engine.verify()


def test_a_short_common_prefix_is_not_waited_for() -> None:
    engine = Engine(new_scheduler(share_tokens_min=8))
    engine.add(request("a", [*words(0, 7), 9, 9, 9], 2))
    engine.add(request("b", [*words(0, 7), 10, 10, 10], 2))
    assert names(engine) == ["a", "b"]
    engine.run()
    engine.verify()
    everything_is_back(engine.scheduler)


@pytest.mark.parametrize("changes", [{"salt": "other"}, {"reuse_max": 0}])
def test_what_could_not_be_shared_is_not_waited_for(changes: dict[str, object]) -> None:
    engine = Engine(new_scheduler(batch_tokens_max=90))
    engine.add(request("a", [*words(0, 40), 9], 2))
    engine.add(request("b", [*words(0, 40), 10], 2, **changes))  # type: ignore[arg-type]
    assert names(engine) == ["a", "b"]


def test_an_unpublished_prefill_is_not_waited_for() -> None:
    engine = Engine(new_scheduler(batch_tokens_max=90))
    engine.add(request("a", [*words(0, 40), 9], 2, publish=False))
    engine.add(request("b", [*words(0, 40), 10], 2))
    assert names(engine) == ["a", "b"]


def test_the_waiting_sibling_goes_on_alone_if_the_first_is_cancelled() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", [*words(0, 60), 9], 2))
    engine.add(request("b", [*words(0, 60), 10], 2))
    assert names(engine) == ["a"]
    engine.scheduler.cancel("a", 0.0)
    assert names(engine) == ["b"]
    engine.run()
    assert engine.cached("b") == 32, "what the first had computed is not lost"


def test_two_equal_prompts_in_one_batch() -> None:
    """C10: too short to wait for each other, both are computed; the second uses the first one's pages afterwards."""
    engine = Engine(new_scheduler(share_tokens_min=99))
    engine.add(request("a", words(0, 10), 3))
    engine.add(request("b", words(0, 10), 6))
    assert names(engine) == ["a", "b"]
    stats = engine.scheduler.stats()
    assert (stats.kv_cached, stats.kv_running) == (10, 0)
    engine.run()
    engine.verify()
    everything_is_back(engine.scheduler)
    assert engine.scheduler.stats().kv_cached == 15


def test_n_samples_compute_their_prompt_once() -> None:
    engine = Engine(new_scheduler(batch_tokens_max=64))
    for number in range(4):
        engine.add(request(f"n{number}", words(0, 40), 1))
    engine.run()
    assert engine.computed == 43
    assert [engine.cached(f"n{number}") for number in range(4)] == [0, 39, 39, 39]


# Order


def waiting_order(scheduler: Scheduler, engine: Engine) -> list[str]:
    """Who is admitted, one at a time."""
    order = []
    while scheduler.has_work():
        order += [work.id for work in engine.step().work if work.id not in order]
    return order


def test_the_longest_prefix_goes_first() -> None:
    engine = Engine(new_scheduler(running_max=1, wait_max_s=99.0))
    engine.add(request("seed", words(0, 40), 1))
    engine.run()
    for name, tokens in (("cold", words(9, 20)), ("half", [*words(0, 20), 8, 8]), ("whole", [*words(0, 40), 8])):
        engine.add(request(name, tokens, 1))
    assert waiting_order(engine.scheduler, engine) == ["whole", "half", "cold"]


def test_equal_prefixes_go_by_arrival() -> None:
    for policy in ("lpm", "fcfs"):
        engine = Engine(new_scheduler(running_max=1, policy=policy))
        for number in range(5):
            engine.add(request(f"r{number}", words(number, 10), 1))
        assert waiting_order(engine.scheduler, engine) == [f"r{number}" for number in range(5)]


def test_fcfs_ignores_hits() -> None:
    engine = Engine(new_scheduler(running_max=1, policy="fcfs"))
    engine.add(request("seed", words(0, 40), 1))
    engine.run()
    engine.add(request("cold", words(9, 20), 1))
    engine.add(request("hot", words(0, 40), 1))
    assert waiting_order(engine.scheduler, engine) == ["cold", "hot"]


def test_random_is_seeded_and_shuffles() -> None:
    orders = []
    for seed in (1, 1, 2, 3):
        engine = Engine(new_scheduler(seed, running_max=1, policy="random", wait_max_s=99.0))
        for number in range(8):
            engine.add(request(f"r{number}", words(number, 10), 1))
        orders.append(waiting_order(engine.scheduler, engine))
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) > 1


@pytest.mark.parametrize(("count", "first"), [(3, "hot"), (4, "cold")])
def test_with_too_many_waiting_lpm_uses_arrival_order(count: int, first: str) -> None:
    """B67: at the bound the ranking stops."""
    engine = Engine(new_scheduler(running_max=1, lpm_waiting_max=3, wait_max_s=99.0))
    engine.add(request("seed", words(0, 40), 1))
    engine.run()
    engine.add(request("cold", words(9, 20), 1))
    for number in range(count - 2):
        engine.add(request(f"other {number}", words(20 + number, 20), 1))
    engine.add(request("hot", words(0, 40), 1))
    assert waiting_order(engine.scheduler, engine)[0] == first


def test_a_lower_priority_number_goes_first() -> None:
    engine = Engine(new_scheduler(running_max=1))
    for name, priority in (("late", 5), ("normal", 0), ("soon", -3)):
        engine.add(request(name, words(priority + 10, 10), 1, priority=priority))
    assert waiting_order(engine.scheduler, engine) == ["soon", "normal", "late"]


def test_a_cold_request_does_not_starve_among_hot_ones() -> None:
    """C47: one cold request and endless hot ones; it is admitted when it has waited for the bound."""
    engine = Engine(new_scheduler(running_max=1, wait_max_s=2.0))
    engine.add(request("seed", words(0, 40), 1))
    engine.run()
    engine.add(request("cold", words(9, 20), 1), 10.0)
    now = 10.0
    for number in range(100):
        engine.add(request(f"hot {number}", [*words(0, 40), 8 + number], 1, arrived=now), now)
        if "cold" in names(engine, now):
            break
        now += 0.1
    assert 12.0 <= now <= 12.2


def test_a_hit_is_looked_up_again_after_the_cache_changed() -> None:
    """C51: matched while waiting, evicted since, scheduled now."""
    engine = Engine(new_scheduler(kv_tokens=64, running_max=1, context_max=64))
    engine.add(request("seed", words(0, 30), 1))
    engine.run()
    engine.add(request("big", words(3, 60), 1, priority=-1))
    engine.add(request("hot", words(0, 30), 1))
    engine.run()
    assert engine.cached("hot") == 4, "30 when it came; 26 of them were evicted for the 60 of the other"
    engine.verify()


# Room


def test_small_ones_pass_a_head_that_does_not_fit() -> None:
    """C49: the head needs nine tenths of the pool, five small ones fit beside what runs."""
    engine = Engine(new_scheduler(kv_tokens=100, context_max=100, wait_max_s=5.0, policy="fcfs"))
    engine.add(request("running", words(0, 20), 60))
    engine.step()
    engine.add(request("head", words(1, 90), 1), 0.1)
    for number in range(5):
        engine.add(request(f"small {number}", words(10 + number, 5), 1), 0.2)
    assert [name for name in names(engine, 0.3) if name != "running"] == [f"small {number}" for number in range(5)]


def test_nobody_passes_a_head_that_is_overdue() -> None:
    engine = Engine(new_scheduler(kv_tokens=100, context_max=100, wait_max_s=1.0, policy="fcfs"))
    engine.add(request("running", words(0, 20), 10, arrived=0.01), 0.01)
    engine.step(0.01)
    engine.add(request("head", words(1, 90), 1, arrived=0.1), 0.1)
    now, admitted = 1.2, []
    for number in range(40):
        engine.add(request(f"small {number}", words(10 + number, 3), 1, arrived=now), now)
        admitted += [name for name in names(engine, now) if name not in ("running", *admitted)]
        now += 0.01
        if "head" in admitted:
            break
    assert admitted == ["head"]


def test_a_request_that_does_not_fit_has_changed_nothing() -> None:
    """B63, B66, C3: refused after its match, it holds no lock, and what it hit is no more recent."""
    engine = Engine(new_scheduler(kv_tokens=100, context_max=100))
    engine.add(request("seed", words(0, 20), 1))
    engine.run()
    engine.add(request("running", words(1, 60), 30))
    for _ in range(3):
        engine.step()
    marks = [node.marks[:] for node in engine.scheduler.kv.cache.walk()]
    before = engine.scheduler.stats()
    engine.add(request("big", [*words(0, 20), *words(2, 60)], 1))
    plan = engine.plan()
    assert [work.id for work in plan.work] == ["running"]
    after = engine.scheduler.stats()
    assert (after.kv_locked, after.waiting) == (before.kv_locked, 1)
    assert [node.marks[:] for node in engine.scheduler.kv.cache.walk()] == marks
    engine.commit(plan, engine.compute(plan))
    engine.verify()


def test_an_own_hit_is_no_room_to_evict() -> None:
    """2.4: 40 of 64 tokens are cached and matched; the other 30 that it needs do not come out of them."""
    engine = Engine(new_scheduler(kv_tokens=64, context_max=64))
    engine.add(request("seed", words(0, 40), 1))
    engine.run()
    engine.add(request("other", words(1, 4), 20))
    engine.step()
    engine.add(request("big", [*words(0, 40), *words(2, 19)], 1))
    assert names(engine) == ["other"]
    engine.run()
    engine.verify()


def test_a_full_cache_makes_room_for_those_that_run() -> None:
    engine = Engine(new_scheduler(kv_tokens=64, context_max=64))
    for number in range(12):
        engine.add(request(f"r{number}", words(number, 30), 5))
        engine.run()
    engine.verify()
    everything_is_back(engine.scheduler)
    assert engine.scheduler.stats().evicted_tokens_total > 0


@pytest.mark.parametrize("page", [1, 16])
def test_out_of_pages_the_newest_is_preempted_and_replays(page: int) -> None:
    """B64, C8, C9: whole pages come back, prompt and output are replayed, the output is that of a lone run."""
    engine = Engine(new_scheduler(page_size=page, kv_tokens=96, context_max=96, reserve_tokens=0))
    engine.add(request("a", words(0, 17), 60))
    engine.add(request("b", words(1, 17), 60))
    engine.run()
    engine.verify()
    assert engine.scheduler.stats().preempted_total >= 1
    for number, name in enumerate(("a", "b")):
        assert engine.output(name) == reference(chain(), words(number, 17), 60)
        assert engine.cached(name) == 0, "a replay is no hit"
    assert engine.scheduler.stats().cached_tokens_total == 0
    everything_is_back(engine.scheduler)


def test_preemption_takes_lower_priority_before_newer() -> None:
    engine = Engine(new_scheduler(kv_tokens=60, context_max=60, reserve_tokens=0, wait_max_s=99.0))
    engine.add(request("low", words(0, 17), 40, priority=5))
    engine.step()
    engine.add(request("old", words(1, 17), 40, priority=0))
    engine.add(request("new", words(2, 17), 40, priority=0))
    while not engine.scheduler.stats().preempted_total:
        plan = engine.step()
    assert {work.id for work in plan.work} == {"old", "new"}
    engine.run()
    engine.verify()


def test_an_urgent_request_preempts_on_the_pass_that_has_no_room() -> None:
    """C48: the pool is full of less urgent ones; no pass is lost."""
    engine = Engine(new_scheduler(kv_tokens=64, context_max=64, reserve_tokens=0))
    engine.add(request("one", words(0, 28), 4, priority=2))
    engine.add(request("two", words(1, 28), 4, priority=1))
    engine.step()
    engine.step()
    engine.add(request("urgent", words(2, 20), 2, priority=-1))
    plan = engine.plan()
    assert {work.id for work in plan.work} == {"urgent", "two"}, "exactly enough victims, the least urgent first"
    assert engine.scheduler.stats().preempted_total == 1
    engine.commit(plan, engine.compute(plan))
    engine.run()
    engine.verify()
    everything_is_back(engine.scheduler)


@pytest.mark.parametrize(("priority", "need"), [(0, 20), (-1, 62)])
def test_no_one_is_preempted_in_vain(priority: int, need: int) -> None:
    """B62, B63: not for an equal, and not if even all victims would not make enough room."""
    engine = Engine(new_scheduler(kv_tokens=64, context_max=64, reserve_tokens=0))
    engine.add(request("lock", words(0, 28), 4, priority=-1))
    engine.add(request("low", words(1, 28), 4, priority=0))
    engine.step()
    engine.step()
    engine.add(request("urgent", words(2, need), 1, priority=priority))
    plan = engine.plan()
    assert [work.id for work in plan.work] == ["lock", "low"]
    assert engine.scheduler.stats().preempted_total == 0
    engine.commit(plan, engine.compute(plan))
    engine.run()
    engine.verify()
