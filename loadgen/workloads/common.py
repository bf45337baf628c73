"""What all workloads are made of: settings with bounds, text by keys, drawn lengths, popularity, pauses.

Keeps true: all chance comes from the rng of one seed, and every piece of text has a key of its own, so pieces share
nothing unless they are the same piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, field
from itertools import accumulate
from math import exp, isfinite
from random import Random
from typing import Any

from trieway.loadgen.errors import WorkloadError
from trieway.loadgen.filler import KEY_MAX
from trieway.loadgen.vocabulary import Call, Filler, Hint

COUNT_MAX = 10_000_000


def number(default: int, about: str, *, least: int = 1, most: int = COUNT_MAX) -> int:
    """A whole number among a workload's settings."""
    return field(default=default, metadata={"least": least, "most": most, "about": about})


def share(default: float, about: str, *, least: float = 0.0, most: float = 1.0) -> float:
    """A real number among a workload's settings."""
    return field(default=default, metadata={"least": least, "most": most, "about": about})


def choice(default: str, about: str, *options: str) -> str:
    """A word among a workload's settings; without `options` any."""
    return field(default=default, metadata={"options": options, "about": about})


def switch(default: bool, about: str) -> bool:
    """Yes or no among a workload's settings."""
    return field(default=default, metadata={"about": about})


def bounds(one: Field[Any]) -> tuple[float, float] | None:
    """Least and most of a number setting."""
    return (one.metadata["least"], one.metadata["most"]) if "least" in one.metadata else None


@dataclass(slots=True)
class Draft:
    """A workload in the making: its chance, its text, and the sessions so far."""

    rng: Random
    key: int
    sessions: list[list[Call]]
    hints: list[Hint]

    @classmethod
    def begin(cls, seed: int) -> Draft:
        """Keys of two seeds begin far apart, so that runs with different seeds do not warm each other's caches."""
        rng = Random(seed)
        return cls(rng, rng.randrange(KEY_MAX), [], [])

    def words(self, count: int) -> Filler:
        """A new piece of text, unlike any other: so many words."""
        self.key = (self.key + 1) % KEY_MAX
        return Filler(self.key, count)

    def about(self, mean: int) -> int:
        """A length drawn evenly from half to one and a half times `mean`, at least 1."""
        return self.rng.randint(max(1, mean - mean // 2), mean + mean // 2)

    def some_words(self, mean: int) -> Filler:
        """A new piece of a drawn length."""
        return self.words(self.about(mean))

    def shuffle(self) -> None:
        """Sessions in an order of chance."""
        self.rng.shuffle(self.sessions)


class Popularity:
    """Draws 0 .. count - 1 by Zipf's law: the n-th is drawn in proportion to 1 / n ** exponent (0: all alike)."""

    def __init__(self, count: int, exponent: float) -> None:
        self._sums = list(accumulate(1.0 / (rank + 1) ** exponent for rank in range(count)))
        self._indices = range(count)

    def draw(self, rng: Random) -> int:
        return rng.choices(self._indices, cum_weights=self._sums)[0]

    def distinct(self, rng: Random, count: int) -> list[int]:
        """So many different ones, in order of draw."""
        assert count <= len(self._indices), "more than there are"
        left = dict(zip(self._indices, self._weights(), strict=True))
        found = []
        for _ in range(count):
            one = rng.choices(list(left), list(left.values()))[0]
            del left[one]
            found.append(one)
        return found

    def _weights(self) -> Sequence[float]:
        return [after - before for before, after in zip([0.0, *self._sums], self._sums, strict=False)]


@dataclass(frozen=True, slots=True)
class Pause:
    """Think or tool time by distribution: none, constant:2, uniform:1:3, exponential:2, lognormal:2:0.5 (median)."""

    kind: str
    first: float = 0.0
    second: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Pause:
        """WorkloadError: not one of these."""
        kind, *fields = text.split(":")
        wanted = {"none": 0, "constant": 1, "uniform": 2, "exponential": 1, "lognormal": 2}.get(kind)
        try:
            values = [float(one) for one in fields]
        except ValueError:
            values = [-1.0]
        if wanted != len(values) or not all(isfinite(one) and one >= 0 for one in values):
            forms = "none, constant:2, uniform:1:3, exponential:2 or lognormal:2:0.5"
            raise WorkloadError(f"{text!r} is no pause: say {forms} (seconds)")
        return cls(kind, *values)

    def draw(self, rng: Random) -> float:
        """Seconds."""
        match self.kind:
            case "constant":
                return self.first
            case "uniform":
                return rng.uniform(self.first, self.second)
            case "exponential":
                return rng.expovariate(1.0 / self.first) if self.first else 0.0
            case "lognormal":
                return self.first * exp(rng.gauss(0.0, self.second))
        return 0.0
