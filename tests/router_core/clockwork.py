"""A virtual clock and workers made of a queue, a cache and a line of milliseconds: enough to judge routing by.

Prompts are runs of block ids; a block is 64 bytes and 16 tokens. A worker computes in steps: up to `step_tokens` of
prefill, first come first served, and one token for each running request. Its cache is exact, leaf-first LRU, and it
tells of it through the production publisher.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trieway.meta_tree.events import CacheEvent, Removed, Stored
from trieway.meta_tree.frames import Frame, WorkerLoad
from trieway.meta_tree.ids import GroupId, WorkerId
from trieway.meta_tree.publisher import Publisher

BLOCK_TOKENS = 16
SEED_ID = "0123456789abcdef"
GROUP = GroupId("g")
MODEL = "m"
ROOT = 77
MASK = (1 << 64) - 1


def chain(blocks: Sequence[int]) -> list[int]:
    """Hashes of a run of block ids."""
    hashes, parent = [], ROOT
    for block in blocks:
        parent = ((parent ^ (block * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93 + 0x1234567) & MASK
        parent ^= parent >> 32
        hashes.append(parent)
    return hashes


class Clock:
    """Calls in order of their time; equal times in order of their asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), call))

    def run(self, until: float = float("inf"), *, while_: Callable[[], bool] = lambda: True) -> None:
        while self._heap and while_() and self._heap[0][0] <= until:
            self.now, _, call = heapq.heappop(self._heap)
            call()
        if until != float("inf"):
            self.now = max(self.now, until)


@dataclass
class Cache:
    """Blocks held, by hash; leaf-first LRU. `locked` counts users of a block."""

    capacity: int
    parent: dict[int, int] = field(default_factory=dict)
    children: dict[int, int] = field(default_factory=dict)
    used: dict[int, float] = field(default_factory=dict)
    depth: dict[int, int] = field(default_factory=dict)
    locked: dict[int, int] = field(default_factory=dict)

    def match(self, hashes: Sequence[int]) -> int:
        count = 0
        for block in hashes:
            if block not in self.parent:
                break
            count += 1
        return count

    def store(self, hashes: Sequence[int], now: float) -> list[CacheEvent]:
        held = self.match(hashes)
        new = list(hashes[held:])
        for index, block in enumerate(hashes):
            self.used[block] = now
            self.locked[block] = self.locked.get(block, 0) + 1
            if index >= held:
                parent = hashes[index - 1] if index else ROOT
                self.parent[block] = parent
                self.children[parent] = self.children.get(parent, 0) + 1
                self.depth[block] = index + 1
        events: list[CacheEvent] = []
        if new:
            parent = hashes[held - 1] if held else ROOT
            usable = tuple(self.depth[block] * BLOCK_TOKENS for block in new)
            events.append(Stored(namespace_id=ROOT, parent=parent, hashes=tuple(new), usable=usable))
        gone = self._evict()
        if gone:
            events.append(Removed(namespace_id=ROOT, hashes=tuple(gone)))
        for block in hashes:
            self.locked[block] -= 1
        return events

    def _evict(self) -> list[int]:
        over = len(self.parent) - self.capacity
        gone: list[int] = []
        if over <= 0:
            return gone
        leaves = [(used, block) for block, used in self.used.items() if not self.children.get(block)]
        heapq.heapify(leaves)
        while over > 0 and leaves:
            _, block = heapq.heappop(leaves)
            if self.locked.get(block):
                continue
            parent = self.parent.pop(block)
            for table in (self.used, self.depth, self.children, self.locked):
                table.pop(block, None)  # type: ignore[attr-defined]
            gone.append(block)
            over -= 1
            self.children[parent] -= 1
            if not self.children[parent] and parent in self.used:
                heapq.heappush(leaves, (self.used[parent], parent))
        return gone


@dataclass(eq=False)
class Job:
    """One request at one worker."""

    hashes: list[int]
    tokens: int
    output: int
    answer_hashes: list[int]
    on_first: Callable[[Job], None]
    on_end: Callable[[Job, bool], None]
    arrived: float = 0.0
    started: float | None = None
    cached: int = 0
    left: int = 0
    made: int = 0
    cancelled: bool = False


