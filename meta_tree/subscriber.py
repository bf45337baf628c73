"""The router's end of one worker's feed: order, gaps, resume, and the comparison of digests.

Keeps true: an event is applied once and in order, or the stream is asked for again; an old epoch's blocks are dropped
before anything of a new one is applied; at each heartbeat the digests are compared as soon as its number is applied, so
drift is seen within one heartbeat and healed bucket by bucket. Does not know the view (effects tell what to do to it)
nor sockets. Effects of one call must be performed before the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION
from trieway.meta_tree.digest import Digest
from trieway.meta_tree.events import CacheEvent, Cleared, Replaced, ViewEvent, within
from trieway.meta_tree.frames import (
    Buckets,
    Delta,
    Frame,
    Heartbeat,
    Hello,
    SnapshotBegin,
    SnapshotEnd,
    WireError,
    WorkerLoad,
)

ASKED_BUCKETS_MAX = 64
"""More buckets than this differ: a snapshot is cheaper than their content one by one."""
ASKED_EVENTS_MAX = 4096
"""Events remembered while an answer with buckets is on its way, to be applied again on top of it."""
ASK_WAIT_S = 3.0
SNAPSHOT_WAIT_S = 30.0
"""At least this long between two snapshots asked for because of drift: a standing disagreement must not flood."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Apply:
    """Give `event` to the view, as this worker's. A Replaced heals drift: tell `Subscriber.healed` what it changed."""

    event: ViewEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class Reset:
    """Drop all that the view holds of this worker."""

    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AskBuckets:
    """Fetch the content of these buckets and hand the Buckets frame to `handle`."""

    indices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    load: WorkerLoad


@dataclass(frozen=True, kw_only=True, slots=True)
class Resubscribe:
    """Drop this stream and open another with `resume`. Frames before its Hello are ignored."""

    reason: str


SubscriberEffect: TypeAlias = Apply | Reset | AskBuckets | LoadReport | Resubscribe


