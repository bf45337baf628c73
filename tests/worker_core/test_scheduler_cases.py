"""Known behaviours and faults of schedulers, each as a small input."""

from __future__ import annotations

import pytest

from tests.worker_core.support import Engine, chain, naive_blocks, new_scheduler, reference, request
from trieway.meta_tree.ids import Reject
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import SchedulerConfig


def words(start: int, count: int) -> list[int]:
    return [8 + (start * 37 + at * 7) % 248 for at in range(count)]


def names(engine: Engine, now: float = 0.0) -> list[str]:
    return [work.id for work in engine.step(now).work]


def everything_is_back(scheduler: Scheduler) -> None:
    """B68: nothing waits, runs, or holds a lock; what is not free can be had."""
    scheduler.check()
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.kv_running, stats.kv_locked) == (0, 0, 0, 0)
    assert stats.kv_free + stats.kv_cached == stats.kv_total
    assert scheduler.kv.available == scheduler.kv.pool.pages
    assert not scheduler.has_work()


# What comes in


@pytest.mark.parametrize(
    "wrong",
    [
        {"page_size": 0}, {"kv_tokens": 3, "page_size": 4}, {"running_max": 0}, {"waiting_max": 0},
        {"context_max": 1}, {"batch_tokens_max": 8}, {"policy": "longest"}, {"policy": "priority"},
        {"wait_max_s": -1.0}, {"share_tokens_min": 0}, {"reserve_tokens": -1}, {"lpm_waiting_max": -1},
    ],
)  # fmt: skip
def test_a_config_that_could_not_serve_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        new_scheduler(**wrong)


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"lofo.*lpm, fcfs, random"):
        SchedulerConfig(kv_tokens=100, context_max=10, policy="lofo")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "new", "reason"),
    [
        ([], 1, "empty"), ([8, -1], 1, "bad_token"), ([8, 256], 1, "bad_token"),
        (words(0, 200), 1, "too_long"), (words(0, 201), 0, "too_long"),
    ],
)  # fmt: skip
def test_requests_that_can_never_run_are_rejected(tokens: list[int], new: int, reason: str) -> None:
    scheduler = new_scheduler()
    assert scheduler.add(request("a", tokens, new), 0.0) == Reject(reason=reason)
    assert scheduler.stats().rejected_total == 1
    everything_is_back(scheduler)


def test_a_prompt_of_the_whole_context_can_be_hinted() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", words(0, 200)), as_hint=True)
    engine.run()
    assert engine.ended == {"a": "length"}


def test_a_prompt_beyond_the_pool_is_too_long() -> None:
    scheduler = new_scheduler(kv_tokens=64, context_max=1000)
    assert scheduler.add(request("a", words(0, 65), 1), 0.0) == Reject(reason="too_long")
    assert scheduler.add(request("a", words(0, 64), 1), 0.0) is None


def test_a_full_queue_says_when_to_come_back() -> None:
    scheduler = new_scheduler(waiting_max=2)
    assert scheduler.add(request("a", words(0, 9)), 0.0) is None
    assert scheduler.add(request("b", words(1, 9)), 0.0) is None
    reject = scheduler.add(request("c", words(2, 9)), 0.0)
    assert reject is not None
    assert reject.reason == "queue_full"
    assert reject.retry_after_s is not None
    assert 1.0 <= reject.retry_after_s <= 30.0


def test_an_id_that_is_used_twice_is_our_bug() -> None:
    scheduler = new_scheduler()
    scheduler.add(request("a", words(0, 9)), 0.0)
    with pytest.raises(AssertionError):
        scheduler.add(request("a", words(0, 9)), 0.0)


# One request's life


@pytest.mark.parametrize("page", [1, 4, 16])
def test_output_equals_the_reference_and_everything_comes_back(page: int) -> None:
    engine = Engine(new_scheduler(page_size=page))
    engine.add(request("a", words(0, 50), 20))
    engine.run()
    engine.verify()
    assert engine.output("a") == reference(chain(), words(0, 50), 20)
    assert engine.ended == {"a": "length"}
    everything_is_back(engine.scheduler)


