"""The worker's end of the feed: numbers its cache's events, keeps the last ones for replay, and can tell all it holds.

Keeps true: numbers rise by one per event within an epoch; the ring is bounded in events and in blocks; the digest is
that of the held set; replay from n, or a snapshot, brings a subscriber to the same set. Does not know streams, clocks
or tokens: one object serves any number of subscribers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION
from trieway.meta_tree.digest import Digest
from trieway.meta_tree.events import CacheEvent, Cleared, Removed, Stored
from trieway.meta_tree.frames import (
    Buckets,
    Delta,
    Frame,
    Heartbeat,
    Hello,
    SnapshotBegin,
    SnapshotEnd,
    WorkerLoad,
)
from trieway.meta_tree.ids import Tier

RUN_BLOCKS_MAX = 4096
"""Longest run in one event: a frame of some 49 KB."""


class Publisher:
    """`epoch` names this incarnation of the worker and never repeats; `number` is the last event's, 0 before any."""

    def __init__(
        self,
        *,
        epoch: int,
        seed_id: str,
        group: str,
        ring_events_max: int = 16_384,
        ring_blocks_max: int = 1 << 20,
    ) -> None:
        self.epoch = epoch
        self.number = 0
        self._seed_id = seed_id
        self._group = group
        self._ring_events_max = ring_events_max
        self._ring_blocks_max = ring_blocks_max
        self._ring: deque[CacheEvent] = deque()  # the event numbered `number` is the last one
        self._ring_blocks = 0
        # Per tier: hash -> (namespace id, parent, usable). Insertion order puts parents before children.
        self._held: tuple[dict[int, tuple[int, int, int]], ...] = tuple({} for _ in Tier)
        self._digest = Digest()

    def publish(self, events: Iterable[CacheEvent]) -> int:
        """Takes what the cache did, in order; returns the last event's number. Events that change nothing get none."""
        for event in events:
            match event:
                case Stored():
                    for run in _cut(event):
                        if self._store(run):
                            self._append(run)
                case Removed():
                    removed = self._remove(event)
                    if removed.hashes:
                        self._append(removed)
                case Cleared():
                    for held in self._held:
                        held.clear()
                    self._digest.clear()
                    self._append(event)
        return self.number

    def _store(self, run: Stored) -> bool:
        held = self._held[run.tier]
        parent, changed = run.parent, False
        for block, usable in zip(run.hashes, run.usable, strict=True):
            old = held.get(block)
            if old is None:
                held[block] = (run.namespace_id, parent, usable)
            elif old[2] != usable:
                held[block] = (*old[:2], usable)
                self._digest.remove(block, run.tier, old[2])
            else:
                parent = block
                continue
            self._digest.add(block, run.tier, usable)
            parent, changed = block, True
        return changed

    def _remove(self, event: Removed) -> Removed:
        held = self._held[event.tier]
        hashes: list[int] = []
        counts: list[int] = []
        for block in event.hashes:
            entry = held.pop(block, None)
            assert entry is not None, "the cache removed a block that it never stored"
            hashes.append(block)
            counts.append(entry[2])
            self._digest.remove(block, event.tier, entry[2])
        return Removed(namespace_id=event.namespace_id, hashes=tuple(hashes), tier=event.tier, usable=tuple(counts))

    def _append(self, event: CacheEvent) -> None:
        self.number += 1
        self._ring.append(event)
        self._ring_blocks += _blocks(event)
        while len(self._ring) > self._ring_events_max or self._ring_blocks > self._ring_blocks_max:
            self._ring_blocks -= _blocks(self._ring.popleft())

    def subscribe(self, since: int | None = None, epoch: int | None = None) -> list[Frame]:
        """How a stream starts: Hello, then the events after `since` of `epoch` if the ring still has them, else all."""
        replay = self.after(since) if since is not None and epoch == self.epoch else None
        return [self._hello(), *(self.snapshot() if replay is None else replay)]

    def _hello(self) -> Hello:
        return Hello(
            wire=WIRE_VERSION,
            block_bytes=BLOCK_BYTES,
            seed_id=self._seed_id,
            group=self._group,
            epoch=self.epoch,
            number=self.number,
        )

    def after(self, number: int) -> list[Frame] | None:
        """Deltas numbered above `number`. None: they fell off the ring, or were never there; send a snapshot."""
        count = self.number - number
        if not 0 <= count <= len(self._ring):
            return None
        newest = reversed(self._ring)
        frames: list[Frame] = [
            Delta(number=self.number - back, event=event) for back, event in zip(range(count), newest, strict=False)
        ]
        frames.reverse()
        return frames

    def snapshot(self) -> list[Frame]:
        """All that is held, as runs, between SnapshotBegin and SnapshotEnd."""
        content = (Delta(number=self.number, event=run) for run in self._runs(range(256)))
        return [SnapshotBegin(number=self.number), *content, SnapshotEnd(number=self.number)]

    def heartbeat(self, load: WorkerLoad) -> Heartbeat:
        """Send it after the Deltas up to `number`, never before."""
        return Heartbeat(number=self.number, epoch=self.epoch, buckets=self._digest.buckets(), load=load)

    def buckets(self, indices: Sequence[int]) -> Buckets:
        """Content of these digest buckets. Raises ValueError for an index outside 0 .. 255 (a peer's mistake)."""
        wanted = sorted(set(indices))
        if wanted and not 0 <= wanted[0] <= wanted[-1] <= 255:
            raise ValueError("digest buckets are numbered 0 to 255")
        runs = tuple(self._runs(frozenset(wanted)))
        return Buckets(number=self.number, indices=tuple(wanted), events=runs)

    def _runs(self, wanted: Container[int]) -> Iterator[Stored]:
        """The held blocks whose bucket is wanted, neighbours joined."""
        for tier, held in zip(Tier, self._held, strict=True):
            namespace_id = first = last = -1
            hashes: list[int] = []
            counts: list[int] = []
            for block, (block_namespace, parent, usable) in held.items():
                if block >> 56 not in wanted:
                    continue
                joins = parent == last and block_namespace == namespace_id and len(hashes) < RUN_BLOCKS_MAX
                if not joins:
                    if hashes:
                        yield _run(namespace_id, first, hashes, counts, tier)
                    namespace_id, first, hashes, counts = block_namespace, parent, [], []
                hashes.append(block)
                counts.append(usable)
                last = block
            if hashes:
                yield _run(namespace_id, first, hashes, counts, tier)

    @property
    def blocks(self) -> int:
        """Blocks held, each tier counted."""
        return sum(map(len, self._held))

    @property
    def digest_total(self) -> int:
        return self._digest.total()

    @property
    def digest_buckets(self) -> tuple[int, ...]:
        """256 sums, as the next heartbeat will tell them."""
        return self._digest.buckets()

    def check(self) -> None:
        """Proves: the digest is that of the held set, the ring is within its bounds and its block count is true."""
        digest = Digest()
        for tier, held in zip(Tier, self._held, strict=True):
            for block, (_, _, usable) in held.items():
                digest.add(block, tier, usable)
        assert digest.buckets() == self._digest.buckets()
        assert self._ring_blocks == sum(map(_blocks, self._ring)) <= self._ring_blocks_max
        assert len(self._ring) <= min(self._ring_events_max, self.number)


def _run(namespace_id: int, parent: int, hashes: list[int], counts: list[int], tier: Tier) -> Stored:
    return Stored(namespace_id=namespace_id, parent=parent, hashes=tuple(hashes), usable=tuple(counts), tier=tier)


def _blocks(event: CacheEvent) -> int:
    return 0 if isinstance(event, Cleared) else len(event.hashes)


def _cut(event: Stored) -> Iterator[Stored]:
    """The event in runs of at most RUN_BLOCKS_MAX."""
    if len(event.hashes) <= RUN_BLOCKS_MAX:
        yield event
        return
    parent = event.parent
    for at in range(0, len(event.hashes), RUN_BLOCKS_MAX):
        hashes = event.hashes[at : at + RUN_BLOCKS_MAX]
        yield _run(event.namespace_id, parent, list(hashes), list(event.usable[at : at + RUN_BLOCKS_MAX]), event.tier)
        parent = hashes[-1]
