"""The order in which leaves give tokens back: least recently used first.

A heap with lazy keys: a node is in it at most once, under the tick it had when it went in. A node that was used since
is put back under its new tick when it comes up, one that may not be evicted is dropped and offered again when it may.
Keeps true: every leaf with an evictable token is in the heap. O(log n) amortised per use, lock or eviction; nothing is
ever rebuilt. Does not know pages, tokens or blocks.
"""

from __future__ import annotations

from heapq import heappop, heappush

from trieway.worker.core.node import Node


def evictable(node: Node) -> bool:
    """True for a leaf in the tree whose tail no receipt holds."""
    return node.parent is not None and not node.children and node.protected < len(node.tokens)


class LeafQueue:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []
        self._serial = 0  # makes entries of one tick comparable

    def offer(self, node: Node) -> None:
        """Takes a node that may have become evictable."""
        if not node.queued and evictable(node):
            node.queued = True
            self._serial += 1
            heappush(self._heap, (node.marks[0][1], self._serial, node))

    def pop(self) -> Node | None:
        """The evictable leaf whose oldest tail is the least recently used; offer it again if something of it stays."""
        while self._heap:
            tick, _, node = heappop(self._heap)
            node.queued = False
            if not evictable(node):
                continue
            if node.marks[0][1] == tick:
                return node
            self.offer(node)
        return None

    def check(self) -> None:
        queued = [node for _, _, node in self._heap]
        assert len(set(map(id, queued))) == len(queued)
        assert all(node.queued for node in queued)
        assert all(tick <= node.marks[0][1] for tick, _, node in self._heap if node.marks)
