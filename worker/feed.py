"""The feed's shell: publishes the cache's events and streams frames to every router that listens.

Keeps true: frames reach each subscriber in number order; what arrives while a subscriber writes is merged into its next
write; a subscriber that is slower than the ring gets a new snapshot, never a gap; `settle` returns once every listening
router has been written all that is published (or after a bound, for a stuck one), so that a request's events are on the
feed before its last byte. Lives on the event loop's thread. Does not know what a block is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from trieway.meta_tree.events import CacheEvent
from trieway.meta_tree.frames import WorkerLoad, encode
from trieway.meta_tree.publisher import Publisher
from trieway.serving.errors import Unavailable

HEARTBEAT_S = 1.0
SUBSCRIBERS_MAX = 64
SETTLE_MAX_S = 0.25
"""Longest wait of an answer's last byte for a router that does not read its feed."""


class _Subscriber:
    __slots__ = ("beats", "late", "sent", "wake")

    def __init__(self, beats: int) -> None:
        self.wake = asyncio.Event()
        self.sent = -1
        self.beats = beats
        self.late = False


class Feed:
    """`publisher` numbers and keeps the events; `load` gives the worker's load for heartbeats."""

    def __init__(
        self, publisher: Publisher, load: Callable[[], WorkerLoad], *, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self.publisher = publisher
        self._load = load
        self._heartbeat_s = heartbeat_s
        self._subscribers: set[_Subscriber] = set()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def subscribers(self) -> int:
        """Routers that listen now."""
        return len(self._subscribers)

    def start(self) -> None:
        """Begins the heartbeats, on the running loop."""
        self._timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._tick)

    def close(self) -> None:
        """Ends every stream after what is published has been written."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake_all()

    def publish(self, events: Sequence[CacheEvent]) -> int:
        """Numbers the events and hands them to all streams; the last number."""
        if events:
            self.publisher.publish(events)
            self._wake_all()
        return self.publisher.number

    def beat(self) -> None:
        """A heartbeat to every router now: the load has changed in a way that cannot wait."""
        self._beats += 1
        self._wake_all()

    async def settle(self) -> None:
        """Waits until every subscriber has been written all that is published so far, at most SETTLE_MAX_S.

        A subscriber that let this bound pass is not waited for again before it has caught up.
        """
        number = self.publisher.number
        if self._slowest() >= number:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((number, written))
        try:
            async with asyncio.timeout(SETTLE_MAX_S):
                await written
        except TimeoutError:
            for subscriber in self._subscribers:
                subscriber.late = subscriber.late or subscriber.sent < number
            self._release_waiters()
        finally:
            self._waiters = [waiter for waiter in self._waiters if waiter[1] is not written]

    async def stream(self, since: int | None, epoch: int | None) -> AsyncGenerator[bytes, None]:
        """One router's stream, until the feed closes: Hello, a replay or a snapshot, then deltas and heartbeats.

        Raises:
            Unavailable: SUBSCRIBERS_MAX routers listen already.
        """
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            raise Unavailable(f"{SUBSCRIBERS_MAX} routers listen to this worker already", code="feed_full")
        me = _Subscriber(self._beats - 1)
        self._subscribers.add(me)
        try:
            frames = self.publisher.subscribe(since, epoch)
            while True:
                number = self.publisher.number
                if me.beats != self._beats:
                    me.beats = self._beats
                    frames.append(self.publisher.heartbeat(self._load()))
                if frames:
                    yield b"".join(map(encode, frames))
                me.sent = number
                me.late = me.late and number < self.publisher.number
                self._release_waiters()
                if number == self.publisher.number and me.beats == self._beats:
                    if self._closed:
                        return
                    await me.wake.wait()
                me.wake.clear()
                later = self.publisher.after(me.sent)
                frames = list(self.publisher.snapshot() if later is None else later)
        finally:
            self._subscribers.discard(me)
            self._release_waiters()

    def buckets(self, indices: Sequence[int]) -> bytes:
        """The one frame that holds these buckets' blocks."""
        return encode(self.publisher.buckets(indices))

    def check(self) -> None:
        """Proves the publisher's sums and this shell's own bounds."""
        self.publisher.check()
        assert len(self._subscribers) <= SUBSCRIBERS_MAX
        assert all(subscriber.sent <= self.publisher.number for subscriber in self._subscribers)

    def _tick(self) -> None:
        self.beat()
        self.start()

    def _wake_all(self) -> None:
        for subscriber in self._subscribers:
            subscriber.wake.set()

    def _slowest(self) -> int:
        waited_for = (subscriber.sent for subscriber in self._subscribers if not subscriber.late)
        return min(waited_for, default=self.publisher.number)

    def _release_waiters(self) -> None:
        if self._waiters:
            slowest = self._slowest()
            for number, written in self._waiters:
                if slowest >= number and not written.done():
                    written.set_result(None)
