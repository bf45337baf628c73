"""What the scheduler's cases share."""

from __future__ import annotations

from tests.worker_core.support import Engine
from trieway.worker.core.scheduler import Scheduler


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
