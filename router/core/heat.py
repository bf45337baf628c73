"""How often prefixes are asked for: a decayed count per fork, the last block that a prompt shares with what is held.

A shared system prompt is the fork of everybody's prompts, so its count grows; each turn of a chat forks one turn
deeper, so a chat stays cold however long it is. Keeps true: counts fade with time, and the table is bounded (the fork
used longest ago goes first). Does not know who holds what.
"""

import math
from collections.abc import Hashable


class Heat:
    """Counts by fork."""

    def __init__(self, *, halflife_s: float, forks_max: int) -> None:
        assert halflife_s > 0
        assert forks_max > 0
        self._halflife_s = halflife_s
        self._forks_max = forks_max
        self._counts: dict[Hashable, tuple[float, float]] = {}  # fork -> (count, as of); used longest ago first

    def __len__(self) -> int:
        return len(self._counts)

    def at(self, fork: Hashable, now: float) -> float:
        """Requests that lately forked here: how many to expect again in about as much time."""
        count, since = self._counts.get(fork, (0.0, now))
        return count * math.exp2(-max(now - since, 0.0) / self._halflife_s)

    def used(self, fork: Hashable, now: float) -> None:
        """One more request forks here."""
        count = self.at(fork, now) + 1.0
        self._counts.pop(fork, None)
        self._counts[fork] = (count, now)
        if len(self._counts) > self._forks_max:
            del self._counts[next(iter(self._counts))]

    def check(self) -> None:
        """The table is within its bound, and no count is negative."""
        assert len(self._counts) <= self._forks_max
        assert all(count > 0.0 for count, _ in self._counts.values())
