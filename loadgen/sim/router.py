"""A simulated router: the production core, its followers, and each request's way through attempts, as the shell does.

Keeps true: at most `attempts_max` workers see a request, each once, and only while the client has seen nothing; every
booking is released once, with what happened. `open` lists the bookings that some flight owns, `gone` the workers that
the core was told are dead: checks.py compares both with what the core does. Does not know the network's faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from trieway.loadgen.sim.clock import LocalClock
from trieway.loadgen.sim.config import RouterSetup
from trieway.loadgen.sim.exchange import Exchange
from trieway.loadgen.sim.feeds import Follower
from trieway.loadgen.sim.flight import Flight
from trieway.loadgen.sim.network import Network
from trieway.loadgen.sim.values import Done, End, First
from trieway.loadgen.sim.worker import SimWorker
from trieway.meta_tree.frames import Frame, Hello
from trieway.meta_tree.ids import GroupId, Reject, WorkerId
from trieway.router.core import CoreConfig, CoreEffect, FirstByte, Outcome, Query, Rejection, RouterCore

TICK_S = 0.25
MODEL = "m"
GROUP = GroupId("g")


class SimRouter:
    """One router under one name; `start` after `stop` is a new process that knows nothing."""

    def __init__(
        self, name: str, setup: RouterSetup, seed_id: str, network: Network, rng: random.Random,
        note: Callable[..., None],
    ) -> None:  # fmt: skip
        self.name = name
        self.setup = setup
        self.network = network
        self.clock = LocalClock(network.timeline)
        self.up = False
        self.touched = False
        self.followers: dict[WorkerId, Follower] = {}
        self.open: dict[int, Flight] = {}
        self.flights: set[Flight] = set()
        self.gone: set[WorkerId] = set()
        self.core: RouterCore
        self._awaited: dict[Exchange, float] = {}  # until when a first token must have come
        self._seed_id = seed_id
        self._rng = rng
        self._note = note
        self._life = 0
        self._number = 0

    # Life.

    def start(self, workers: Iterable[SimWorker]) -> None:
        """A new process that is told of these workers."""
        assert not self.up
        self.up = self.touched = True
        self._life += 1
        config = CoreConfig(seed_id=self._seed_id, policy=self.setup.policy, tree_bytes_max=self.setup.tree_bytes_max)
        self.core = RouterCore(config, random.Random(self._rng.random()))
        self.gone = set()
        self.followers = {}
        for worker in workers:
            self.follow(worker)
        self._note("start", self.name)
        self.network.timeline.after(TICK_S, self._tick, self._life)

    def stop(self) -> None:
        """The process is dead: its clients and its workers see their connections break."""
        self._note("stop", self.name)
        self.up, self.touched = False, True
        self._life += 1
        for follower in self.followers.values():
            follower.stop()
        flights = sorted(self.flights, key=lambda flight: flight.ask.id)
        self.open, self.flights, self._awaited = {}, set(), {}
        for flight in flights:
            flight.ended = True
            if flight.exchange is not None:
                flight.exchange.close()
            flight.client.on_end(flight, End.ROUTER_LOST, None)

    def _tick(self, life: int) -> None:
        if life != self._life:
            return
        self.touched = True
        for effect in self.core.tick(self.clock.now()):
            follower = self.followers.get(effect.worker)
            if follower is not None:
                follower.perform([effect])
        for follower in list(self.followers.values()):
            follower.watch()
        self._end_late()
        self.network.timeline.after(TICK_S, self._tick, life)

    # The registry.

    def follow(self, worker: SimWorker) -> None:
        """The worker is in the registry."""
        self.followers[worker.id] = Follower(self, worker)

    def drain(self, worker: WorkerId) -> None:
        """Nothing new for it."""
        self.followers[worker].draining = True
        if self.core.has_worker(worker):
            self.touched = True
            self.core.drain(worker, self.clock.now())

    def remove(self, worker: WorkerId) -> None:
        """It leaves the registry; what is with it ends as it may."""
        self.touched = True
        self.followers.pop(worker).stop()
        self.gone.discard(worker)
        if self.core.has_worker(worker):
            self.core.remove_worker(worker, self.clock.now())

    def busy_with(self, worker: WorkerId) -> bool:
        """Whether some request is there."""
        return any(flight.exchange is not None and flight.worker == worker for flight in self.flights)

    # What followers tell.

    def enrol(self, worker: SimWorker) -> None:
        """It is up, with this card."""
        self.touched = True
        setup = worker.setup
        self.core.add_worker(
            worker.id,
            f"sim://{worker.id}",
            self.clock.now(),
            model=MODEL,
            group=GROUP,
            context_tokens=setup.context_max,
            kv_tokens=setup.kv_tokens,
            page_size=setup.page_size,
        )
        self.gone.discard(worker.id)

    def frame(self, worker: WorkerId, frame: Frame) -> list[CoreEffect]:
        """A frame came."""
        self.touched = True
        if isinstance(frame, Hello):
            self.gone.discard(worker)
        return self.core.feed_frame(worker, frame, self.clock.now())

    def feed_lost(self, worker: WorkerId) -> None:
        """Its feed ended, the process may live."""
        self.touched = True
        self.core.feed_lost(worker, self.clock.now(), gone=False)

    def worker_gone(self, worker: WorkerId) -> None:
        """Its process is dead, or cannot be used."""
        self.touched = True
        if self.core.has_worker(worker):
            self.gone.add(worker)
            self.core.feed_lost(worker, self.clock.now(), gone=True)

    def lose(self, worker: WorkerId) -> None:
        """Whatever waits for it stops waiting."""
        lost = [flight.exchange for flight in self.flights if flight.worker == worker and flight.exchange is not None]
        for exchange in sorted(lost, key=lambda exchange: exchange.id):
            exchange.lose()

    # Requests.

    def serve(self, flight: Flight) -> None:
        """A request came in."""
        self.flights.add(flight)
        self._next(flight)

    def _next(self, flight: Flight) -> None:
        """Another worker, if there is one and the client has seen nothing."""
        self.touched = True
        if flight.attempts >= self.setup.attempts_max:
            self._end(flight, flight.failed or End.WORKER_ERROR)
            return
        ask, core, now = flight.ask, self.core, self.clock.now()
        query = Query(
            model=MODEL,
            group=GROUP,
            hashes=ask.hashes,
            prompt_bytes=len(ask.prompt),
            priority=ask.priority,
            session=ask.session,
            max_tokens=ask.max_tokens,
            exclude=flight.tried,
        )
        choice = core.choose(query, now)
        if isinstance(choice, Reject):
            end = End(choice.reason)
            self._end(flight, end if flight.failed is None or choice.reason == Rejection.QUEUES_FULL else flight.failed)
            return
        worker = choice.worker
        assert worker not in self.gone, f"{ask.id} is sent to {worker}, which is known to be gone"
        assert worker not in flight.tried, f"{ask.id} is sent to {worker} again"
        assert worker in self.followers, f"{ask.id} is sent to {worker}, which has left"
        flight.booking = booking = core.book(query, choice, now)
        self.open[booking.id] = flight
        flight.attempts += 1
        flight.worker, flight.predicted_tokens = worker, choice.predicted_tokens
        self._note("book", ask.id, worker, choice.predicted_tokens, choice.reason)
        self._number += 1
        name = f"{ask.id}/{self.name}.{self._number}"
        flight.exchange = Exchange(name, flight, self.network, self.followers[worker].worker, self)
        flight.exchange.open(self.setup.connect_timeout_s)
        self._awaited[flight.exchange] = self.network.timeline.now + self.setup.first_byte_timeout_s

    def hang_up(self, flight: Flight) -> None:
        """The client is gone; perhaps before its request came, or after its end."""
        if flight in self.flights:
            self._release(flight, Outcome.CANCELLED)
            self._end(flight, End.HUNG_UP)

    def _end_late(self) -> None:
        """No first token in time (or, not streamed, no answer): nobody else is tried."""
        now = self.network.timeline.now
        late = []
        for exchange, until in self._awaited.items():  # the oldest first: all wait equally long
            if until > now:
                break
            late.append(exchange.flight)
        for flight in late:
            self._release(flight, Outcome.TIMEOUT)
            self._end(flight, End.TIMEOUT)

    # What exchanges tell.

    def on_first(self, exchange: Exchange, first: First) -> None:
        """The worker's first token, with its receipt."""
        self.touched = True
        flight, token = exchange.flight, first.token
        assert flight.booking is not None
        assert 0 <= token.cached_tokens < token.prompt_tokens, f"{flight.ask.id}: more reused than can be"
        flight.prompt_tokens, flight.cached_tokens = token.prompt_tokens, token.cached_tokens
        receipt = FirstByte(
            prompt_tokens=token.prompt_tokens,
            cached_tokens=token.cached_tokens,
            epoch=first.epoch,
            number=first.number,
            queue_ms=token.queue_ms,
            prefill_ms=token.prefill_ms,
        )
        self.core.receipt(flight.booking.id, receipt, self.clock.now())
        if flight.ask.stream:
            flight.said = True
            del self._awaited[exchange]
            self.network.timeline.after(self.network.delay(), flight.client.on_first, flight)

    def on_done(self, exchange: Exchange, done: Done) -> None:
        """The whole answer is here."""
        flight = exchange.flight
        self._release(flight, Outcome.OK)
        self._end(flight, End.OK, done)

    def on_refused(self, exchange: Exchange, reason: str) -> None:
        """A full queue is no fault of the worker's, a prompt that it cannot take is the client's."""
        flight = exchange.flight
        if reason == "queue_full":
            self._release(flight, Outcome.BUSY)
            self._again(flight, End.QUEUES_FULL)
        else:
            self._release(flight, Outcome.CLIENT_ERROR)
            self._end(flight, End.TOO_LONG)

    def on_broken(self, exchange: Exchange, why: str) -> None:
        """Somebody else may do better while the client has seen nothing."""
        flight = exchange.flight
        worker = flight.worker
        self._release(flight, Outcome.WORKER_ERROR)
        if worker in self.followers:
            self.followers[worker].suspect()
        if flight.said:
            self._end(flight, End.BROKEN_STREAM)
        else:
            self._again(flight, End.WORKER_ERROR)

    def _again(self, flight: Flight, failed: End) -> None:
        assert flight.worker is not None
        flight.tried |= {flight.worker}
        flight.failed = failed
        flight.cached_tokens = flight.prompt_tokens = None
        self._next(flight)

    def _release(self, flight: Flight, outcome: Outcome) -> None:
        self.touched = True
        assert flight.booking is not None
        assert flight.exchange is not None
        self._awaited.pop(flight.exchange, None)
        flight.exchange.close()
        self.core.release(flight.booking.id, outcome, self.clock.now())
        del self.open[flight.booking.id]
        flight.booking = flight.exchange = None

    def _end(self, flight: Flight, end: End, done: Done | None = None) -> None:
        assert not flight.ended, f"{flight.ask.id} ends twice at {self.name}"
        assert flight.booking is None, f"{flight.ask.id} ends with a booking"
        flight.ended = True
        self.flights.remove(flight)
        self._note("end", flight.ask.id, end)
        self.network.timeline.after(self.network.delay(), flight.client.on_end, flight, end, done)
