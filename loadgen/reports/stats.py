"""Order statistics and intervals of what a run measured.

Keeps true: a percentile interpolates between the two order statistics around it, as numpy and the other load generators
do; weighted values count as if each were written out; an interval is given only where there is enough to judge by.
Does not know what the numbers mean.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean, stdev
from typing import TypeVar

QUANTILES = (*(i / 100 for i in range(100)), 0.995, 0.999, 1.0)
"""Where curves are given."""
BLOCKS_MAX = 20
BLOCKS_MIN = 5
BLOCK_VALUES_MIN = 10
"""A block of fewer values says too little of a tail."""
T = TypeVar("T")

# Two-sided 95 % points of Student's t by degrees of freedom; past 30 the normal one is within 4 %.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t95(freedom: float) -> float:
    """Student's two-sided 95 % point; `freedom` at least 1, rounded down."""
    assert freedom >= 1.0, "no degree of freedom"
    return _T95[int(freedom) - 1] if freedom < len(_T95) + 1 else 1.96 + 2.5 / freedom


class Sorted:
    """Values in order, each standing for `count` equal ones."""

    __slots__ = ("_ends", "_values", "count", "mean")

    def __init__(self, pairs: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(pair for pair in pairs if pair[1])
        self._values = [value for value, _ in ordered]
        self._ends = list(accumulate(count for _, count in ordered))
        self.count = self._ends[-1] if self._ends else 0
        total = math.fsum(value * count for value, count in ordered)
        self.mean = total / self.count if self.count else None

    @classmethod
    def of(cls, values: Iterable[float]) -> Sorted:
        """Plain values."""
        return cls((value, 1) for value in values)

    def quantile(self, share: float) -> float | None:
        """The value below which `share` (0 to 1) of all lie; None of nothing."""
        if not self.count:
            return None
        place = share * (self.count - 1)
        low = math.floor(place)
        here, part = self._at(low), place - low
        return here if part == 0.0 else here + (self._at(low + 1) - here) * part

    def _at(self, index: int) -> float:
        return self._values[bisect_right(self._ends, index)]


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of independent values; None of fewer than two."""
    if len(values) < 2:
        return None
    middle, half = fmean(values), t95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def spread(values: Sequence[T], of: Callable[[Sequence[T]], float | None], whole: float) -> tuple[float, float] | None:
    """The 95 % interval around `whole` = of(values) by batch means: values in order of time are cut into blocks, and
    what the blocks say varies as the whole would, less by the root of their number. Blocks, since neighbours in time
    share a queue and are not independent. None where fewer than BLOCKS_MIN blocks can be cut."""
    blocks = min(BLOCKS_MAX, len(values) // BLOCK_VALUES_MIN)
    if blocks < BLOCKS_MIN:
        return None
    cuts = [len(values) * block // blocks for block in range(blocks + 1)]
    said = [of(values[left:right]) for left, right in pairwise(cuts)]
    known = [value for value in said if value is not None]
    if len(known) < BLOCKS_MIN:
        return None
    half = t95(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return whole - half, whole + half


def ratio(part: float, whole: float) -> float | None:
    """A share; None of nothing."""
    return part / whole if whole else None
