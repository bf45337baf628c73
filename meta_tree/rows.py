"""A table of blocks in columns: one row per distinct block of a group, found by its hash.

Keeps true: a row lives while somebody holds its block or a child row names it as parent; parents form a forest; freed
rows are used again; every leaf is in the queue of candidates for dropping, coldest first. Plain numbers in arrays: no
object per block, so nothing for the garbage collector to walk. Does not know what holder sets mean, nor digests.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence

ROW_BYTES = 192
"""What a block costs here: 33 bytes of columns, its hash as a Python integer, its entry in the dictionary."""

_FREE = 2**32 - 1


class Rows:
    """Row 0 stands for "none": unknown parent, start of a namespace, block not found."""

    __slots__ = (
        "_candidates",
        "_free",
        "_queued",
        "children",
        "hashes",
        "parents",
        "sets",
        "table",
        "touched",
        "usable",
    )

    def __init__(self) -> None:
        self.table: dict[int, int] = {}
        self.hashes = array("Q", [0])
        self.parents = array("I", [0])
        self.children = array("I", [0])
        self.sets = array("I", [0])
        self.usable = array("I", [0])
        self.touched = array("d", [0.0])
        self._queued = bytearray(1)
        self._free: list[int] = []
        # (touched when queued, row): at most one entry per row; stale ones are put right when they come up.
        self._candidates: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self.table)

    @property
    def capacity(self) -> int:
        return len(self.hashes)

    def in_use(self, row: int) -> bool:
        return row != 0 and self.children[row] != _FREE

    def add_run(self, hashes: Sequence[int], usable: Sequence[int], parent: int, set_id: int, now: float) -> None:
        """New rows, each the parent of the next. The hashes are distinct and not in the table."""
        assert hashes
        reused = min(len(self._free), len(hashes))
        for at in range(reused):
            row = self._free.pop()
            block = hashes[at]
            self.table[block] = row
            self.hashes[row] = block
            self.parents[row] = parent
            self.children[row] = 1
            self.sets[row] = set_id
            self.usable[row] = usable[at]
            self.touched[row] = now
            if not at:
                self.children[parent] += 1
            parent = row
        fresh = len(hashes) - reused
        if fresh:
            if not reused:
                self.children[parent] += 1
            start = self.capacity
            self.table.update(zip(hashes[reused:], range(start, start + fresh), strict=True))
            self.hashes.extend(hashes[reused:])
            self.parents.append(parent)
            self.parents.extend(range(start, start + fresh - 1))
            self.children.extend([1] * fresh)
            self.sets.extend([set_id] * fresh)
            self.usable.extend(usable[reused:])
            self.touched.extend([now] * fresh)
            self._queued.extend(bytes(fresh))
            parent = start + fresh - 1
        self.children[parent] = 0
        self.queue(parent)

    def adopt(self, row: int, parent: int) -> None:
        """Gives a row that came before its parent that parent, unless a broken feed would close a circle."""
        above = parent
        while above:
            if above == row:
                return
            above = self.parents[above]
        self.children[self.parents[row]] -= 1
        self.parents[row] = parent
        self.children[parent] += 1

    def queue(self, row: int) -> None:
        """Makes a leaf a candidate for dropping."""
        if not self._queued[row]:
            self._queued[row] = 1
            heapq.heappush(self._candidates, (self.touched[row], row))

    def coldest(self) -> tuple[float, int] | None:
        """(when last touched, row) of the leaf to drop first, or None."""
        candidates = self._candidates
        while candidates:
            key, row = candidates[0]
            if self.children[row] != 0:  # a parent, or free
                heapq.heappop(candidates)
                self._queued[row] = 0
            elif self.touched[row] != key:
                heapq.heapreplace(candidates, (self.touched[row], row))
            else:
                return key, row
        return None

    def free(self, row: int) -> int:
        """Takes a leaf out; returns its parent, which is as recent as its children were."""
        assert self.children[row] == 0
        parent = self.parents[row]
        del self.table[self.hashes[row]]
        self.children[row] = _FREE
        self._free.append(row)
        self.children[parent] -= 1
        if parent:
            self.touched[parent] = max(self.touched[parent], self.touched[row])
            if not self.children[parent]:
                self.queue(parent)
        return parent

    def deepest(self, hashes: Sequence[int]) -> int:
        """The row of the last known block of a path (0: none), by bisection: parents outlive their children."""
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self.table:
                low = middle
            else:
                high = middle - 1
        return self.table[hashes[low - 1]] if low else 0

    def check(self) -> None:
        """Proves: table and columns agree, child counts are true, free + used = capacity, every leaf is queued."""
        free = set(self._free)
        assert len(free) == len(self._free)
        assert len(self.table) + len(free) + 1 == self.capacity
        children = [0] * self.capacity
        for block, row in self.table.items():
            assert self.hashes[row] == block
            assert row not in free
            children[self.parents[row]] += 1
        for row in range(self.capacity):
            assert self.children[row] == (_FREE if row in free else children[row])
            assert row == 0 or self.children[row] != 0 or self._queued[row]
        queued = [row for _, row in self._candidates]
        assert len(set(queued)) == len(queued)
        assert sorted(queued) == [row for row, flag in enumerate(self._queued) if flag]
        for key, row in self._candidates:
            assert row in free or self.touched[row] >= key or self.children[row] != 0
        self._check_forest()

    def _check_forest(self) -> None:
        rooted = {0}
        for row in self.table.values():
            path = []
            while row not in rooted:
                assert row not in path
                path.append(row)
                row = self.parents[row]
            rooted.update(path)
