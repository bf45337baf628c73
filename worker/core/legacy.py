"""What a worker's cache is worth to others: its most valuable prefixes, each as a whole token path. Pure.

Value is in use and in recency: paths are taken from the most recently used leaf on, until `tokens_max` tokens are
chosen; a head that several paths share counts once. The cache's own order of eviction says the same, read backwards.
A taker is given a bounded share of its pool, and computes a path in pieces.
Keeps true: reads only. Does not know who takes them.
"""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from trieway.meta_tree.chain import Chain
from trieway.worker.core.node import Node
from trieway.worker.core.radix import RadixCache

SHARE_OF_TAKER = 0.5
"""A taker is given at most this share of its pool: its own cache matters as well."""
SHARE_OF_NEWCOMER = 0.3
"""A newcomer asks for this share of its pool: with more it draws more than its part of the traffic."""
PATHS_MAX = 256
GIVERS_MAX = 16
"""A newcomer is warmed by so many of its peers, in turn, best first; more would not get their turn."""
TAKERS_MAX = 64
PRIORITY = 1 << 20
"""Of what a taker computes for others: after all that a user waits for."""
PIECE_TOKENS = 256
"""A path is computed in pieces of this length: a user who comes meanwhile waits for one, not for a path."""
ALLOWANCE_WINDOW_S = 60.0
HEAD_TOKENS = 64
"""Paths that agree so far go to one taker."""
UNEVEN_TOKENS = 8192
"""A taker may have twice what another has, and so many more, before a known head goes elsewhere."""


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


def gift_tokens(kv_tokens: int, share: float, takers: int = 1) -> int:
    """What may be given to `takers` with pools of `kv_tokens`, all of them together, if each takes such a share."""
    return round(kv_tokens * share) * takers


def pieces(held: int, length: int, most: int, size: int = PIECE_TOKENS) -> list[int]:
    """Where to stop on the way through a path of `length` tokens whose first `held` are there, if at most `most` may be
    computed. What is all there is gone through once, so that it counts as used."""
    end = min(length, held + max(0, most))
    return [*range(held + size, end, size), end] if end else []


class Allowance:
    """What a taker computes for others: all that was spent within `window_s` counts, whoever gave.

    Without a bound, four workers that leave at once would each fill their share of every pool, and push out what those
    who stay hold for their own sessions.
    """

    def __init__(self, window_s: float = ALLOWANCE_WINDOW_S) -> None:
        self.window_s = window_s
        self._spent: deque[tuple[float, int]] = deque()
        self._sum = 0

    def left(self, tokens_max: int, now: float) -> int:
        """Tokens that may still be computed now if `tokens_max` may within the window; 0 or more."""
        while self._spent and now - self._spent[0][0] >= self.window_s:
            self._sum -= self._spent.popleft()[1]
        return max(0, tokens_max - self._sum)

    def spend(self, tokens: int, now: float) -> None:
        """Books what was computed; `now` moves only forward."""
        if tokens > 0:
            self._spent.append((now, tokens))
            self._sum += tokens

    def check(self) -> None:
        """The sum is that of what is booked."""
        assert self._sum == sum(tokens for _, tokens in self._spent)


def shares(prefixes: Sequence[Prefix], takers: Sequence[str]) -> dict[str, list[Prefix]]:
    """Each prefix to one taker; those that begin alike stay together, and the load is even.

    Among takers with as much, the head decides, by rendezvous: givers that do not know of each other spread their best
    prefixes over all takers, and send copies of one prefix to the same. Takers that get nothing are left out.
    """
    found: dict[str, list[Prefix]] = {taker: [] for taker in takers}
    tokens = dict.fromkeys(takers, 0)
    home: dict[tuple[Chain, tuple[int, ...]], str] = {}
    for one in prefixes:
        head = (one.chain, one.tokens[:HEAD_TOKENS])
        taker = home.get(head)
        if taker is None or tokens[taker] > 2 * min(tokens.values()) + UNEVEN_TOKENS:
            taker = home[head] = _emptiest(tokens, one)
        found[taker].append(one)
        tokens[taker] += len(one.tokens)
    return {taker: share for taker, share in found.items() if share}


def _emptiest(tokens: dict[str, int], prefix: Prefix) -> str:
    """One that was given least; which of them, the prefix's head says."""
    least = min(tokens.values())
    head = array("i", prefix.tokens[:HEAD_TOKENS]).tobytes()
    salt = zlib.crc32(head, prefix.chain.root & 0xFFFFFFFF)
    return max(
        (taker for taker, given in tokens.items() if given == least),
        key=lambda taker: (zlib.crc32(taker.encode(), salt), taker),
    )


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