def test_a_stop_token_ends_it_and_is_reported() -> None:
    engine = Engine(new_scheduler())
    expected = reference(chain(), words(0, 10), 20)
    stop = expected[5]
    engine.add(request("a", words(0, 10), 20, stop_token_ids=frozenset({stop})))
    engine.run()
    assert engine.output("a") == expected[: expected.index(stop) + 1]
    assert engine.ended == {"a": "stop"}


def test_output_is_clipped_to_the_context() -> None:
    engine = Engine(new_scheduler(context_max=60))
    engine.add(request("a", words(0, 50), 999))
    engine.run()
    assert len(engine.output("a")) == 10
    assert engine.ended == {"a": "length"}


def test_a_lone_request_may_fill_the_pool_and_one_more() -> None:
    engine = Engine(new_scheduler(kv_tokens=64, page_size=4, context_max=1000, batch_tokens_max=40))
    engine.add(request("a", words(0, 50), 999))
    engine.run()
    assert len(engine.output("a")) == 15
    assert engine.scheduler.stats().preempted_total == 0
    engine.verify()


def test_chunks_end_on_pages_and_fill_the_batch() -> None:
    engine = Engine(new_scheduler(page_size=4, batch_tokens_max=15))
    engine.add(request("a", words(0, 50), 1))
    sizes = []
    while engine.scheduler.has_work():
        sizes.append([len(work.tokens) for work in engine.step().work])
    assert sizes == [[12], [12], [12], [14]]
    outcomes = engine.outcomes["a"]
    assert [outcome.token is None for outcome in outcomes] == [True, True, True, False]


def test_decodes_come_first_and_are_never_crowded_out() -> None:
    engine = Engine(new_scheduler(batch_tokens_max=16, kv_tokens=512))
    engine.add(request("a", words(0, 8), 30))
    engine.step()
    engine.add(request("b", words(1, 100), 2))
    for _ in range(5):
        plan = engine.step()
        assert [work.id for work in plan.work] == ["a", "b"]
        assert (plan.decode_tokens, plan.prefill_tokens) == (1, 15)


def test_first_token_tells_cached_prompt_queue_and_prefill() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", words(0, 40), 2, arrived=1.0), 1.0)
    engine.run(now=1.5, took=0.25)
    (first,) = [outcome.first for outcome in engine.outcomes["a"] if outcome.first]
    assert (first.cached_tokens, first.prompt_tokens) == (0, 40)
    assert (first.queue_ms, first.prefill_ms) == (500.0, 500.0)
    engine.add(request("b", [*words(0, 40), 9], 2, arrived=9.0), 9.0)
    engine.run(now=9.0)
    assert engine.cached("b") == 40


@pytest.mark.parametrize(("reuse_max", "hit"), [(None, 39), (100, 39), (17, 17), (0, 0)])
def test_reuse_is_capped_by_the_request_and_by_the_last_token(reuse_max: int | None, hit: int) -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", words(0, 40)))
    engine.run()
    engine.add(request("b", words(0, 40), reuse_max=reuse_max))
    engine.run()
    assert engine.cached("b") == hit
    engine.verify()
    everything_is_back(engine.scheduler)


def test_the_next_turn_hits_prompt_and_answer_but_for_the_last_token() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", words(0, 30), 10))
    engine.run()
    engine.add(request("b", [*words(0, 30), *engine.output("a"), 9, 10], 2))
    engine.run()
    assert engine.cached("b") == 39
    engine.verify()


def test_a_hint_makes_its_prefix_resident_before_the_forks_arrive() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("hint", words(0, 40)), as_hint=True)
    engine.run()
    assert engine.output("hint") == []
    assert engine.cached("hint") == 0
    for fork in range(3):
        engine.add(request(f"fork {fork}", [*words(0, 40), 8 + fork, 9]))
    engine.run()
    assert [engine.cached(f"fork {fork}") for fork in range(3)] == [40, 40, 40]


