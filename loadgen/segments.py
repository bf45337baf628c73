"""Cut sequences where they part: a radix tree of many prompts, read back as lists of segments.

Keeps true: the leading segments that two sequences have in common are exactly their common prefix: nothing is rounded.
Memory is a few objects per branching; contents are referred to, not copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Units = Sequence[int]
"""Bytes, or a tuple of token or block ids. All sequences of one tree are of one kind."""


@dataclass(slots=True)
class _Edge:
    source: Units
    start: int
    length: int
    below: "dict[int, _Edge]" = field(default_factory=dict)
    number: int = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch that no inserted sequence leaves halfway: units [start, start + length) of `source`."""

    number: int
    source: Units
    start: int
    length: int


class Segments:
    """Insert everything, then read the cuts."""

    def __init__(self) -> None:
        self._roots: dict[int, _Edge] = {}
        self._numbers = 0

    def insert(self, units: Units, end: int | None = None) -> None:
        """Cut at the end of `units[:end]` (whole: None) and where it parts from the others."""
        assert not self._numbers, "all is inserted before the first read"
        total = len(units) if end is None else end
        below, at = self._roots, 0
        while at < total:
            edge = below.get(units[at])
            if edge is None:
                below[units[at]] = _Edge(units, at, total - at)
                return
            shared = _common(edge, units, at, total)
            if shared < edge.length:
                rest = _Edge(edge.source, edge.start + shared, edge.length - shared, edge.below)
                edge.length, edge.below = shared, {rest.source[rest.start]: rest}
            below, at = edge.below, at + shared

    def read(self, units: Units) -> list[Segment]:
        """The segments of an inserted sequence, or of an inserted beginning of one as far as it goes."""
        found, below, at = [], self._roots, 0
        while at < len(units) and (edge := below.get(units[at])) is not None and edge.length <= len(units) - at:
            if edge.number < 0:
                edge.number = self._numbers
                self._numbers += 1
            found.append(Segment(edge.number, edge.source, edge.start, edge.length))
            below, at = edge.below, at + edge.length
        return found


def _common(edge: _Edge, units: Units, at: int, total: int) -> int:
    """Units that the edge and `units[at:total]` share; at least the first."""
    low, high = 1, min(edge.length, total - at)
    source, start = edge.source, edge.start
    if source[start : start + high] == units[at : at + high]:
        return high
    # Slices compare at the speed of memcmp: bisection beats a loop.
    while low < high:
        middle = (low + high + 1) // 2
        if source[start + low : start + middle] == units[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low
