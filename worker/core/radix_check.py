"""The radix cache's own proof: every sum, lock, mark and block recomputed from the nodes. O(cache); for tests.

Keeps true: it changes nothing. Does not know how the cache came to its state.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from trieway.worker.core.evict import evictable
from trieway.worker.core.node import Node
from trieway.worker.core.pool import CACHED
from trieway.worker.core.radix import RadixCache


def check_cache(cache: RadixCache) -> None:
    """AssertionError if anything disagrees."""
    cache.pool.check()
    cache.announcer.check()
    cache.leaves.check()
    nodes = list(cache.walk())
    for node in nodes:
        _check_edge(cache, node)
        _check_blocks(cache, node)
    for chain, root in cache.roots.items():
        assert root.chain == chain
        assert root.children, "an empty namespace stays behind"
        assert root.locked_children == sum(child.protected > 0 for child in root.children.values())
    pages = [page for node in nodes for page in node.pages]
    assert len(pages) == len(set(pages)) == cache.pool.cached
    assert len(nodes) == cache.nodes
    assert cache.cached == sum(len(node.tokens) for node in nodes) == len(pages) * cache.pool.page_size
    assert cache.protected == sum(node.protected for node in nodes)
    assert 0 <= cache.protected <= cache.cached
    assert announced_by_nodes(nodes) == dict(cache.announcer.announced)
    if not cache.enabled:
        assert not nodes


def announced_by_nodes(nodes: list[Node]) -> dict[int, int]:
    """hash -> usable as the nodes have it: the least of all copies."""
    least: dict[int, int] = {}
    for node in nodes:
        for block, usable in zip(node.block_hashes, node.block_usable, strict=True):
            least[block] = min(usable, least.get(block, usable))
    return least


def _check_edge(cache: RadixCache, node: Node) -> None:
    page, length = cache.pool.page_size, len(node.tokens)
    assert length > 0
    assert length % page == 0
    assert len(node.pages) * page == length
    assert all(cache.pool.owner(held) == CACHED for held in node.pages)
    parent = node.parent
    assert parent is not None
    assert parent.children[cache.key(node.tokens, 0)] is node
    assert parent.chain == node.chain
    assert node.start == parent.end
    assert node.locked_children == sum(child.protected > 0 for child in node.children.values())
    assert node.protected == node.held()
    for receipt in node.receipts:
        assert receipt.node is node
        assert 0 < receipt.inner <= length
        assert receipt.length == node.start + receipt.inner
    lengths = [mark[0] for mark in node.marks]
    ticks = [mark[1] for mark in node.marks]
    assert lengths[0] == length
    assert all(one > other for one, other in pairwise(lengths))
    assert all(one < other for one, other in pairwise(ticks))
    if parent.parent is not None:
        assert parent.marks[0][1] >= ticks[-1], "a child was used and its parent was not"
    if evictable(node):
        assert node.queued


def _check_blocks(cache: RadixCache, node: Node) -> None:
    assert len(node.block_ends) == len(node.block_hashes) == len(node.block_usable)
    assert node.start <= node.covered <= node.end
    assert node.parent is not None
    if node.covered > node.start:
        assert node.parent.covered == node.start, "covered text with a gap above it"
    if node.block_ends:
        assert node.start < node.block_ends[0]
        assert node.block_ends[-1] <= node.covered
    assert node.block_ends == sorted(node.block_ends)
    assert node.block_usable == sorted(node.block_usable)
    assert all(usable % cache.pool.page_size == 0 for usable in node.block_usable)
    copies = Counter(usable for block in node.block_hashes for usable in cache.announcer.copies(block))
    assert copies.total() >= len(node.block_hashes)