def test_an_unpublished_request_leaves_nothing() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", words(0, 40), 8, publish=False))
    engine.run()
    stats = engine.scheduler.stats()
    assert stats.kv_free == stats.kv_total
    assert engine.scheduler.drain_events() == []


def test_without_a_prefix_cache_nothing_is_reused_or_said() -> None:
    engine = Engine(new_scheduler(prefix_cache=False))
    for name in ("a", "b"):
        engine.add(request(name, words(0, 40), 8))
        engine.run()
        assert engine.cached(name) == 0
        stats = engine.scheduler.stats()
        assert stats.kv_free == stats.kv_total
    assert engine.scheduler.drain_events() == []
    engine.verify()


def test_no_output_is_announced_past_a_prompt_that_no_text_would_take() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", [2, 2, 2, 2], 8, canonical=2))
    engine.run()
    engine.verify()
    assert len(engine.held) == 2
    engine.add(request("b", [2, 2, 2, 2], 8))
    engine.run()
    engine.verify()
    assert len(engine.held) > 4, "the same tokens as text attach what was missing"


def test_text_that_hits_tokens_stored_as_ids_attaches_their_blocks() -> None:
    """Page 4: the hit is whole, nothing new is stored, and yet the blocks were missing."""
    engine = Engine(new_scheduler(page_size=4))
    engine.add(request("ids", [2, 2, 2, 2], 1, canonical=0))
    engine.run()
    engine.verify()
    assert engine.held == {}
    engine.add(request("text", [2, 2, 2, 2, 40], 1))
    engine.run()
    engine.verify()
    assert engine.cached("text") == 4
    assert engine.held == {block: usable for block, _, usable in naive_blocks(chain(), [2, 2, 2, 2], 4)}


def test_an_answer_is_announced_with_its_prompt() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", [2, 2], 20))
    engine.run()
    engine.verify()
    path = [2, 2, *engine.output("a")[:-1]]
    assert engine.held == {block: usable for block, _, usable in naive_blocks(chain(), path, 1)}


@pytest.mark.parametrize("page", [4, 16])
def test_a_finish_frees_a_page_unaligned_tail_once(page: int) -> None:
    """B20, C5: the last, partial page goes back exactly once, by whichever way the request ends."""
    for length in range(14, 20):
        for ending in ("length", "finish", "cancel"):
            engine = Engine(new_scheduler(page_size=page, kv_tokens=256))
            engine.add(request("a", words(0, length), 3))
            engine.step()
            if ending == "finish":
                assert engine.scheduler.finish("a", 0.0)
            elif ending == "cancel":
                assert engine.scheduler.cancel("a", 0.0)
            engine.run()
            engine.verify()
            everything_is_back(engine.scheduler)
            stored = length if ending != "length" else length + 2
            assert engine.scheduler.stats().kv_cached == stored // page * page


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


# Endings


def test_cancel_of_a_waiting_request_leaves_no_trace() -> None:
    scheduler = new_scheduler()
    scheduler.add(request("a", words(0, 9)), 0.0)
    assert scheduler.cancel("a", 0.0)
    assert not scheduler.cancel("a", 0.0)
    everything_is_back(scheduler)
    assert scheduler.plan(0.0).work == ()


def test_cancel_in_the_middle_of_a_prefill_stores_what_was_computed() -> None:
    engine = Engine(new_scheduler(page_size=4))
    engine.add(request("a", words(0, 50), 4))
    engine.step()
    assert engine.scheduler.cancel("a", 0.0)
    everything_is_back(engine.scheduler)
    engine.verify()
    assert engine.scheduler.stats().kv_cached == 32


def test_cancel_during_a_step_waits_for_its_commit() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", words(0, 10), 4))
    engine.add(request("b", words(1, 10), 4))
    plan = engine.plan()
    assert engine.scheduler.cancel("a", 0.0)
    assert not engine.scheduler.cancel("a", 0.0)
    assert engine.scheduler.stats().kv_running == 20, "its pages are being written"
    committed = engine.commit(plan, engine.compute(plan))
    assert set(committed.outcomes) == {"b"}
    engine.verify()
    engine.run()
    everything_is_back(engine.scheduler)


