"""The set of text blocks that the cache announces, and the events that lead a listener to the same set.

A block may be held by several tree nodes (two token paths can spell the same bytes): it is Stored with the first copy,
Removed with the last. With several copies the least `usable` is announced: the number that every one of them gives, and
the one choice that never falls along a path. Stored is said again when it changes.
Keeps true: replaying the events gives exactly `announced`; a block's parent is stored before it. Does not know tokens
or nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trieway.meta_tree.events import CacheEvent, Cleared, Removed, Stored
from trieway.meta_tree.ids import Tier


class _Run:
    """A Stored (usable is a list) or a Removed (None) that may still grow."""

    __slots__ = ("hashes", "namespace_id", "parent", "usable")

    def __init__(self, namespace_id: int, parent: int, usable: list[int] | None) -> None:
        self.namespace_id = namespace_id
        self.parent = parent
        self.hashes: list[int] = []
        self.usable = usable

    def event(self) -> CacheEvent:
        if self.usable is None:
            return Removed(namespace_id=self.namespace_id, hashes=tuple(self.hashes), tier=Tier.DEVICE)
        return Stored(
            namespace_id=self.namespace_id,
            parent=self.parent,
            hashes=tuple(self.hashes),
            usable=tuple(self.usable),
            tier=Tier.DEVICE,
        )


class Announcer:
    """Counts copies per block and keeps the events until they are drained. The caller drains after every step."""

    def __init__(self) -> None:
        self._announced: dict[int, int] = {}
        self._copies: dict[int, list[int]] = {}  # only blocks with two copies or more: the usable of each
        self._pending: list[_Run | Cleared] = []

    @property
    def announced(self) -> Mapping[int, int]:
        """hash -> usable of every block that a listener holds once it has applied all events."""
        return self._announced

    def copies(self, block: int) -> Sequence[int]:
        """The usable of every copy of a block, in no order that matters."""
        if block in self._copies:
            return self._copies[block]
        return [self._announced[block]] if block in self._announced else []

    def attach(self, namespace_id: int, parent: int, hashes: Sequence[int], usable: Sequence[int]) -> None:
        """A node took a run of consecutive blocks; `parent` is the hash before the first."""
        announced = self._announced
        for block, tokens in zip(hashes, usable, strict=True):
            known = announced.get(block)
            if known is None:
                announced[block] = tokens
                self._say_stored(namespace_id, parent, block, tokens)
            else:
                self._copies.setdefault(block, [known]).append(tokens)
                self._revalue(namespace_id, parent, block, min(known, tokens))
            parent = block

    def detach(self, namespace_id: int, parent: int, hashes: Sequence[int], usable: Sequence[int]) -> None:
        """A node lost a run of consecutive blocks, the deepest first to go."""
        for at in range(len(hashes) - 1, -1, -1):
            block = hashes[at]
            copies = self._copies.get(block)
            if copies is None:
                assert self._announced[block] == usable[at]
                del self._announced[block]
                self._say_removed(namespace_id, block)
                continue
            copies.remove(usable[at])
            least = min(copies)
            if len(copies) == 1:
                del self._copies[block]
            self._revalue(namespace_id, hashes[at - 1] if at else parent, block, least)

    def clear(self, remaining: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """All is forgotten by the listener, then told what remains: runs of (namespace_id, parent, hashes), parents
        before children. What was pending is void, since Cleared makes it so."""
        self._pending = [Cleared()]
        said: set[int] = set()
        for namespace_id, parent, hashes in remaining:
            for block in hashes:
                if block not in said:
                    said.add(block)
                    self._say_stored(namespace_id, parent, block, self._announced[block])
                parent = block
        assert len(said) == len(self._announced)

    def drain(self) -> list[CacheEvent]:
        """The events since the last call, in order."""
        events = [run if isinstance(run, Cleared) else run.event() for run in self._pending]
        self._pending.clear()
        return events

    def _revalue(self, namespace_id: int, parent: int, block: int, usable: int) -> None:
        if self._announced[block] != usable:
            self._announced[block] = usable
            self._say_stored(namespace_id, parent, block, usable)

    def _say_stored(self, namespace_id: int, parent: int, block: int, usable: int) -> None:
        last = self._pending[-1] if self._pending else None
        if isinstance(last, _Run) and last.usable is not None and last.hashes[-1] == parent:
            run, values = last, last.usable
        else:
            values = []
            run = _Run(namespace_id, parent, values)
            self._pending.append(run)
        run.hashes.append(block)
        values.append(usable)

    def _say_removed(self, namespace_id: int, block: int) -> None:
        last = self._pending[-1] if self._pending else None
        if not (isinstance(last, _Run) and last.usable is None and last.namespace_id == namespace_id):
            last = _Run(namespace_id, 0, None)
            self._pending.append(last)
        last.hashes.append(block)

    def check(self) -> None:
        for block, copies in self._copies.items():
            assert len(copies) > 1
            assert self._announced[block] == min(copies)
