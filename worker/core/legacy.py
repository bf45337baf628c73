"""What a worker's cache is worth to others: its most valuable prefixes, each as a whole token path. Pure.

Value is in use and in recency: paths are taken from the most recently used leaf on, until `tokens_max` tokens are
chosen; a head that several paths share counts once. The cache's own order of eviction says the same, read backwards.
Keeps true: reads only. Does not know who takes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from trieway.meta_tree.chain import Chain
from trieway.worker.core.node import Node
from trieway.worker.core.radix import RadixCache


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """A token path from the root. `canonical`: how many of its leading tokens a text would take."""

    chain: Chain
    tokens: tuple[int, ...]
    canonical: int


def most_valuable(cache: RadixCache, *, tokens_max: int, paths_max: int) -> list[Prefix]:
    """The best first. Their distinct tokens are at most `tokens_max`; a path that would go over is cut."""
    leaves = [node for node in cache.walk() if not node.children]
    leaves.sort(key=_last_use, reverse=True)
    chosen: list[Prefix] = []
    taken: dict[int, int] = {}
    """Tokens of a node's edge that are in some chosen path, by the node's identity."""
    left = tokens_max
    for leaf in leaves:
        if left <= 0 or len(chosen) >= paths_max:
            break
        path = _path(leaf)
        tokens: list[int] = []
        canonical = 0
        for node in path:
            known = taken.get(id(node), 0)
            room = min(len(node.tokens), known + left)
            left -= max(0, room - known)
            taken[id(node)] = max(known, room)
            tokens += node.tokens[:room]
            canonical = min(node.covered, node.start + room)
            if room < len(node.tokens):
                break
        if tokens:
            chosen.append(Prefix(chain=leaf.chain, tokens=tuple(tokens), canonical=min(canonical, len(tokens))))
    return chosen


def _last_use(node: Node) -> int:
    return node.marks[-1][1] if node.marks else 0


def _path(leaf: Node) -> list[Node]:
    """From the first edge to the leaf; the namespace's root is not among them."""
    found: list[Node] = []
    node: Node | None = leaf
    while node is not None and node.parent is not None:
        found.append(node)
        node = node.parent
    return found[::-1]
