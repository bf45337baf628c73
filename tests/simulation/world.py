"""A fleet on a virtual clock: production router and worker cores, a network that delays and cuts, faults by seed.

Keeps true, checked as it runs: every request ends exactly once; nothing is sent to a worker that the router knows to be
gone; books are never negative and are zero at the end; once feeds have drained, view and truth have the same digest.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.texts import TOKEN_BYTES, encode
from tests.simulation.workers import Answer, SimWorker
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.events import Removed
from trieway.meta_tree.frames import Delta, Frame
from trieway.meta_tree.ids import GroupId, Namespace, Reject, WorkerId
from trieway.router.core import (
    AskBuckets,
    Booking,
    CoreConfig,
    CoreEffect,
    FirstByte,
    Outcome,
    Query,
    Resubscribe,
    RouterCore,
)
from trieway.worker.core.sequence import Request

GROUP = GroupId("g")
MODEL = "m"
ATTEMPTS_MAX = 3


@dataclass
class Flight:
    """One client's request."""

    id: str
    text: bytes
    salt: str | None
    max_new_tokens: int
    attempts: int = 0
    ended: str | None = None
    booking: Booking | None = None
    tried: set[WorkerId] = field(default_factory=set)


@dataclass
class Feed:
    """One router's stream from one worker: in order, delayed, cut now and then."""

    open: bool = False
    generation: int = 0
    queue: deque[Frame] = field(default_factory=deque)


