"""The scheduler: which sequences run in the next step, on which pages.

A step is plan -> (the engine computes and samples) -> commit. Keeps true: free + cached + running-private pages =
total after every call. Does not know text, torch, threads or time: `now` (seconds, never backwards) comes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trieway.meta_tree.events import CacheEvent
from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import Reject
from trieway.worker.core.policies import Rng
from trieway.worker.core.sequence import Committed, Plan, Request, SchedulerConfig, SchedulerStats


class Scheduler:
    """Owns the page pool, the radix cache and every request from `add` to its end."""

    def __init__(self, config: SchedulerConfig, token_bytes: Sequence[bytes], rng: Rng) -> None:
        raise NotImplementedError

    def add(self, request: Request, now: float) -> Reject | None:
        """Queues a request. Rejects: `queue_full` (with retry_after_s), `too_long`, `empty`."""
        raise NotImplementedError

    def hint(self, request: Request, now: float) -> Reject | None:
        """Queues a request for its prompt alone: it is computed, stored and finishes with `length` and no token."""
        raise NotImplementedError

    def cancel(self, request_id: str, now: float) -> bool:
        """Ends a request wherever it is and frees all it held; what was computed is stored. False if unknown."""
        raise NotImplementedError

    def finish(self, request_id: str, now: float) -> bool:
        """Ends a running request that the caller found complete (a stop string). False if unknown."""
        raise NotImplementedError

    def plan(self, now: float) -> Plan:
        """The next step. One plan at a time: commit or abandon it before the next."""
        raise NotImplementedError

    def commit(self, plan: Plan, sampled: Mapping[str, int], now: float) -> Committed:
        """Books a computed step. `sampled` has one token for each work with `samples` (others are ignored)."""
        raise NotImplementedError

    def abandon(self, plan: Plan, now: float) -> tuple[str, ...]:
        """A step failed: its requests are dropped and their uncomputed pages freed. Returns their ids."""
        raise NotImplementedError

    def has_work(self) -> bool:
        """True if anything waits or runs."""
        raise NotImplementedError

    def drain_events(self) -> list[CacheEvent]:
        """The cache events since the last call, in order. Call after each plan, commit, cancel, finish and flush."""
        raise NotImplementedError

    def load(self, now: float, *, draining: bool = False) -> WorkerLoad:
        """What a heartbeat carries."""
        raise NotImplementedError

    def flush(self) -> int:
        """Drops every cached token that no running request holds; returns how many. Emits Cleared, then what stays."""
        raise NotImplementedError

    def stats(self) -> SchedulerStats:
        raise NotImplementedError

    def check(self) -> None:
        """Proves the conservation sums of pool, cache and queues; AssertionError otherwise. O(cache)."""
        raise NotImplementedError