def test_a_failed_step_drops_its_requests_and_no_other() -> None:
    engine = Engine(new_scheduler(batch_tokens_max=16))
    engine.add(request("a", words(0, 30), 4))
    engine.add(request("b", words(1, 30), 4))
    engine.step()
    plan = engine.plan()
    assert engine.scheduler.abandon(plan, 0.0) == ("a", "b")
    everything_is_back(engine.scheduler)
    assert engine.scheduler.stats().kv_cached == 16, "only what an earlier step computed"
    engine.add(request("c", words(0, 30), 4))
    engine.run()
    engine.verify()
    assert engine.cached("c") == 16


def test_steps_do_not_overlap() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("a", words(0, 9), 3))
    plan = engine.plan()
    with pytest.raises(AssertionError):
        engine.scheduler.plan(0.0)
    engine.commit(plan, engine.compute(plan))
    with pytest.raises(AssertionError):
        engine.scheduler.commit(plan, {}, 0.0)


def test_flush_beside_running_requests_drops_only_what_they_do_not_hold() -> None:
    engine = Engine(new_scheduler())
    engine.add(request("old", words(5, 30), 4))
    engine.run()
    engine.add(request("a", words(0, 10), 20))
    engine.step()
    engine.verify()
    assert engine.scheduler.flush() == 33
    engine.verify()
    engine.run()
    engine.verify()
    assert engine.scheduler.flush() == 29
    engine.verify()
    assert engine.held == {}
    everything_is_back(engine.scheduler)


# What it says


def test_load_counts_what_is_left_to_compute() -> None:
    engine = Engine(new_scheduler(batch_tokens_max=16, running_max=2, kv_tokens=512))
    engine.add(request("seed", words(0, 30), 1))
    engine.run(took=0.5)
    engine.add(request("a", [*words(0, 30), *words(3, 30)], 4))
    engine.add(request("b", words(4, 20), 4))
    engine.add(request("c", [*words(0, 30), 8], 4))
    load = engine.scheduler.load(0.0)
    assert (load.running, load.waiting, load.waiting_tokens) == (0, 3, 51)
    engine.step(took=0.5)
    load = engine.scheduler.load(0.0)
    assert (load.running, load.waiting, load.waiting_tokens) == (1, 2, 51 - 16)
    assert load.running_tokens == 60
    assert load.prefill_tokens_per_s == pytest.approx(32, rel=0.2)
    assert load.kv_total_tokens == 512
    assert load.kv_free_tokens + load.kv_cached_tokens <= 512
    assert engine.scheduler.load(0.0, draining=True).draining


def test_rates_follow_the_machine() -> None:
    engine = Engine(new_scheduler(kv_tokens=4096, context_max=2000))
    assert engine.scheduler.load(0.0).prefill_tokens_per_s == 0.0
    assert engine.scheduler.load(0.0).decode_step_ms == 0.0
    engine.add(request("a", words(0, 100), 200))
    now = engine.run(took=0.010)
    assert engine.scheduler.load(now).decode_step_ms == pytest.approx(10.0)
    assert engine.scheduler.load(now).prefill_tokens_per_s == pytest.approx(2500, rel=0.2)
    engine.add(request("b", words(1, 1000), 300), now)
    now = engine.run(now, took=0.020)
    assert engine.scheduler.load(now).decode_step_ms == pytest.approx(20.0, rel=0.01)
    assert engine.scheduler.load(now).prefill_tokens_per_s == pytest.approx(1600, rel=0.1)


def test_counters_add_up() -> None:
    engine = Engine(new_scheduler())
    for number in range(4):
        engine.add(request(f"r{number}", words(number % 2, 20), 5))
        engine.run()
    stats = engine.scheduler.stats()
    assert stats.requests_total == stats.finished_total == 4
    assert stats.prompt_tokens_total == 80
    assert stats.cached_tokens_total == 38
    assert stats.generated_tokens_total == 20
    assert stats.computed_tokens_total == engine.computed == 80 - 38 + 16
    assert stats.blocks == len(engine.scheduler.kv.cache.announcer.announced)