class Subscriber:
    """`digest` gives the view's digest of this worker. `group`: the one that the handshake named; None takes any."""

    def __init__(self, seed_id: str, digest: Callable[[], Digest], group: str | None = None) -> None:
        self._seed_id = seed_id
        self._group = group
        self._digest = digest
        self.epoch: int | None = None
        self.number: int | None = None
        """Last event applied; None: nothing complete is known of this epoch."""
        self.drift: bool | None = None
        """Whether the last comparison found a difference; None: not compared since the last reset."""
        self.heard_at: float | None = None
        self.gaps = 0
        self.snapshots = 0
        self.resyncs = 0
        self.drift_blocks = 0
        self._known_number = 0
        self._greeted = False
        self._snapshot: int | None = None
        self._heartbeat: Heartbeat | None = None
        self._asked_at: float | None = None
        self._asked: frozenset[int] = frozenset()
        self._asked_events: list[tuple[int, CacheEvent]] | None = []
        self._replaced_to = 0
        self._drift_snapshot_at: float | None = None

    @property
    def resume(self) -> tuple[int | None, int | None]:
        """(since, epoch) to subscribe with; (None, None) asks for a snapshot."""
        return (None, None) if self.number is None else (self.number, self.epoch)

    @property
    def lag_events(self) -> int:
        """Events that the worker is known to have published and that are not applied yet."""
        return max(0, self._known_number - (self.number or 0))

    @property
    def synced(self) -> bool:
        """A whole snapshot is applied and no gap is known."""
        return self.number is not None and self._greeted

    def healed(self, blocks: int) -> None:
        """Says how many blocks a Replaced changed in the view."""
        self.drift_blocks += blocks

    def disconnected(self) -> None:
        """The stream ended. What is applied stays; the next stream must begin with Hello."""
        self._greeted = False
        self._snapshot = self._heartbeat = None

    def handle(self, frame: Frame, now: float) -> list[SubscriberEffect]:
        """What to do about one frame. Raises WireError where the peer must be refused."""
        self.heard_at = now
        if isinstance(frame, Hello):
            return self._hello(frame)
        if not self._greeted:
            return []
        effects = self._compare_pending(now)
        if effects and isinstance(effects[-1], Resubscribe):
            return effects
        match frame:
            case Delta():
                effects += self._delta(frame)
            case Heartbeat():
                effects += self._beat(frame, now)
            case SnapshotBegin():
                effects += self._begin(frame)
            case SnapshotEnd():
                self._end(frame)
            case Buckets():
                effects += self._buckets(frame)
        return effects

    def _hello(self, frame: Hello) -> list[SubscriberEffect]:
        if frame.wire != WIRE_VERSION:
            raise WireError(f"the worker speaks wire {frame.wire}, this router {WIRE_VERSION}: run one version on both")
        if frame.block_bytes != BLOCK_BYTES:
            raise WireError(f"the worker hashes blocks of {frame.block_bytes} bytes, this router of {BLOCK_BYTES}")
        if frame.seed_id != self._seed_id:
            raise WireError("the worker has another fleet secret: give both the same fleet_secret_file")
        if self._group is not None and frame.group != self._group:
            raise WireError("the worker's group is not the one of its handshake: ask /cache/model again")
        self.disconnected()
        self._greeted = True
        self._known_number = frame.number
        if frame.epoch == self.epoch:
            return []
        self.epoch = frame.epoch
        self._forget()
        return [Reset(epoch=frame.epoch)]

    def _forget(self) -> None:
        self.number = self.drift = self._asked_at = None
        self._replaced_to = 0

    def _begin(self, frame: SnapshotBegin) -> list[SubscriberEffect]:
        assert self.epoch is not None
        self._forget()
        self._snapshot = frame.number
        return [Reset(epoch=self.epoch)]

    def _end(self, frame: SnapshotEnd) -> None:
        if self._snapshot != frame.number:
            raise WireError("a snapshot ends that did not begin")
        self.number, self._snapshot = frame.number, None
        self.snapshots += 1

    def _delta(self, frame: Delta) -> list[SubscriberEffect]:
        if self._snapshot is not None:
            if frame.number != self._snapshot:
                raise WireError("an event came in the middle of a snapshot")
            return [Apply(event=frame.event)]
        if self.number is not None and frame.number <= self.number:
            return []
        if self.number is None or frame.number != self.number + 1:
            return self._gap(f"event {frame.number} after {self.number}")
        self.number = frame.number
        self._known_number = max(self._known_number, frame.number)
        if self._asked_at is not None and self._asked_events is not None:
            self._asked_events.append((frame.number, frame.event))
            if len(self._asked_events) > ASKED_EVENTS_MAX:
                self._asked_events = None
        return [Apply(event=frame.event)]

    def _gap(self, what: str) -> list[SubscriberEffect]:
        self.gaps += 1
        self.disconnected()
        return [Resubscribe(reason=f"gap: {what}")]

    def _beat(self, frame: Heartbeat, now: float) -> list[SubscriberEffect]:
        effects: list[SubscriberEffect] = [LoadReport(load=frame.load)]
        if frame.epoch != self.epoch:
            return effects + self._gap("a heartbeat of another epoch")
        late = self._heartbeat  # its number was never reached, and a second one has passed
        if late is not None or (self.number is None and self._snapshot is None):
            return effects + self._gap(f"events up to {frame.number} are announced but did not come")
        self._known_number = max(self._known_number, frame.number)
        if self._snapshot is None:
            self._heartbeat = frame
        return effects + self._compare_pending(now)

    def _compare_pending(self, now: float) -> list[SubscriberEffect]:
        """Compares once the heartbeat's number is applied, and performed: so not in the call that applies it."""
        frame = self._heartbeat
        if frame is None or self.number is None or self.number < frame.number:
            return []
        self._heartbeat = None
        if self.number > frame.number or frame.number < self._replaced_to:
            return []
        differing = self._digest().differing(frame.buckets)
        self.drift = bool(differing)
        return self._ask(differing, now) if differing else []

    def _ask(self, differing: tuple[int, ...], now: float) -> list[SubscriberEffect]:
        if self._asked_at is not None and now - self._asked_at < ASK_WAIT_S:
            return []
        rested = self._drift_snapshot_at is None or now - self._drift_snapshot_at >= SNAPSHOT_WAIT_S
        if len(differing) > ASKED_BUCKETS_MAX and rested:
            self._drift_snapshot_at = now
            self.resyncs += 1
            self.disconnected()
            self._forget()
            self.drift = True
            return [Resubscribe(reason=f"drift in {len(differing)} of 256 buckets")]
        indices = differing[:ASKED_BUCKETS_MAX]
        self.resyncs += 1
        self._asked_at, self._asked, self._asked_events = now, frozenset(indices), []
        return [AskBuckets(indices=indices)]

    def _buckets(self, frame: Buckets) -> list[SubscriberEffect]:
        """Takes the content as of its number; what happened in it since is applied once more on top (idempotent)."""
        if self._asked_at is None or self.number is None or frozenset(frame.indices) != self._asked:
            return []
        self._asked_at = None
        since = self._asked_events
        if since is None:
            return []  # too much happened meanwhile: the next heartbeat asks again
        self._replaced_to = max(self._replaced_to, frame.number)
        later = [event for number, event in since if number > frame.number]
        if any(isinstance(event, Cleared) for event in later):
            return []  # everything named here is gone already
        again = [Apply(event=part) for event in later for part in within(event, self._asked)]
        return [Apply(event=Replaced(indices=frame.indices, events=frame.events)), *again]

    def check(self) -> None:
        """Proves: a snapshot and a number exclude each other, and what is remembered is within its bounds."""
        assert self._snapshot is None or self.number is None
        assert self.number is None or self.epoch is not None
        assert self._asked_events is None or len(self._asked_events) <= ASKED_EVENTS_MAX
        assert len(self._asked) <= ASKED_BUCKETS_MAX
