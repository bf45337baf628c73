"""What dispatched requests will have left in a worker's cache, until they are known to have done so or to have failed.

Keeps true: a ticket is known from `add` to `retire` and costs O(log n) of its path's length: since hashes are chained,
two paths agree up to a point and nowhere after it, so a few of its blocks (those at depth 1, 2, 4, ...) find it and
bisection tells the rest. Does not know whether the worker lives, nor what it really holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SCANNED_TICKETS_MAX = 32
"""Tickets of one worker, newest first, that a look-up compares where several agree about equally far."""

_TICKET_BYTES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    worker: str
    hashes: Sequence[int]
    usable: Sequence[int]


class Reach(NamedTuple):
    blocks: int
    usable: int
    ticket: int


class Speculations:
    """Beyond `tickets_max`, or `hashes_max` over all of them, the oldest is forgotten: guesses must not cost memory."""

    def __init__(self, tickets_max: int = 16_384, hashes_max: int = 1 << 20) -> None:
        self._tickets_max = tickets_max
        self._hashes_max = hashes_max
        self._tickets: dict[int, Speculation] = {}
        # hash at a depth that is a power of two -> worker -> tickets that pass there, oldest first
        self._posts: dict[int, dict[str, dict[int, None]]] = {}
        self._hashes_total = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._tickets

    @property
    def bytes(self) -> int:
        return len(self._tickets) * _TICKET_BYTES + self._hashes_total * 40

    def add(self, ticket: int, worker: str, hashes: Sequence[int], usable: Sequence[int]) -> None:
        """Takes the sequences as they are: the caller must not change them afterwards."""
        assert ticket not in self._tickets, "a ticket is used once"
        assert len(usable) == len(hashes)
        if not hashes:
            return
        room = self._hashes_max - len(hashes)
        while self._tickets and (len(self._tickets) >= self._tickets_max or self._hashes_total > room):
            self.retire(next(iter(self._tickets)))
        self._tickets[ticket] = Speculation(worker=worker, hashes=hashes, usable=usable)
        self._hashes_total += len(hashes)
        for depth in _post_depths(len(hashes)):
            self._posts.setdefault(hashes[depth - 1], {}).setdefault(worker, {})[ticket] = None

    def retire(self, ticket: int) -> bool:
        """Forgets a ticket; False if it is not known (any longer)."""
        known = self._tickets.pop(ticket, None)
        if known is None:
            return False
        self._hashes_total -= len(known.hashes)
        for depth in _post_depths(len(known.hashes)):
            block = known.hashes[depth - 1]
            workers = self._posts[block]
            del workers[known.worker][ticket]
            if not workers[known.worker]:
                del workers[known.worker]
                if not workers:
                    del self._posts[block]
        return True

    def retire_worker(self, worker: str) -> None:
        for ticket in [ticket for ticket, known in self._tickets.items() if known.worker == worker]:
            self.retire(ticket)

    def reach(self, hashes: Sequence[int]) -> dict[str, Reach]:
        """Worker -> how far its dispatched requests agree with this path, the deepest one (of equals, the newest)."""
        found: dict[str, Reach] = {}
        if not self._posts or not hashes:
            return found
        for depth in reversed(_post_depths(len(hashes))):
            for worker, tickets in self._posts.get(hashes[depth - 1], {}).items():
                if worker not in found:
                    found[worker] = self._deepest(tickets, hashes, depth)
        return found

    def _deepest(self, tickets: dict[int, None], hashes: Sequence[int], agreed: int) -> Reach:
        best, deepest, most = Reach(0, 0, 0), 0, len(hashes)
        for ticket, _ in zip(reversed(tickets), range(SCANNED_TICKETS_MAX), strict=False):
            known = self._tickets[ticket]
            # Chained: a path that agrees further agrees on the next block too, one comparison instead of a bisection.
            if len(known.hashes) <= deepest or known.hashes[deepest] != hashes[deepest]:
                continue
            deepest = _agreement(known.hashes, hashes, max(agreed, deepest))
            best = Reach(deepest, known.usable[deepest - 1], ticket)
            if deepest == most:
                break
        return best

    def check(self) -> None:
        """Proves: every ticket stands at its posts and nothing else does."""
        standing = {
            (block, worker, ticket)
            for block, workers in self._posts.items()
            for worker, tickets in workers.items()
            for ticket in tickets
        }
        assert standing == {
            (known.hashes[depth - 1], known.worker, ticket)
            for ticket, known in self._tickets.items()
            for depth in _post_depths(len(known.hashes))
        }
        assert all(workers and all(workers.values()) for workers in self._posts.values())
        assert self._hashes_total == sum(len(known.hashes) for known in self._tickets.values())
        assert len(self._tickets) <= self._tickets_max


def _post_depths(length: int) -> list[int]:
    """1, 2, 4, ... up to `length`."""
    return [1 << power for power in range(length.bit_length())]


def _agreement(one: Sequence[int], other: Sequence[int], agreed: int) -> int:
    """Blocks from the start that two paths share, by bisection; the first `agreed` are known to be equal."""
    low, high = agreed, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
