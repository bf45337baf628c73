"""Scheduling: endings and what the scheduler says of itself, each known fault as a small input."""

from __future__ import annotations

import pytest

from tests.worker_core.cases import everything_is_back, words
from tests.worker_core.support import Engine, new_scheduler, request

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