class ModelWorker:
    """A worker: `rate` prefill tokens per second, a step costs `overhead_s` and `decode_s` per
    running request, all of it off by about `jitter` (the sigma of a log-normal)."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        *,
        rate: float = 1200.0,
        overhead_s: float = 0.02,
        decode_s: float = 0.003,
        capacity: int = 100_000,
        running_max: int = 64,
        noise: random.Random | None = None,
        jitter: float = 0.05,
    ) -> None:
        self.clock, self.id = clock, WorkerId(name)
        self.rate, self.overhead_s, self.decode_s = rate, overhead_s, decode_s
        self.capacity, self.running_max, self.noise, self.jitter = capacity, running_max, noise, jitter
        self.step_tokens = 512
        self.epoch = 0
        self.up = False
        self.deliver: Callable[[Frame], None] | None = None
        self.boot()

    def boot(self) -> None:
        self.epoch += 1
        self.up, self.busy = True, False
        self.cache = Cache(self.capacity)
        self.publisher = Publisher(epoch=self.epoch, seed_id=SEED_ID, group=GROUP)
        self.waiting: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.running: list[Job] = []
        self.computed_tokens = 0
        self.step_s = 0.0
        self.measured_rate = 0.0

    def crash(self) -> None:
        self.up = False
        self.deliver = None
        jobs = [*self.waiting, *self.prefilling, *self.running]
        self.waiting.clear()
        self.prefilling, self.running = [], []
        for job in jobs:
            if not job.cancelled:
                job.on_end(job, False)

    def load(self) -> WorkerLoad:
        waiting = sum(max(job.tokens - BLOCK_TOKENS * self.cache.match(job.hashes), 1) for job in self.waiting)
        held = len(self.cache.parent)
        return WorkerLoad(
            running=len(self.prefilling) + len(self.running), waiting=len(self.waiting),
            waiting_tokens=waiting + sum(job.left for job in self.prefilling),
            running_tokens=sum(job.tokens for job in self.running), prefill_tokens_per_s=self.measured_rate,
            decode_step_ms=self.step_s * 1e3, kv_free_tokens=(self.capacity - held) * BLOCK_TOKENS,
            kv_cached_tokens=held * BLOCK_TOKENS, kv_total_tokens=self.capacity * BLOCK_TOKENS,
        )  # fmt: skip

    def submit(self, job: Job) -> None:
        if not self.up:
            job.on_end(job, False)
            return
        job.arrived = self.clock.now
        self.waiting.append(job)
        self._wake()

    def cancel(self, job: Job) -> None:
        job.cancelled = True
        for jobs in (self.waiting, self.prefilling, self.running):
            if job in jobs:
                jobs.remove(job)

    def _admit(self) -> None:
        while self.waiting and len(self.prefilling) + len(self.running) < self.running_max:
            job = self.waiting[0]
            held = self.cache.match(job.hashes)
            if any(_common(job.hashes, other.hashes) > held + 1 for other in self.prefilling):
                return  # a running prefill is about to store much of it
            self.waiting.popleft()
            job.cached = min(held * BLOCK_TOKENS, job.tokens - 1)
            job.left = job.tokens - job.cached
            job.started = self.clock.now
            self.prefilling.append(job)

    def _wake(self) -> None:
        if self.busy or not self.up:
            return
        self._admit()
        if not self.prefilling and not self.running:
            return
        budget, parts = self.step_tokens, []
        for job in self.prefilling:
            take = min(job.left, budget)
            if take:
                parts.append((job, take))
                budget -= take
        tokens = self.step_tokens - budget
        decodes = list(self.running)
        took = self.overhead_s + tokens / self.rate + self.decode_s * len(decodes)
        if self.noise is not None:
            took *= math.exp(self.jitter * self.noise.gauss(0.0, 1.0))
        if tokens:
            self.measured_rate += (0.2 if self.measured_rate else 1.0) * (tokens / took - self.measured_rate)
        if decodes:
            self.step_s = self.overhead_s + self.decode_s * len(decodes)
        self.busy = True
        epoch = self.epoch
        self.clock.after(took, lambda: self._step_done(epoch, parts, decodes))

    def _step_done(self, epoch: int, parts: list[tuple[Job, int]], decodes: list[Job]) -> None:
        if not self.up or epoch != self.epoch:
            return
        self.busy = False
        for job, take in parts:
            job.left -= take
            self.computed_tokens += take
            if job.left == 0 and job in self.prefilling:
                self.prefilling.remove(job)
                self.running.append(job)
                self._publish(self.cache.store(job.hashes, self.clock.now))
                job.on_first(job)
        for job in decodes:
            job.made += 1
        for job in list(self.running):
            if job.made >= job.output:
                self.running.remove(job)
                self._publish(self.cache.store(job.hashes + job.answer_hashes, self.clock.now))
                job.on_end(job, True)
        self._wake()

    def _publish(self, events: list[CacheEvent]) -> None:
        before = self.publisher.number
        self.publisher.publish(events)
        for frame in self.publisher.after(before) or []:
            if self.deliver is not None:
                self.deliver(frame)

    def heartbeat(self) -> None:
        if self.up and self.deliver is not None:
            self.deliver(self.publisher.heartbeat(self.load()))


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        count += 1
    return count
