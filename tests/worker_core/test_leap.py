"""A leap is as many steps: two schedulers get the same traffic, one steps, the other leaps where it may."""

from __future__ import annotations

import random

import pytest

from tests.worker_core.support import new_scheduler, next_token, request
from trieway.worker.core.scheduler import Scheduler


def picture(scheduler: Scheduler) -> dict[str, object]:
    """All that a caller could see, and the page tables."""
    pool = scheduler.kv.pool
    rows = {
        one.request.id: (list(one.tokens), one.computed, one.shared, list(one.row), one.hit)
        for one in scheduler._running
    }
    return {
        "stats": scheduler.stats(),
        "load": scheduler.load(0.0),
        "rows": rows,
        "free": list(pool._free),
        "announced": dict(scheduler.kv.cache.announcer.announced),
        "waiting": list(scheduler._admission.waiting),
        "steps": scheduler._steps,
        "opened_at": scheduler._opened_at,
    }


def single(scheduler: Scheduler, outputs: dict[str, list[int]], now: float, took: float) -> float:
    plan = scheduler.plan(now)
    sampled = {work.id: outputs[work.id][work.start + len(work.tokens)] for work in plan.work if work.samples}
    scheduler.commit(plan, sampled, now + took)
    return now + took


@pytest.mark.parametrize("page_size", [1, 2, 8])
@pytest.mark.parametrize("seed", range(6))
def test_a_leap_is_as_many_steps(seed: int, page_size: int) -> None:
    rng = random.Random(seed)
    kv_tokens = rng.choice([400, 4000])
    settings = {"page_size": page_size, "kv_tokens": kv_tokens, "running_max": rng.choice([2, 8])}
    one, other = (new_scheduler(seed, batch_tokens_max=16, **settings) for _ in range(2))
    paths: dict[str, list[int]] = {}
    now, leaps = 0.0, 0
    for turn in range(150):
        for count in range(rng.choice([0, 0, 0, 2]) if turn < 120 else 0):
            name = f"r{turn}.{count}"
            tokens = [rng.randrange(8, 12) for _ in range(rng.randrange(1, 30))]
            new = rng.randrange(1, 30)
            paths[name] = tokens + [next_token(rng.randrange(10**6)) for _ in range(new)]
            added = [scheduler.add(request(name, tokens, new), now) for scheduler in (one, other)]
            assert added[0] == added[1]
        took = rng.choice([0.01, 0.02])
        steady = other.steady_steps()
        if not one.has_work():
            continue
        if not steady:
            single(one, paths, now, took)
            now = single(other, paths, now, took)
        else:
            steps = rng.randint(1, steady)
            began, ends = now, []
            sampled = {row.request.id: paths[row.request.id][len(row.tokens) :] for row in other._running}
            for _ in range(steps):
                now = single(one, paths, now, took)
                ends.append(now)
            other.leap(sampled, began, ends)
            leaps += 1
        assert one.drain_events() == other.drain_events()
        assert picture(one) == picture(other)
        one.check()
        other.check()
    assert leaps > 5 or kv_tokens == 400, "room to leap, and no leaps"


def test_a_leap_stops_before_what_matters() -> None:
    scheduler = new_scheduler(kv_tokens=32, context_max=64)
    assert scheduler.steady_steps() == 0, "nothing runs"
    scheduler.add(request("a", [9] * 10, 15), 0.0)
    assert scheduler.steady_steps() == 0, "it waits to be admitted"
    plan = scheduler.plan(0.0)
    assert scheduler.steady_steps() == 0, "a plan is open"
    scheduler.commit(plan, {"a": 9}, 0.1)
    assert scheduler.steady_steps() == 13, "the fifteenth token ends it"
    scheduler.add(request("b", [10] * 10, 15), 0.1)
    assert scheduler.steady_steps() == 0, "one waits"
    scheduler.commit(scheduler.plan(0.1), {"a": 9, "b": 9}, 0.2)
    assert scheduler.steady_steps() == 5, "32 pages, 21 taken: five steps of two"


def test_a_leap_takes_no_stop_token() -> None:
    scheduler = new_scheduler()
    scheduler.add(request("a", [9] * 4, 9, stop_token_ids=frozenset([11])), 0.0)
    scheduler.commit(scheduler.plan(0.0), {"a": 9}, 0.1)
    with pytest.raises(AssertionError, match="stop token"):
        scheduler.leap({"a": [9, 11]}, 0.1, [0.2, 0.3])
