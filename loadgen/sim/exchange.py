"""One connection of a router to a worker: a request goes out, a first token and an end come back, or it breaks.

Keeps true: the router's side hears of exactly one end (done, refused, broken), and of none once it has closed; the
worker's side is told when the router has closed. Does not know what either makes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trieway.loadgen.sim.network import Network, Stream
from trieway.loadgen.sim.values import Done, First

if TYPE_CHECKING:
    from trieway.loadgen.sim.flight import Flight
    from trieway.loadgen.sim.worker import SimWorker

RETRANSMIT_S = 1.0
"""How often the end of a connection is told again while its link is cut."""


class Side(Protocol):
    """The router's side of an exchange."""

    name: str

    def on_first(self, exchange: Exchange, first: First) -> None: ...

    def on_done(self, exchange: Exchange, done: Done) -> None: ...

    def on_refused(self, exchange: Exchange, reason: str) -> None: ...

    def on_broken(self, exchange: Exchange, why: str) -> None: ...


class Exchange:
    """`open` sends the request; `close` is the router's hanging up."""

    __slots__ = ("_back", "_network", "_side", "ask", "closed", "flight", "id", "worker")

    def __init__(self, name: str, flight: Flight, network: Network, worker: SimWorker, side: Side) -> None:
        self.id = name
        self.flight = flight
        self.ask = flight.ask
        self.worker = worker
        self.closed = False
        self._network = network
        self._side = side
        self._back = Stream(network, side.name, worker.id)

    def open(self, connect_timeout_s: float) -> None:
        """Connects and sends."""
        network = self._network
        if network.is_cut(*self._back.link):
            network.timeline.after(connect_timeout_s, self._break, "connect_timeout")
            return
        network.timeline.after(network.delay(), self._reach)
        if network.unlucky(network.setup.loss):
            network.timeline.after(network.rng.random(), self._break, "lost")

    def _reach(self) -> None:
        if self.closed:
            return
        worker = self.worker
        if worker.up:
            request_s = worker.setup.cost.request_s
            if request_s:
                self._network.timeline.after(request_s, self._read, worker.epoch)
            else:
                worker.submit(self)
        else:
            self._network.timeline.after(self._network.delay(), self._break, "refused")

    def _read(self, epoch: int) -> None:
        if self.closed:
            return
        if self.worker.up and self.worker.epoch == epoch:
            self.worker.submit(self)
        else:
            self._network.timeline.after(self._network.delay(), self._break, "reset")

    # What the worker says.

    def say(self, what: First | Done) -> None:
        """The worker's next words, on the stream."""
        if not self.closed:
            self._back.send(self._first if isinstance(what, First) else self._done, what)

    def refuse(self, reason: str) -> None:
        """The worker will not serve it."""
        if not self.closed:
            self._back.send(self._refused, reason)

    def reset(self) -> None:
        """The worker's process is dead: its system says so until it gets through."""
        network = self._network
        self._back.close()
        if network.is_cut(*self._back.link):
            network.timeline.after(RETRANSMIT_S, self.reset)
        else:
            network.timeline.after(network.delay(), self._break, "reset")

    # What the router hears.

    def _first(self, first: First) -> None:
        if not self.closed:
            self._side.on_first(self, first)

    def _done(self, done: Done) -> None:
        if not self.closed:
            self.closed = True
            self._side.on_done(self, done)

    def _refused(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._side.on_refused(self, reason)

    def _break(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._side.on_broken(self, why)

    def lose(self) -> None:
        """The router holds the worker for dead."""
        self._break("lost")

    def close(self) -> None:
        """The router hangs up; the worker learns of it, unless the link is cut: then its answer finds nobody."""
        if self.closed:
            return
        self.closed = True
        self._back.close()
        network = self._network
        worker = self.worker
        network.timeline.after(network.delay(), self._gone, worker.epoch)

    def _gone(self, epoch: int) -> None:
        if self._network.is_cut(*self._back.link):
            self._network.timeline.after(RETRANSMIT_S, self._gone, epoch)
        elif self.worker.up and self.worker.epoch == epoch:
            self.worker.cancel(self.id)
