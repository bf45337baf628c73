"""The work of a step does not grow with the cache or with the queue. Counted in calls, since clocks tell little."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from tests.worker_core.support import Engine, new_scheduler, request
from trieway.worker.core.scheduler import Scheduler


def calls(run: Callable[[], Any]) -> int:
    """Python and C calls that `run` makes."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def loaded(kv_tokens: int, cached: int, waiting: int = 0) -> Scheduler:
    """Sixteen that decode, a full pool of `cached` prompts of 20 tokens, perhaps a queue."""
    rng = random.Random(1)
    scheduler = new_scheduler(
        kv_tokens=kv_tokens, context_max=kv_tokens, running_max=16, batch_tokens_max=64, waiting_max=512,
        reserve_tokens=0,
    )  # fmt: skip
    engine = Engine(scheduler)
    for number in range(cached):
        engine.add(request(f"cached {number}", [8 + rng.randrange(248) for _ in range(20)], 1))
        engine.run()
    for number in range(16):
        engine.add(request(f"running {number}", [8 + rng.randrange(248) for _ in range(20)], 400))
    while scheduler.load(0.0).waiting_tokens:
        engine.step()
    for number in range(waiting):
        engine.add(request(f"waiting {number}", [8 + rng.randrange(248) for _ in range(20)], 4))
    scheduler.drain_events()
    return scheduler


def decode(scheduler: Scheduler) -> None:
    plan = scheduler.plan(0.0)
    assert plan.decode_tokens == 16
    scheduler.commit(plan, {work.id: 8 for work in plan.work}, 0.0)
    scheduler.drain_events()


def test_a_decode_step_costs_the_same_whatever_is_cached() -> None:
    small, large = loaded(700, 20), loaded(20_340, 1000)
    for scheduler in (small, large):
        while scheduler.stats().kv_free:
            decode(scheduler)
    few = max(calls(lambda: decode(small)) for _ in range(10))
    many = max(calls(lambda: decode(large)) for _ in range(10))
    assert small.stats().evicted_tokens_total > 0
    assert large.stats().evicted_tokens_total > 0
    assert many < 1.5 * few
    assert many < 1500


def test_a_long_queue_costs_nothing_while_nobody_can_be_admitted() -> None:
    alone, queued = loaded(2000, 0), loaded(2000, 0, waiting=400)
    assert calls(lambda: decode(queued)) <= calls(lambda: decode(alone)) + 20


def test_a_queue_that_does_not_fit_is_tried_once() -> None:
    scheduler = new_scheduler(kv_tokens=100, context_max=100, reserve_tokens=0, wait_max_s=99.0, waiting_max=99)
    engine = Engine(scheduler)
    engine.add(request("running", [8] * 20, 60))
    engine.step()
    for number in range(50):
        engine.add(request(f"big {number}", [9 + number] * 90, 2))
    first = calls(engine.step)
    assert calls(engine.step) < first / 5
    engine.run()
    engine.verify()
