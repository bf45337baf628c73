"""A router core in front of model workers on a virtual clock, and the workloads that judge it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.router_core.clockwork import BLOCK_TOKENS, GROUP, MODEL, SEED_ID, Clock, Job, ModelWorker, chain
from trieway.meta_tree.frames import Frame
from trieway.meta_tree.ids import Reject, WorkerId
from trieway.router.core import AskBuckets, CoreConfig, FirstByte, Outcome, Query, Resubscribe, RouterCore

WIRE_S = 0.001


@dataclass
class Done:
    """One answered request."""

    worker: WorkerId
    tokens: int
    cached: int
    predicted: int
    ttft_s: float
    reason: str
    sent_at: float


class Fleet:
    """Workers, router, feeds. `ask` sends a prompt; `done` is the record of answers."""

    def __init__(
        self,
        *,
        policy: str = "cache_aware",
        seed: int = 0,
        workers: int = 2,
        config: dict[str, Any] | None = None,
        **model: float,
    ) -> None:
        self.clock = Clock()
        self.rng = random.Random(seed)
        self.router = RouterCore(CoreConfig(seed_id=SEED_ID, policy=policy, **(config or {})), random.Random(seed + 1))
        self.workers: dict[WorkerId, ModelWorker] = {}
        self.done: list[Done] = []
        self.open = 0
        self.rejected = 0
        self._fresh = 0
        for index in range(workers):
            noise = random.Random(seed * 1000 + index)
            worker = ModelWorker(self.clock, f"w{index}", noise=noise, **model)  # type: ignore[arg-type]
            self.workers[worker.id] = worker
            self.join(worker)
            self._beat(worker, self.rng.random())
        self.clock.after(0.25, self._tick)
        self.clock.run(until=0.1)

    # Feeds.
    def join(self, worker: ModelWorker) -> None:
        self.router.add_worker(worker.id, f"sim://{worker.id}", self.clock.now, model=MODEL, group=GROUP)
        self.subscribe(worker)

    def subscribe(self, worker: ModelWorker) -> None:
        worker.deliver = lambda frame, epoch=worker.epoch: self._carry(worker, epoch, frame)  # type: ignore[misc]
        for frame in worker.publisher.subscribe(*self.router.resume(worker.id)):
            worker.deliver(frame)

    def _carry(self, worker: ModelWorker, epoch: int, frame: Frame) -> None:
        self.clock.after(WIRE_S, lambda: self._arrive(worker, epoch, frame))

    def _arrive(self, worker: ModelWorker, epoch: int, frame: Frame) -> None:
        if not worker.up or worker.epoch != epoch:
            return
        for effect in self.router.feed_frame(worker.id, frame, self.clock.now):
            if isinstance(effect, Resubscribe):
                self.subscribe(worker)
            if isinstance(effect, AskBuckets):
                self._carry(worker, epoch, worker.publisher.buckets(effect.indices))

    def _beat(self, worker: ModelWorker, phase: float) -> None:
        def beat() -> None:
            worker.heartbeat()
            self.clock.after(1.0, beat)

        self.clock.after(phase, beat)

    def _tick(self) -> None:
        self.router.tick(self.clock.now)
        self.clock.after(0.25, self._tick)

    def crash(self, name: str) -> None:
        worker = self.workers[WorkerId(name)]
        worker.crash()
        self.router.feed_lost(worker.id, self.clock.now, gone=True)

    def restart(self, name: str) -> None:
        worker = self.workers[WorkerId(name)]
        worker.boot()
        self.join(worker)

    # Requests.
    def fresh(self, blocks: int) -> list[int]:
        """Block ids never used before."""
        self._fresh += blocks
        return list(range(self._fresh - blocks + 1, self._fresh + 1))

    def ask(
        self,
        blocks: Sequence[int],
        *,
        output: int = 16,
        then: Callable[[list[int]], None] | None = None,
        extra: int = 5,
    ) -> WorkerId | None:
        """Send a prompt of whole blocks and `extra` more tokens. `then` gets prompt and answer as blocks."""
        now = self.clock.now
        hashes = chain(blocks)
        tokens = len(blocks) * BLOCK_TOKENS + extra
        query = Query(model=MODEL, group=GROUP, hashes=hashes, prompt_bytes=tokens * 4, max_tokens=output)
        choice = self.router.choose(query, now)
        if isinstance(choice, Reject):
            self.rejected += 1
            return None
        booking = self.router.book(query, choice, now)
        worker = self.workers[choice.worker]
        answer = self.fresh(max(output // BLOCK_TOKENS, 0))
        self.open += 1
        first_at: list[float] = []

        def on_first(job: Job) -> None:
            assert job.started is not None
            number, epoch, made = worker.publisher.number, worker.epoch, self.clock.now
            queue_s, prefill_s = job.started - job.arrived, made - job.started

            def receipt() -> None:
                if job.cancelled:
                    return
                first_at.append(self.clock.now)
                first = FirstByte(
                    prompt_tokens=tokens, cached_tokens=job.cached, epoch=epoch, number=number,
                    queue_ms=queue_s * 1e3, prefill_ms=prefill_s * 1e3,
                )  # fmt: skip
                self.router.receipt(booking.id, first, self.clock.now)

            self.clock.after(WIRE_S, receipt)

        def on_end(job: Job, ok: bool) -> None:
            def release() -> None:
                self.open -= 1
                self.router.release(booking.id, Outcome.OK if ok else Outcome.WORKER_ERROR, self.clock.now)
                if ok:
                    self.done.append(
                        Done(
                            worker=worker.id, tokens=tokens, cached=job.cached, predicted=choice.predicted_tokens,
                            ttft_s=first_at[0] - now, reason=choice.reason, sent_at=now,
                        )
                    )  # fmt: skip
                if then is not None:
                    then([*blocks, *answer])

            self.clock.after(WIRE_S, release)

        job = Job(
            hashes=hashes, tokens=tokens, output=output, answer_hashes=chain([*blocks, *answer])[len(blocks) :],
            on_first=on_first, on_end=on_end,
        )  # fmt: skip
        self.clock.after(WIRE_S, lambda: worker.submit(job))
        return choice.worker

    def settle(self) -> None:
        """Run until nothing is open."""
        self.clock.run(while_=lambda: self.open > 0)

    def rest(self, seconds: float) -> None:
        self.clock.run(until=self.clock.now + seconds)

    def chat(self, system: Sequence[int], turns: int, *, user: int = 4, output: int = 64, think_s: float = 0.5) -> None:
        """A conversation: each turn asks with all that was said before."""

        def turn(history: list[int], left: int) -> None:
            def said(all_of_it: list[int]) -> None:
                self.clock.after(think_s * self.rng.uniform(0.5, 1.5), lambda: turn(all_of_it, left - 1))

            if left:
                self.ask([*history, *self.fresh(user)], output=output, then=said)

        turn(list(system), turns)

    # What came of it.
    def hit_rate(self) -> float:
        return sum(done.cached for done in self.done) / max(sum(done.tokens for done in self.done), 1)

    def counts(self) -> Counter[WorkerId]:
        return Counter(dict.fromkeys(self.workers, 0)) + Counter(done.worker for done in self.done)

    def imbalance(self) -> float:
        """Requests of the busiest worker over the mean."""
        counts = Counter(done.worker for done in self.done)
        return max(counts.values()) * len(self.workers) / max(len(self.done), 1)

    def work_imbalance(self) -> float:
        """Computed prompt tokens of the busiest worker over the mean."""
        work = [worker.computed_tokens for worker in self.workers.values()]
        return max(work) * len(work) / max(sum(work), 1)

    def ttft_ms(self, share: float = 0.5) -> float:
        times = sorted(done.ttft_s for done in self.done)
        return times[min(int(len(times) * share), len(times) - 1)] * 1e3


def mixed(fleet: Fleet) -> None:
    """64 chats of 8 turns over 4 system prompts, and 16 few-shot groups of 8, all starting over 40 s."""
    systems = [fleet.fresh(60) for _ in range(4)]
    for index in range(64):
        start = fleet.rng.uniform(0.0, 40.0)
        fleet.clock.after(start, lambda index=index: fleet.chat(systems[index % 4], 8, think_s=3.0))  # type: ignore[misc]
    for _ in range(16):
        shots = fleet.fresh(40)
        for _ in range(8):
            at = fleet.rng.uniform(0.0, 60.0)
            fleet.clock.after(at, lambda shots=shots: fleet.ask([*shots, *fleet.fresh(3)], output=16) and None)  # type: ignore[misc]
    expected = 64 * 8 + 16 * 8
    fleet.clock.run(while_=lambda: len(fleet.done) + fleet.rejected < expected)


def hot(fleet: Fleet, *, requests: int = 400, concurrency: int = 32, system: int = 90, tail: int = 5) -> None:
    """One system prompt for all, `concurrency` clients without pause."""
    shared = fleet.fresh(system)
    left = [requests]

    def client() -> None:
        if left[0]:
            left[0] -= 1
            fleet.ask([*shared, *fleet.fresh(tail)], output=32, then=lambda said: client())

    for _ in range(concurrency):
        fleet.clock.after(fleet.rng.uniform(0.0, 0.5), client)
    fleet.clock.run(while_=lambda: len(fleet.done) + fleet.rejected < requests)


def bound(fleet_of: Callable[[], Fleet], workload: Callable[[Fleet], None]) -> float:
    """Hit rate of the same workload on one worker with an endless cache."""
    fleet = fleet_of()
    workload(fleet)
    return fleet.hit_rate()
