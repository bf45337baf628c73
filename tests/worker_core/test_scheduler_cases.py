"""Scheduling: what comes in and one request's life, each known behaviour or fault as a small input."""

from __future__ import annotations

import pytest

from tests.worker_core.cases import everything_is_back, words
from tests.worker_core.support import Engine, chain, naive_blocks, new_scheduler, reference, request
from trieway.meta_tree.ids import Reject
from trieway.worker.core.sequence import SchedulerConfig

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
