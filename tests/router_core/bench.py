"""A router's core with publishers at the other end of its feeds."""

from __future__ import annotations

import random
from typing import Any

from tests.router_core.clockwork import GROUP, MODEL, ROOT, SEED_ID, chain
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.meta_tree.frames import Frame, WorkerLoad
from trieway.meta_tree.ids import GroupId, Reject, WorkerId
from trieway.meta_tree.publisher import Publisher
from trieway.router.core import (
    Booking,
    Choice,
    CoreConfig,
    Query,
    RouterCore,
)

A, B = WorkerId("a"), WorkerId("b")
PROMPT = tuple(chain(range(1, 11)))
LOAD = WorkerLoad(
    running=0, waiting=0, waiting_tokens=0, running_tokens=0, prefill_tokens_per_s=0.0, decode_step_ms=0.0,
    kv_free_tokens=50_000, kv_cached_tokens=0, kv_total_tokens=50_000,
)  # fmt: skip


class Bench:
    """A core with publishers at the other end of its feeds."""

    def __init__(self, *workers: WorkerId, **config: Any) -> None:
        self.core = RouterCore(CoreConfig(seed_id=SEED_ID, **config), random.Random(1))
        self.now = 100.0
        self.ends: dict[WorkerId, Publisher] = {}
        for worker in workers:
            self.core.add_worker(worker, f"http://{worker}", self.now, model=MODEL, group=GROUP)
            self.connect(worker, epoch=1)

    def connect(self, worker: WorkerId, epoch: int, group: GroupId = GROUP) -> None:
        """A (new) incarnation, its feed opened."""
        self.ends[worker] = Publisher(epoch=epoch, seed_id=SEED_ID, group=group)
        self.subscribe(worker)

    def subscribe(self, worker: WorkerId) -> None:
        self.feed(worker, *self.ends[worker].subscribe(*self.core.resume(worker)))

    def feed(self, worker: WorkerId, *frames: Frame) -> list[object]:
        effects: list[object] = []
        for frame in frames:
            effects += self.core.feed_frame(worker, frame, self.now)
        self.core.check()
        return effects

    def store(self, worker: WorkerId, hashes: tuple[int, ...] = PROMPT, tokens: int = 16) -> None:
        usable = tuple(tokens * (at + 1) for at in range(len(hashes)))
        self.say(worker, Stored(namespace_id=ROOT, parent=ROOT, hashes=hashes, usable=usable))

    def say(self, worker: WorkerId, *events: Stored | Removed | Cleared) -> None:
        end = self.ends[worker]
        before = end.number
        end.publish(events)
        self.feed(worker, *(end.after(before) or ()))

    def beat(self, worker: WorkerId, load: WorkerLoad = LOAD) -> list[object]:
        return self.feed(worker, self.ends[worker].heartbeat(load))

    def query(self, **more: Any) -> Query:
        return Query(**({"model": MODEL, "group": GROUP, "hashes": PROMPT, "prompt_bytes": 660} | more))

    def choose(self, **more: Any) -> Choice:
        found = self.core.choose(self.query(**more), self.now)
        assert isinstance(found, Choice)
        return found

    def reject(self, **more: Any) -> Reject:
        found = self.core.choose(self.query(**more), self.now)
        assert isinstance(found, Reject)
        return found

    def book(self, **more: Any) -> Booking:
        query = self.query(**more)
        found = self.core.choose(query, self.now)
        assert isinstance(found, Choice)
        made = self.core.book(query, found, self.now)
        self.core.check()
        return made

    def row(self, worker: WorkerId) -> Any:
        return next(row for row in self.core.workers(self.now) if row.worker == worker)


def foreign() -> Bench:
    """A worker without a feed."""
    bench = Bench()
    bench.core.add_worker(A, "http://a", bench.now, model=MODEL, group=GROUP, has_feed=False)
    return bench