class World:
    """Build, `run`, then look at the sums. The same seed gives the same trace, byte for byte."""

    def __init__(
        self, seed: int, *, workers: int = 3, requests: int = 120, faults: bool = True, canary: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.trace = hashlib.sha256()
        self.key = FleetKey.from_secret(b"simulation")
        self.canary = canary
        self.faults = faults
        self.horizon = 30.0
        self.router = RouterCore(CoreConfig(seed_id=self.key.seed_id), random.Random(self.rng.random()))
        self.workers: dict[WorkerId, SimWorker] = {}
        self.feeds: dict[WorkerId, Feed] = {}
        for index in range(workers):
            worker = SimWorker(
                WorkerId(f"w{index}"), GROUP, self.key, self.rng.choice([1000, 1800, 6000]),
                random.Random(self.rng.random()), self.at,
            )  # fmt: skip
            worker.clock = lambda: self.now
            self.workers[worker.id] = worker
            self.feeds[worker.id] = Feed()
            self.boot(worker)
        self.flights = [self.make(index) for index in range(requests)]
        self._plan_events()

    # The clock.
    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (max(when, self.now), next(self.order), call))

    def after(self, delay: float, call: Callable[[], None]) -> None:
        self.at(self.now + delay, call)

    def note(self, *what: object) -> None:
        self.trace.update(repr((round(self.now, 9), *what)).encode())

    def run(self) -> None:
        steps = 0
        while self.heap:
            when, _, call = heapq.heappop(self.heap)
            self.now = when
            call()
            steps += 1
            if steps % 100 == 0:
                self.check()
            assert steps < 2_000_000, "the world does not come to rest"
        self.check()

    def check(self) -> None:
        self.router.check()
        for worker in self.workers.values():
            if worker.up:
                worker.scheduler.check()
                worker.publisher.check()

    # What happens.
    def make(self, index: int) -> Flight:
        rng = self.rng
        system = [b"system: be brief and kind. " * 6, b"system: the river and the lantern. " * 9][rng.randrange(2)]
        shots = b"".join(b"user: shot %d and the answer " % shot for shot in range(rng.randrange(12)))
        tail = bytes(rng.randrange(97, 123) for _ in range(rng.randrange(1, 300)))
        return Flight(
            id=f"r{index}", text=system + shots + tail, salt=rng.choice([None, None, "pepper"]),
            max_new_tokens=rng.randrange(1, 40),
        )  # fmt: skip

    def _plan_events(self) -> None:
        for flight in self.flights:
            self.at(self.rng.uniform(0, self.horizon), lambda flight=flight: self.send(flight))  # type: ignore[misc]
            if self.rng.random() < 0.08:
                self.at(self.rng.uniform(0, self.horizon + 2), lambda flight=flight: self.hang_up(flight))  # type: ignore[misc]
        for worker in self.workers.values():
            self._beat(worker, self.rng.random())
            if not self.faults:
                continue
            for _ in range(self.rng.randrange(3)):
                self.at(self.rng.uniform(1, self.horizon), lambda worker=worker: self.crash(worker))  # type: ignore[misc]
            for _ in range(self.rng.randrange(5)):
                self.at(self.rng.uniform(1, self.horizon), lambda worker=worker: self.cut(worker))  # type: ignore[misc]
            if self.rng.random() < 0.3:
                self.at(self.rng.uniform(1, self.horizon), lambda worker=worker: worker.up and worker.flush())  # type: ignore[misc]
            if self.rng.random() < 0.3:
                worker.speed = 0.3
        self._tick()

    def _beat(self, worker: SimWorker, phase: float) -> None:
        def beat() -> None:
            if worker.up:
                worker.heartbeat(self.now)
            if self.now < self.horizon + 60:
                self.after(1.0, beat)

        self.after(phase, beat)

    def _tick(self) -> None:
        self.effects(self.router.tick(self.now))
        if self.now < self.horizon + 60:
            self.after(0.25, self._tick)

    # Feeds.
    def boot(self, worker: SimWorker) -> None:
        worker.boot()
        self.note("boot", worker.id, worker.epoch)
        self.after(0.05, lambda: self.subscribe(worker))

    def subscribe(self, worker: SimWorker) -> None:
        feed = self.feeds[worker.id]
        if not worker.up or feed.open:
            return
        if not self.router.has_worker(worker.id) or self.row(worker.id).state == "gone":
            self.router.add_worker(
                worker.id, f"sim://{worker.id}", self.now, model=MODEL, group=GROUP, context_tokens=2048,
                kv_tokens=worker.kv_tokens, page_size=worker.scheduler.config.page_size,
            )  # fmt: skip
        feed.open = True
        feed.generation += 1
        feed.queue.clear()
        generation = feed.generation
        since, epoch = self.router.resume(worker.id)
        worker.subscribers.append(lambda frame: self.deliver(worker, generation, frame))
        for frame in worker.publisher.subscribe(since, epoch):
            self.deliver(worker, generation, frame)

    def deliver(self, worker: SimWorker, generation: int, frame: Frame) -> None:
        feed = self.feeds[worker.id]
        if not feed.open or feed.generation != generation:
            return
        if self.canary and isinstance(frame, Delta) and isinstance(frame.event, Removed):
            frame = Delta(
                number=frame.number,
                event=Removed(namespace_id=frame.event.namespace_id, hashes=(), tier=frame.event.tier),
            )
        feed.queue.append(frame)
        self.after(0.002 + self.rng.random() * 0.01, lambda: self.arrive(worker, generation))

    def arrive(self, worker: SimWorker, generation: int) -> None:
        feed = self.feeds[worker.id]
        if feed.open and feed.generation == generation and feed.queue:
            self.effects(self.router.feed_frame(worker.id, feed.queue.popleft(), self.now))

    def cut(self, worker: SimWorker) -> None:
        """The stream breaks: what was under way is lost, both ends notice, the router comes back."""
        feed = self.feeds[worker.id]
        if not feed.open:
            return
        self.note("cut", worker.id)
        self.close(worker)
        self.router.feed_lost(worker.id, self.now, gone=False)
        self.after(self.rng.uniform(0.01, 4), lambda: self.subscribe(worker))

    def close(self, worker: SimWorker) -> None:
        feed = self.feeds[worker.id]
        feed.open = False
        feed.queue.clear()
        worker.subscribers.clear()

    def crash(self, worker: SimWorker) -> None:
        if not worker.up:
            return
        self.note("crash", worker.id)
        self.close(worker)
        broken = worker.crash()
        self.router.feed_lost(worker.id, self.now, gone=True)
        for answer in broken:
            self.after(0.001, lambda answer=answer: answer(Answer(id="", failed=True)))  # type: ignore[misc]
        self.after(self.rng.uniform(0.5, 5), lambda: self.boot(worker))

    def effects(self, effects: list[CoreEffect]) -> None:
        for effect in effects:
            worker = self.workers[effect.worker]
            if isinstance(effect, AskBuckets) and worker.up:
                frame = worker.publisher.buckets(effect.indices)
                generation = self.feeds[worker.id].generation
                self.after(0.01, lambda frame=frame, g=generation, w=worker: self.deliver(w, g, frame))  # type: ignore[misc]
            if isinstance(effect, Resubscribe):
                self.close(worker)
                self.after(0.01, lambda worker=worker: self.subscribe(worker))  # type: ignore[misc]

    def row(self, worker: WorkerId):  # type: ignore[no-untyped-def]
        return next(row for row in self.router.workers(self.now) if row.worker == worker)

    # Requests.
    def send(self, flight: Flight) -> None:
        if flight.ended:
            return
        chain = self.key.chain(Namespace(salt=flight.salt))
        query = Query(
            model=MODEL, group=GROUP, hashes=chain.hashes(flight.text), prompt_bytes=len(flight.text),
            max_tokens=flight.max_new_tokens, exclude=frozenset(flight.tried),
        )  # fmt: skip
        choice = self.router.choose(query, self.now)
        if isinstance(choice, Reject):
            self.retry(flight, choice.reason)
            return
        assert self.row(choice.worker).state != "gone", "nothing is sent to a worker known to be gone"
        flight.booking = self.router.book(query, choice, self.now)
        flight.attempts += 1
        booking, worker = flight.booking, self.workers[choice.worker]
        self.note("book", flight.id, choice.worker, choice.predicted_tokens)
        self.after(0.001, lambda: self.reach(flight, booking, worker))

    def reach(self, flight: Flight, booking: Booking, worker: SimWorker) -> None:
        if flight.booking is not booking:
            return
        if not worker.up:
            self.failed(flight, worker)
            return
        tokens = encode(flight.text)
        request = Request(
            id=f"{flight.id}.{flight.attempts}", chain=self.key.chain(Namespace(salt=flight.salt)), tokens=tokens,
            canonical=len(tokens), max_new_tokens=flight.max_new_tokens, arrived=self.now,
        )  # fmt: skip
        refused = worker.submit(request, self.now, lambda answer: self.answered(flight, booking, worker, answer))
        if refused is not None:
            self.release(flight, Outcome.BUSY)
            flight.tried.add(worker.id)
            self.retry(flight, refused.reason)

    def answered(self, flight: Flight, booking: Booking, worker: SimWorker, answer: Answer) -> None:
        if flight.booking is not booking:
            return
        if answer.failed:
            self.failed(flight, worker)
            return
        if answer.first is not None:
            self.router.receipt(
                booking.id,
                FirstByte(
                    prompt_tokens=answer.first.prompt_tokens, cached_tokens=answer.first.cached_tokens,
                    epoch=answer.epoch, number=answer.number, queue_ms=answer.first.queue_ms,
                    prefill_ms=answer.first.prefill_ms,
                ),
                self.now,
            )  # fmt: skip
        if answer.done:
            self.release(flight, Outcome.OK)
            self.end(flight, "done")

    def failed(self, flight: Flight, worker: SimWorker) -> None:
        self.release(flight, Outcome.WORKER_ERROR)
        flight.tried.add(worker.id)
        self.retry(flight, "worker_error")

    def retry(self, flight: Flight, reason: str) -> None:
        if flight.attempts >= ATTEMPTS_MAX or len(flight.tried) >= len(self.workers):
            self.end(flight, reason)
        elif reason == "no_worker" or reason == "queues_full":
            flight.attempts += 1
            self.after(0.5, lambda: self.send(flight))
        else:
            self.send(flight)

    def hang_up(self, flight: Flight) -> None:
        if flight.ended:
            return
        if flight.booking is not None:
            worker = self.workers[flight.booking.worker]
            self.release(flight, Outcome.CANCELLED)
            if worker.up:
                worker.cancel(f"{flight.id}.{flight.attempts}", self.now)
        self.end(flight, "hung up")

    def release(self, flight: Flight, outcome: Outcome) -> None:
        assert flight.booking is not None
        self.router.release(flight.booking.id, outcome, self.now)
        flight.booking = None

    def end(self, flight: Flight, how: str) -> None:
        assert flight.ended is None, f"{flight.id} ended twice: {flight.ended}, {how}"
        flight.ended = how
        self.note("end", flight.id, how)


assert len(TOKEN_BYTES) > 256
