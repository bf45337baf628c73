"""A router's follower of one worker: probe, enrol, read the feed, again and again, as router/feeds.py does.

Keeps true: the core hears at once when a worker's process is refused, after some silent probes when it does not answer,
and is told of a new stream only by its Hello; frames of a closed feed are never read. Does not know what frames say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trieway.loadgen.sim.network import Stream
from trieway.meta_tree.frames import Buckets, Frame, Hello, WireError
from trieway.router.core import AskBuckets, CoreEffect, Resubscribe

if TYPE_CHECKING:
    from trieway.loadgen.sim.router import SimRouter
    from trieway.loadgen.sim.worker import SimWorker

SILENT_PROBES_MAX = 3
REFUSED_PROBES = 4
"""A worker whose feed cannot be read is looked at this many times less often."""
SHORT_FEED_S = 0.5
"""Least time between two openings of a feed."""
ASK_TIMEOUT_S = 2.0


class Feed:
    """One stream of frames from a worker to a router."""

    __slots__ = ("_follower", "_stream", "open")

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._stream = Stream(follower.router.network, follower.router.name, follower.worker.id, frail=True)
        self.open = True

    def push(self, frames: list[Frame]) -> None:
        """The worker writes."""
        if self.open:
            self._stream.send(self._read, frames)

    def _read(self, frames: list[Frame]) -> None:
        if self.open:
            self._follower.read(self, frames)

    def reset(self) -> None:
        """The worker's process is dead; over a link that is cut, nobody is told."""
        self._stream.close()
        network = self._follower.router.network
        if not network.is_cut(*self._stream.link):
            network.timeline.after(network.delay(), self._ended)

    def _ended(self) -> None:
        if self.open:
            self._follower.ended()

    def close(self) -> None:
        """The router reads no more."""
        self.open = False
        self._stream.close()


class Follower:
    """Of one worker, for as long as it is in the registry and the router lives."""

    def __init__(self, router: SimRouter, worker: SimWorker) -> None:
        self.router = router
        self.worker = worker
        self.stopped = False
        self.up = False
        self.draining = False
        self.feed: Feed | None = None
        self._card: tuple[int, ...] | None = None
        self._silent = 0
        self._feed_at = float("-inf")
        self._heard_at = 0.0
        self._greeted = False
        self._asked_until = 0.0
        self._turn = 0
        self._look_in(0.0)

    def stop(self) -> None:
        """The worker left the registry, or the router died."""
        self.stopped = True
        self._turn += 1
        self._close()

    def suspect(self) -> None:
        """Something went wrong there: look now unless a feed is being read."""
        if self.feed is None:
            self._look_in(0.0)

    def watch(self) -> None:
        """Called a few times a second: a feed that says nothing is taken for lost."""
        if self.feed is not None:
            now = self.router.network.timeline.now
            silence = now - self._heard_at
            if silence > (self.router.setup.heartbeat_timeout_s if self._greeted else 2.0 * SHORT_FEED_S):
                self.ended()

    # Looking.

    def _look_in(self, delay: float) -> None:
        self._turn += 1
        self.router.network.timeline.after(delay, self._look, self._turn)

    def _look(self, turn: int) -> None:
        if self.stopped or turn != self._turn:
            return
        network, setup = self.router.network, self.router.setup
        if network.is_cut(self.router.name, self.worker.id):
            network.timeline.after(setup.connect_timeout_s, self._unanswered, turn, False)
        else:
            network.timeline.after(2.0 * network.delay(), self._probed, turn)

    def _probed(self, turn: int) -> None:
        if self.stopped or turn != self._turn:
            return
        if not self.worker.up:
            self._unanswered(turn, True)
            return
        self._silent = 0
        wait = self._feed_at + SHORT_FEED_S - self.router.network.timeline.now
        if wait > 0.0:
            self._look_in(wait)
        else:
            self._follow()

    def _unanswered(self, turn: int, refused: bool) -> None:
        if self.stopped or turn != self._turn:
            return
        self._silent += 1
        if refused or self._silent >= SILENT_PROBES_MAX:
            self._away()
            self.router.lose(self.worker.id)
        self._look_in(self.router.setup.probe_interval_s)

    def _away(self) -> None:
        """Not to be sent anything until it is back."""
        self.up = False
        self.router.worker_gone(self.worker.id)

    def _follow(self) -> None:
        router, worker = self.router, self.worker
        setup = worker.setup
        card = (worker.epoch, setup.kv_tokens, setup.page_size, setup.context_max)
        if not self.up or self._card != card:
            self.up, self._card = True, card
            router.enrol(worker)
            if self.draining:
                router.core.drain(worker.id, router.clock.now())
        self._feed_at = self._heard_at = router.network.timeline.now
        self._greeted = False
        self.feed = Feed(self)
        since, epoch = router.core.resume(worker.id)
        worker.subscribe(self.feed, since, epoch)

    # Reading.

    def read(self, feed: Feed, frames: Iterable[Frame]) -> None:
        """Frames came on the feed. Without its Hello nothing on it counts."""
        for frame in frames:
            if isinstance(frame, Hello):
                self._greeted = True
            if self._greeted:
                self._heard_at = self.router.network.timeline.now
            self._apply(frame)
            if self.feed is not feed:
                return

    def _apply(self, frame: Frame) -> None:
        try:
            self.perform(self.router.frame(self.worker.id, frame))
        except WireError:
            self._close()
            self.router.feed_lost(self.worker.id)
            self._away()
            self._look_in(self.router.setup.probe_interval_s * REFUSED_PROBES)

    def perform(self, effects: Iterable[CoreEffect]) -> None:
        """What the core wants done about this worker's feed."""
        for effect in effects:
            if isinstance(effect, AskBuckets):
                self._ask(effect.indices)
            elif isinstance(effect, Resubscribe) and self.feed is not None:
                self.ended()

    def _ask(self, indices: tuple[int, ...]) -> None:
        network = self.router.network
        now = network.timeline.now
        if now < self._asked_until:
            return
        self._asked_until = now + ASK_TIMEOUT_S
        if not network.is_cut(self.router.name, self.worker.id) and not network.unlucky(network.setup.loss):
            network.timeline.after(network.delay(), self._answer, indices, self.worker.epoch)

    def _answer(self, indices: tuple[int, ...], epoch: int) -> None:
        worker, network = self.worker, self.router.network
        if worker.up and worker.epoch == epoch and not network.is_cut(self.router.name, worker.id):
            network.timeline.after(network.delay(), self._answered, worker.buckets(indices))

    def _answered(self, frame: Buckets) -> None:
        if not self.stopped:
            self._asked_until = 0.0
            self._apply(frame)

    def ended(self) -> None:
        """The stream is over: look at once."""
        self._close()
        self.router.feed_lost(self.worker.id)
        self._look_in(0.0)

    def _close(self) -> None:
        if self.feed is not None:
            self.feed.close()
            self.worker.unsubscribe(self.feed)
            self.feed = None
