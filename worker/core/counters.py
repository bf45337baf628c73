"""What the scheduler counted since the start.

Keeps true: counters only rise. Does not know why anything happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from trieway.worker.core.kv import KV
from trieway.worker.core.sequence import SchedulerStats


@dataclass(slots=True)
class Counters:
    requests: int = 0
    rejected: int = 0
    preempted: int = 0
    cancelled: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    flushes: int = 0

    def stats(self, kv: KV, *, running: int, waiting: int) -> SchedulerStats:
        page, pool, cache = kv.page_size, kv.pool, kv.cache
        return SchedulerStats(
            running=running,
            waiting=waiting,
            kv_total=pool.pages * page,
            kv_free=pool.free * page,
            kv_cached=pool.cached * page,
            kv_locked=cache.protected,
            kv_running=pool.running * page,
            nodes=cache.nodes,
            blocks=len(cache.announcer.announced),
            namespaces=len(cache.roots),
            requests_total=self.requests,
            rejected_total=self.rejected,
            preempted_total=self.preempted,
            cancelled_total=self.cancelled,
            finished_total=self.finished,
            prompt_tokens_total=self.prompt_tokens,
            cached_tokens_total=self.cached_tokens,
            computed_tokens_total=self.computed_tokens,
            generated_tokens_total=self.generated_tokens,
            evicted_tokens_total=cache.evicted_total,
            flushes_total=self.flushes,
        )
