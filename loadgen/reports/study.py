"""Several runs as one document: a sweep over rates, or the search for the highest rate that holds.

Keeps true: as schema.py's of a single run. Pure but for reading and writing.
"""

from __future__ import annotations

from math import comb
from pathlib import Path
from typing import Any, Literal

import msgspec

from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.files import write_bytes
from trieway.loadgen.reports.schema import Requests
from trieway.loadgen.reports.slo import Slo

STUDY: Literal["trieway.study/1"] = "trieway.study/1"


class Setting(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What differs between the fleets of a study. None: one fleet, as it was found."""

    policy: str | None = None
    workers: int | None = None

    @property
    def name(self) -> str:
        """For tables and legends."""
        many = "" if self.workers == 1 else "s"
        said = [self.policy or "", f"{self.workers} worker{many}" if self.workers is not None else ""]
        return ", ".join(filter(None, said)) or "server"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one rate."""

    setting: Setting
    rate: float
    repeat: int
    seed: int
    requests: Requests
    figures: dict[str, float]
    """Headlines (figures.py)."""
    holds: bool | None = None
    """Against the SLO; None: there is none."""
    broken: list[str] = []
    lagged: bool = False
    """The generator did not keep up: latencies are its own in part, and plots leave them out."""
    inconclusive: bool = False
    """The SLO did not hold, but would have if counted from the sending: the generator is to blame, not the server."""
    bound_rate: float | None = None
    notes: list[str] = []


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the search found for one fleet."""

    setting: Setting
    rate: float | None
    """Highest rate that held; None: not even the lowest did."""
    fails_at: float | None
    """Lowest rate above it that did not hold; None: the highest one tried still held."""
    held: int
    """Repeats at `rate` in which the SLO held, of `repeats`."""
    repeats: int
    confidence: float | None
    """At least this share of runs at `rate` holds, with 95 % certainty."""
    why: str
    """In words, and what broke above it."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep or a search."""

    schema: Literal["trieway.study/1"] = STUDY
    kind: Literal["sweep", "capacity"]
    version: str
    started: str | None = None
    partial: bool = False
    partial_reason: str | None = None
    notes: list[str] = []
    workload: str
    seed: int
    settings: dict[str, Any] = {}
    config: dict[str, Any] = {}
    slo: Slo | None = None
    points: list[Point] = []
    capacities: list[Capacity] = []


def write_study(study: Study, path: Path) -> None:
    """JSON, indented. LoadError: it cannot be written."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(study), indent=1))


def read_study(path: Path) -> Study:
    """LoadError: no such file, or no study of this version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} is no study of {STUDY}: {error}") from None


def certain_share(held: int, of: int) -> float | None:
    """The share of runs that hold at least, with 95 % certainty (Clopper and Pearson, one-sided); None of no runs."""
    if not of:
        return None
    if not held:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if _at_least(held, of, middle) > 0.05:
            high = middle
        else:
            low = middle
    return low


def _at_least(held: int, of: int, share: float) -> float:
    return sum(comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(held, of + 1))
