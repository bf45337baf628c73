"""What is spared at admission: pages for a follow-up that is on its way, and hits of those that wait and do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_core.cases import everything_is_back, names, words
from tests.worker_core.support import Engine, new_scheduler, request
from trieway.worker.core.sequence import SchedulerConfig


def full_cache(**changes: object) -> Engine:
    """64 pages: 40 hold the past of a chat that has just ended its turn, a long answer runs in the rest."""
    settings: dict[str, object] = {"kv_tokens": 64, "batch_tokens_max": 64, "reserve_tokens": 1, **changes}
    engine = Engine(new_scheduler(**settings))
    engine.add(request("long", words(9, 8), 40))
    engine.add(request("chat", words(0, 39), 2))
    engine.step(1.0)  # both prefills
    engine.step(1.1)  # the chat's last token
    assert engine.ended == {"chat": "length"}
    return engine


def test_nobody_pushes_out_the_past_of_a_turn_just_ended() -> None:
    for follow_up_s in (0.0, 0.05):
        engine = full_cache(follow_up_s=follow_up_s)
        engine.add(request("cold", words(20, 24), 2), now=1.1)
        engine.step(1.1)
        engine.add(request("next", [*engine.paths["chat"][:40], 30, 31], 2), now=1.12)
        engine.scheduler.check()
        now = 1.2
        while "next" not in engine.ended:
            engine.step(now)
            now += 0.1
        assert (engine.cached("next") == 40) == bool(follow_up_s)
        engine.verify()


def test_the_wait_for_a_follow_up_ends_by_itself() -> None:
    engine = full_cache(follow_up_s=0.05)
    engine.add(request("cold", words(20, 24), 2), now=1.1)
    assert names(engine, 1.1) == ["long"]
    assert engine.scheduler.steady_steps() == 0, "the next step may admit: it is not steady"
    engine.step(1.2)
    assert "cold" in engine.scheduler.running_ids
    engine.run(1.3)
    everything_is_back(engine.scheduler)


def test_what_fits_beside_the_cached_need_not_wait() -> None:
    engine = full_cache(follow_up_s=9.0)
    engine.add(request("small", words(20, 5), 1), now=1.1)
    engine.step(1.1)
    assert "small" in engine.ended


def test_an_idle_machine_waits_for_nobody() -> None:
    engine = Engine(new_scheduler(kv_tokens=64, batch_tokens_max=64, follow_up_s=9.0))
    engine.add(request("chat", words(0, 40), 1))
    engine.step(1.0)
    engine.add(request("cold", words(20, 40), 1), now=1.0)
    engine.step(1.0)
    assert set(engine.ended) == {"chat", "cold"}


def test_one_that_has_waited_too_long_waits_no_more() -> None:
    engine = full_cache(follow_up_s=9.0, wait_max_s=0.5)
    engine.add(request("cold", words(20, 24), 2), now=1.1)
    assert names(engine, 1.1) == ["long"]
    engine.step(1.7)
    assert "cold" in engine.scheduler.running_ids


def warm_and_cold(*, keep_warm: bool) -> Engine:
    """A warm request does not fit beside what runs, a cold one would if the warm one's hit were given up."""
    engine = Engine(
        new_scheduler(kv_tokens=100, batch_tokens_max=100, reserve_tokens=1, keep_warm=keep_warm, context_max=200)
    )
    engine.add(request("past", words(0, 40), 1))
    engine.step(0.0)
    engine.add(request("runs", words(9, 30), 6))
    engine.step(0.1)
    engine.add(request("warm", [*words(0, 40), *words(60, 45)], 2), now=0.2)
    engine.add(request("cold", words(20, 50), 2), now=0.2)
    return engine


def test_a_cold_request_does_not_push_out_what_a_warm_one_waits_with() -> None:
    for keep_warm in (False, True):
        engine = warm_and_cold(keep_warm=keep_warm)
        engine.step(0.2)
        assert ("cold" in engine.scheduler.running_ids) != keep_warm
        engine.run(0.3, took=0.1)
        assert (engine.cached("warm") == 40) == keep_warm
        engine.verify()
        everything_is_back(engine.scheduler)


def test_one_that_needs_no_eviction_may_pass_a_warm_one() -> None:
    engine = warm_and_cold(keep_warm=True)
    engine.add(request("small", words(80, 10), 1), now=0.2)
    engine.step(0.2)
    assert "small" in engine.ended
    assert "cold" not in engine.scheduler.running_ids


def test_a_request_without_a_hit_that_does_not_fit_may_be_passed() -> None:
    engine = Engine(new_scheduler(kv_tokens=100, batch_tokens_max=100, reserve_tokens=1, keep_warm=True))
    engine.add(request("past", words(0, 40), 1))
    engine.step(0.0)
    engine.add(request("runs", words(9, 30), 6))
    engine.step(0.1)
    engine.add(request("large", words(60, 90), 2), now=0.2)
    engine.add(request("cold", words(20, 50), 2), now=0.2)
    engine.step(0.2)
    assert "cold" in engine.scheduler.running_ids


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(ValueError, match="follow_up_s"):
        SchedulerConfig(kv_tokens=64, context_max=64, running_max=4, follow_up_s=-1.0)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 6)), min_size=1, max_size=14),
    follow_up_s=st.sampled_from([0.0, 0.15, 5.0]),
    keep_warm=st.booleans(),
)
def test_all_end_and_say_what_they_should(
    sizes: list[tuple[int, int, int]], follow_up_s: float, keep_warm: bool
) -> None:
    """Whatever is spared, every request ends, with the reference's output, and no page is lost."""
    engine = Engine(new_scheduler(kv_tokens=72, follow_up_s=follow_up_s, keep_warm=keep_warm, wait_max_s=3.0))
    for number, (stem, length, new) in enumerate(sizes):
        tokens = [*words(stem, min(length, 20)), *words(30 + number, max(1, length - 20))]
        engine.add(request(f"q{number}", tokens, new), now=number * 0.1, as_hint=not new)
        engine.step(number * 0.1, took=0.1)
        engine.scheduler.check()
    engine.run(len(sizes) * 0.1, took=0.1)
    assert len(engine.ended) == len(sizes)
    engine.verify()
    everything_is_back(engine.scheduler)
