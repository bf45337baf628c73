"""The search for the highest rate at which an SLO holds: which rate to try next, given what was seen.

Keeps true: the same verdicts in the same order ask for the same rates, so a search that was broken off goes on from its
list; a rate is judged by the majority of its repeats, and no run is asked for that cannot change a verdict, but for the
answer itself, which gets all its repeats. Pure: does not know how a rate is tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from trieway.loadgen.errors import LoadError

RUNS_MAX = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Rates per second. The answer is sought from `low` to `high`, to within `precision` (0.1: 10 %)."""

    low: float
    high: float
    precision: float = 0.1
    repeats: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < float("inf"):
            raise LoadError(f"the search needs rates above zero, low to high, not {self.low:g} to {self.high:g}")
        if not 0.005 <= self.precision <= 1:
            raise LoadError(f"the precision is 0.005 to 1, not {self.precision:g}")
        if not 1 <= self.repeats <= 99:
            raise LoadError(f"repeats are 1 to 99, not {self.repeats}")

    @property
    def majority(self) -> int:
        """Repeats that have to agree."""
        return self.repeats // 2 + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run to make."""

    rate: float
    repeat: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The end. See reports.study.Capacity."""

    rate: float | None
    fails_at: float | None
    held: int
    repeats: int


class Search:
    """`ask`, make the run, `tell`, until the answer comes."""

    def __init__(self, range_: Range) -> None:
        self._range = range_
        self._seen: dict[float, list[bool]] = {}

    def ask(self) -> Trial | Found:
        """The next run, or the answer. Asking twice changes nothing."""
        best, worst = self._best(), self._worst()
        rate = self._next(best, worst)
        if rate is not None:
            return Trial(rate=rate, repeat=len(self._seen.get(rate, ())))
        if best is None:
            assert worst is not None, "the lowest rate is decided"
            seen = self._seen[worst]
            return Found(rate=None, fails_at=worst, held=0, repeats=len(seen))
        seen = self._seen[best]
        if len(seen) < self._range.repeats:
            return Trial(rate=best, repeat=len(seen))
        return Found(rate=best, fails_at=worst, held=sum(seen), repeats=len(seen))

    def tell(self, rate: float, held: bool) -> None:
        """What a run showed."""
        asked = self.ask()
        assert isinstance(asked, Trial), "the search is over"
        assert asked.rate == rate, "another rate was asked for"
        self._seen.setdefault(rate, []).append(held)

    def _next(self, best: float | None, worst: float | None) -> float | None:
        """The rate that is not decided yet, or has to be tried; None: the answer is known."""
        open_rates = [rate for rate in self._seen if self._verdict(rate) is None]
        if open_rates:
            return open_rates[0]
        if best is None:
            return None if worst is not None else self._range.low
        if worst is None:
            high = self._range.high
            return None if best >= high else high if best * 2 >= high else _round(best * 2)
        if worst / best <= 1 + self._range.precision:
            return None
        middle = _round((best * worst) ** 0.5)
        return middle if best < middle < worst else None

    def _verdict(self, rate: float) -> bool | None:
        seen = self._seen[rate]
        if sum(seen) >= self._range.majority:
            return True
        return False if len(seen) - sum(seen) > self._range.repeats - self._range.majority else None

    def _best(self) -> float | None:
        """The highest rate that holds below the lowest one that does not."""
        worst = self._worst()
        held = [r for r in self._seen if self._verdict(r) is True and (worst is None or r < worst)]
        return max(held, default=None)

    def _worst(self) -> float | None:
        return min((rate for rate in self._seen if self._verdict(rate) is False), default=None)

    def check(self) -> None:
        """Prove what the module promises."""
        for seen in self._seen.values():
            assert len(seen) <= self._range.repeats, "a rate was tried too often"
        open_rates = [rate for rate in self._seen if self._verdict(rate) is None]
        assert len(open_rates) <= 1, "two rates are open"


def _round(rate: float) -> float:
    """To four significant digits: a rate that a person can type."""
    return float(f"{rate:.4g}")
