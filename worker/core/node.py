"""A node of the radix tree: one edge of tokens with their pages, its text blocks, its locks and its recency.

Keeps true: lengths are multiples of the page size; `protected` is the length of the edge's head that receipts or
locked descendants hold; `marks` says when each part of the edge was last used. Does not know the tree's totals, the
pool or the announcer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import TypeAlias

from trieway.meta_tree.chain import Chain

Key: TypeAlias = int | bytes
Tokens: TypeAlias = "array[int]"


class Receipt:
    """A lock on the first `length` tokens of a path. Give it back to the cache that issued it, once."""

    __slots__ = ("inner", "length", "node")

    def __init__(self, node: Node | None, inner: int, length: int) -> None:
        self.node = node  # the path's last node; None for the empty path; moved by the cache when nodes split
        self.inner = inner  # how many tokens of that node's edge are held
        self.length = length


@dataclass(frozen=True, slots=True)
class Match:
    """Where a walk ended: `inner` tokens into `node`'s edge, `length` tokens from the root, a multiple of pages.

    Good until the tree's topology changes (`version`).
    """

    node: Node | None
    inner: int
    length: int
    version: int


class Node:
    __slots__ = (
        "block_ends",
        "block_hashes",
        "block_usable",
        "chain",
        "children",
        "covered",
        "locked_children",
        "marks",
        "pages",
        "parent",
        "protected",
        "queued",
        "receipts",
        "start",
        "tokens",
    )

    def __init__(self, chain: Chain, parent: Node | None, tokens: Tokens, pages: list[int], start: int) -> None:
        self.chain = chain
        self.parent = parent  # None: the namespace's root, or a node that left the tree
        self.tokens = tokens
        self.pages = pages
        self.start = start  # tokens before this edge
        self.children: dict[Key, Node] = {}
        self.marks: list[tuple[int, int]] = []  # (length, tick), longest and oldest first: see touch
        self.receipts: list[Receipt] = []
        self.locked_children = 0  # children with protected > 0
        self.protected = 0
        self.queued = False  # in the eviction heap
        self.covered = start  # tokens from the root up to which the blocks are attached
        self.block_ends: list[int] = []  # tokens from the root, as Cover.ends
        self.block_hashes: list[int] = []
        self.block_usable: list[int] = []

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def touch(self, length: int, tick: int) -> None:
        """The first `length` tokens are used now. The rest keeps its age: it was not used."""
        marks = self.marks
        while marks and marks[-1][0] <= length:
            marks.pop()
        marks.append((length, tick))

    def held(self) -> int:
        """What `protected` must be."""
        if self.locked_children:
            return len(self.tokens)
        return max((receipt.inner for receipt in self.receipts), default=0)

    def parent_hash(self) -> int:
        """The hash before this edge's first block."""
        node = self.parent
        while node is not None:
            if node.block_hashes:
                return node.block_hashes[-1]
            node = node.parent
        return self.chain.root

    def split(self, at: int, page_size: int) -> Node:
        """Cuts the edge after `at` tokens. The new upper node is returned and linked to the parent by the caller; this
        node keeps the lower part, its children and its place in the eviction heap. Nothing becomes more recent."""
        assert 0 < at < len(self.tokens)
        cut = self.start + at
        upper = Node(self.chain, self.parent, self.tokens[:at], self.pages[: at // page_size], self.start)
        upper.marks = [(min(length, at), tick) for length, tick in self.marks]
        while len(upper.marks) > 1 and upper.marks[1][0] == at:
            del upper.marks[0]  # a younger use reached the cut as well
        self.marks = [(length - at, tick) for length, tick in self.marks if length > at]
        upper.receipts = [receipt for receipt in self.receipts if receipt.inner <= at]
        self.receipts = [receipt for receipt in self.receipts if receipt.inner > at]
        for receipt in upper.receipts:
            receipt.node = upper
        for receipt in self.receipts:
            receipt.inner -= at
        upper.protected = min(self.protected, at)
        self.protected -= upper.protected
        upper.locked_children = int(self.protected > 0)
        blocks = bisect_right(self.block_ends, cut)
        upper.block_ends, self.block_ends = self.block_ends[:blocks], self.block_ends[blocks:]
        upper.block_hashes, self.block_hashes = self.block_hashes[:blocks], self.block_hashes[blocks:]
        upper.block_usable, self.block_usable = self.block_usable[:blocks], self.block_usable[blocks:]
        upper.covered, self.covered = min(self.covered, cut), max(self.covered, cut)
        self.tokens = self.tokens[at:]
        self.pages = self.pages[at // page_size :]
        self.start = cut
        self.parent = upper
        return upper


def agreeing(edge: Tokens, tokens: Tokens, at: int, most: int) -> int:
    """How many of the first `most` tokens of `edge` equal tokens[at:]. Doubling windows, then bisection: O(agreeing)
    compares in C, O(log) steps in Python."""
    if (edge if most == len(edge) else edge[:most]) == tokens[at : at + most]:
        return most
    low, window = 0, 32
    while edge[low : low + window] == tokens[at + low : at + low + window]:  # ends: some token below `most` differs
        low += window
        window *= 2
    high = min(low + window, most)
    while low < high:
        middle = (low + high + 1) // 2
        if edge[low:middle] == tokens[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low
