"""The radix cache: token-exact prefixes, the pages that hold them, the text blocks they cover.

Keeps true: one root per namespace; a page on a path belongs to exactly one node; `match` changes nothing; edges split
on store only; the announced blocks are those that the nodes carry (announce.py); cached = protected + evictable.
Does not know requests, schedules or clocks: recency is counted in its own uses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from trieway.meta_tree.chain import Chain
from trieway.worker.core.announce import Announcer
from trieway.worker.core.cover import Cover
from trieway.worker.core.evict import LeafQueue
from trieway.worker.core.node import Key, Match, Node, Receipt, Tokens, agreeing
from trieway.worker.core.pool import PagePool


class RadixCache:
    """Shares `pool` with the running requests. All lengths are tokens and multiples of the page size."""

    def __init__(self, pool: PagePool, *, enabled: bool = True) -> None:
        self.pool = pool
        self.enabled = enabled
        self.announcer = Announcer()
        self.roots: dict[Chain, Node] = {}
        self.nodes = 0  # roots not counted
        self.cached = 0
        self.protected = 0
        self.version = 0
        self.evicted_total = 0
        self._page = pool.page_size
        self._tick = 0
        self.leaves = LeafQueue()

    @property
    def evictable(self) -> int:
        return self.cached - self.protected

    @property
    def uses(self) -> int:
        """How often it was used since the start; a node's marks say at which use."""
        return self._tick

    # Reading

    def match(self, chain: Chain, tokens: Tokens, limit: int) -> Match:
        """The longest cached prefix of tokens[:limit], rounded down to pages. Changes nothing."""
        node = self.roots.get(chain)
        limit = min(limit, len(tokens)) // self._page * self._page
        at = inner = 0
        while node is not None and at < limit:
            child = node.children.get(self.key(tokens, at))
            if child is None:
                break
            most = min(len(child.tokens), limit - at)
            inner = agreeing(child.tokens, tokens, at, most) // self._page * self._page
            at += inner
            node = child
            if inner < len(child.tokens):
                break
        return Match(node if at else None, inner, at, self.version)

    def pages_of(self, path: Match | Receipt) -> list[int]:
        """The page table of a matched or locked path."""
        if path.node is None:
            return []
        edges = [path.node.pages[: path.inner // self._page]]
        node = path.node.parent
        while node is not None:
            edges.append(node.pages)
            node = node.parent
        return [page for edge in reversed(edges) for page in edge]

    def walk(self) -> Iterator[Node]:
        """Every node but the roots, parents before children."""
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # Locks and recency

    def lock(self, match: Match) -> Receipt:
        """Holds a matched path until `unlock`: exactly its tokens become protected."""
        assert match.version == self.version, "the tree changed since this match"
        receipt = Receipt(match.node, match.inner, match.length)
        self.relock(receipt)
        return receipt

    def relock(self, receipt: Receipt) -> None:
        """Locks again what was just unlocked; the tree must not have changed between."""
        if receipt.node is not None:
            assert receipt not in receipt.node.receipts
            receipt.node.receipts.append(receipt)
            self._refresh(receipt.node)

    def unlock(self, receipt: Receipt) -> None:
        if receipt.node is not None:
            receipt.node.receipts.remove(receipt)
            self._refresh(receipt.node)

    def touch(self, receipt: Receipt) -> None:
        """Marks a locked path as just used. The rest of an edge that it ends in keeps its age."""
        self._tick += 1
        node, length = receipt.node, receipt.inner
        while node is not None and node.parent is not None:
            node.touch(length, self._tick)
            node = node.parent
            length = len(node.tokens)

    def _refresh(self, node: Node) -> None:
        """Recomputes what is held of an edge, and of its ancestors as far as that changes them."""
        while node.parent is not None:
            before, after = node.protected, node.held()
            node.protected = after
            self.protected += after - before
            if after < before:
                self.leaves.offer(node)
            if (before > 0) == (after > 0):
                return
            node.parent.locked_children += 1 if after else -1
            node = node.parent

    # Writing

    def store(self, chain: Chain, tokens: Tokens, length: int, row: list[int], owned_from: int, cover: Cover) -> Match:
        """Takes tokens[:length], rounded down to pages, whose KV is in the pages of `row`.

        The caller's own (running) pages begin at row[owned_from]; those before it are the cache's. Afterwards every
        page of the stored part is the cache's: new ones are adopted; where the cache already holds a copy, `row` is
        re-pointed to it and the caller's page is freed. `cover` gives the text blocks. Returns the stored path, all of
        it just used.
        """
        length = length // self._page * self._page
        if not self.enabled or not length:
            return Match(None, 0, 0, self.version)
        self._tick += 1
        node = self.roots.get(chain)
        if node is None:
            node = self.roots[chain] = Node(chain, None, tokens[:0], [], 0)
        at = inner = 0
        while at < length:
            child = node.children.get(self.key(tokens, at))
            if child is None:
                node, inner = self._add_leaf(node, tokens, at, length, row), length - at
                at = length
            else:
                most = min(len(child.tokens), length - at)
                inner = agreeing(child.tokens, tokens, at, most) // self._page * self._page
                if inner < len(child.tokens) and at + inner < length:
                    child = self._split(child, inner)
                self._repoint(child, inner, row, owned_from)
                node = child
                at += inner
            node.touch(inner, self._tick)
            self._attach(node, cover, at)
        self.leaves.offer(node)
        return Match(node, inner, length, self.version)

    def _add_leaf(self, parent: Node, tokens: Tokens, at: int, length: int, row: list[int]) -> Node:
        pages = row[at // self._page : length // self._page]
        leaf = Node(parent.chain, parent, tokens[at:length], pages, at)
        parent.children[self.key(tokens, at)] = leaf
        self.pool.adopt(pages)
        self.cached += length - at
        self.nodes += 1
        self.version += 1
        return leaf

    def _repoint(self, node: Node, inner: int, row: list[int], owned_from: int) -> None:
        """The first `inner` tokens of the edge are stored already: the caller's duplicates go, its row first."""
        first, pages = node.start // self._page, inner // self._page
        own = min(max(owned_from - first, 0), pages)
        assert row[first : first + own] == node.pages[:own], "the row's shared part is not this path"
        duplicates = row[first + own : first + pages]
        row[first + own : first + pages] = node.pages[own:pages]
        self.pool.free_running(duplicates)

    def _split(self, node: Node, at: int) -> Node:
        assert node.parent is not None
        key = self.key(node.tokens, 0)
        upper = node.split(at, self._page)
        assert upper.parent is not None
        upper.parent.children[key] = upper
        upper.children[self.key(node.tokens, 0)] = node
        self.nodes += 1
        self.version += 1
        return upper

    def _attach(self, node: Node, cover: Cover, upto: int) -> None:
        """Gives a node the blocks of tokens below `upto` that it lacks. Its ancestors have theirs."""
        upto = min(upto, cover.tokens)
        if upto <= node.covered:
            return
        first = bisect_right(cover.ends, node.covered)
        last = bisect_right(cover.ends, upto)
        node.covered = upto
        if first < last:
            hashes, usable = cover.hashes[first:last], cover.usable[first:last]
            node.block_ends += cover.ends[first:last]
            node.block_hashes += hashes
            node.block_usable += usable
            self.announcer.attach(node.chain.root, cover.parent_of(first), hashes, usable)

    # Giving back

    def evict(self, pages: int) -> int:
        """Frees at least `pages` pages if so many are evictable, else all that are; returns how many. Least recently
        used first, from the tails of leaves, no page more than asked for."""
        freed = 0
        while freed < pages:
            leaf = self.leaves.pop()
            if leaf is None:
                break
            oldest = leaf.marks[1][0] if len(leaf.marks) > 1 else 0  # the tail beyond is older than the rest
            tokens = min(len(leaf.tokens) - max(oldest, leaf.protected), (pages - freed) * self._page)
            freed += tokens // self._page
            self._trim(leaf, tokens)
        self.evicted_total += freed * self._page
        return freed

    def _trim(self, leaf: Node, tokens: int) -> None:
        """Drops the last `tokens` tokens of a leaf's edge, and the leaf with its last token."""
        keep = len(leaf.tokens) - tokens
        assert leaf.parent is not None
        assert leaf.protected <= keep < len(leaf.tokens)
        self._detach(leaf, leaf.start + keep)
        self.pool.free_cached(leaf.pages[keep // self._page :])
        self.cached -= tokens
        self.version += 1
        key = self.key(leaf.tokens, 0)
        del leaf.tokens[keep:]
        del leaf.pages[keep // self._page :]
        if keep:
            leaf.marks = [(min(length, keep), tick) for length, tick in leaf.marks]
            if len(leaf.marks) > 1 and leaf.marks[1][0] == keep:
                del leaf.marks[0]
            self.leaves.offer(leaf)
            return
        parent, leaf.parent = leaf.parent, None
        del parent.children[key]
        self.nodes -= 1
        if parent.parent is not None:
            self.leaves.offer(parent)
        elif not parent.children:
            del self.roots[parent.chain]

    def _detach(self, node: Node, end: int) -> None:
        """Takes back the blocks that need tokens beyond `end`."""
        node.covered = min(node.covered, end)
        kept = bisect_right(node.block_ends, end)
        if kept < len(node.block_ends):
            parent = node.block_hashes[kept - 1] if kept else node.parent_hash()
            self.announcer.detach(node.chain.root, parent, node.block_hashes[kept:], node.block_usable[kept:])
            del node.block_ends[kept:], node.block_hashes[kept:], node.block_usable[kept:]

    def flush(self) -> int:
        """Drops all that no receipt holds; returns the tokens dropped. Announces Cleared, then what remains."""
        before = self.cached
        evicted = self.evicted_total
        self.evict(self.pool.cached)
        self.evicted_total = evicted  # a flush is no sign of a cache too small
        if self.enabled:
            self.announcer.clear((node.chain.root, node.parent_hash(), node.block_hashes) for node in self.walk())
        assert self.evictable == 0
        return before - self.cached

    def key(self, tokens: Tokens, at: int) -> Key:
        """What a child is found by: the first page of its edge."""
        return tokens[at] if self._page == 1 else tokens[at : at + self._page].tobytes()
