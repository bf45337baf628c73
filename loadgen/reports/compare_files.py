"""Two files side by side, whatever `load` and `sim` wrote: reports of a run, or studies of several fleets or rates.

Keeps true: of two studies only what both measured is compared, fleet by fleet and rate by rate, and each verdict is the
surer the more of them there are (compare.py). Does not know how runs were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.compare import Comparison, Side, Verdict, compare, differences, lines, together
from trieway.loadgen.reports.figures import over_repeats
from trieway.loadgen.reports.files import read_as
from trieway.loadgen.reports.schema import SCHEMA, Report
from trieway.loadgen.reports.study import STUDY, Capacity, Point, Setting, Study
from trieway.loadgen.reports.text import number


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What to print, and what it comes to."""

    lines: tuple[str, ...]
    verdict: Verdict


def compare_files(a: Path, b: Path) -> Compared:
    """b against a. LoadError: one of them is no report, they are not of one kind, or have nothing in common."""
    kinds: dict[str, type[Report] | type[Study]] = {SCHEMA: Report, STUDY: Study}
    first, second = read_as(a, kinds), read_as(b, kinds)
    if isinstance(first, Report) and isinstance(second, Report):
        found = compare(first, second)
        return Compared(lines=tuple(lines(found)), verdict=found.verdict)
    if isinstance(first, Study) and isinstance(second, Study):
        return _studies(first, second)
    raise LoadError(f"{a} is a {_kind(first)}, {b} a {_kind(second)}: compare two reports, or two studies")


def _kind(one: Report | Study) -> str:
    return "report" if isinstance(one, Report) else "study"


def _studies(a: Study, b: Study) -> Compared:
    pairs = list(_pairs(a, b))
    if not pairs:
        raise LoadError("the two studies have no fleet and rate in common")
    told: list[str] = [f"note: {one}" for one in _beware(a, b)]
    comparisons = []
    for name, first, second in pairs:
        found = Comparison(differences=differences(_side(first), _side(second), among=len(pairs)), warnings=())
        comparisons.append(found)
        told += ["", name, *lines(found)]
    told += ["", *_capacities(a.capacities, b.capacities)]
    verdict = together(one.verdict for one in comparisons)
    told.append(f"{len(pairs)} compared, taken together: {verdict.value}")
    return Compared(lines=tuple(told), verdict=verdict)


def _beware(a: Study, b: Study) -> Iterator[str]:
    for name, study in (("a", a), ("b", b)):
        if study.partial:
            yield f"{name} is partial: {study.partial_reason}"
    for field in ("kind", "workload", "seed", "settings"):
        one, other = getattr(a, field), getattr(b, field)
        if one != other:
            yield f"{field} differs: {one} and {other}"
    for key in ("model", "arrivals", "duration", "gpu", "calibration"):
        one, other = a.config.get(key), b.config.get(key)
        if one != other:
            yield f"{key} differs: {one} and {other}"


def _pairs(a: Study, b: Study) -> Iterator[tuple[str, list[Point], list[Point]]]:
    """Runs of equal fleets at equal rates. A fleet that was measured at one rate in both is one pair, whatever that
    rate came to: of closed loops and traces it is measured, not asked for."""
    first, second = _by_setting(a.points), _by_setting(b.points)
    for setting, groups in first.items():
        others = second.get(setting, [])
        if len(groups) == len(others) == 1:
            yield setting.name, groups[0], others[0]
            continue
        rates = {points[0].rate: points for points in others}
        for points in groups:
            if points[0].rate in rates:
                yield f"{setting.name} at {number(points[0].rate)}/s", points, rates[points[0].rate]


def _by_setting(points: Sequence[Point]) -> dict[Setting, list[list[Point]]]:
    """The runs at each rate: a new rate begins with repeat 0."""
    found: dict[Setting, list[list[Point]]] = {}
    for setting, group in groupby(points, key=lambda point: point.setting):
        rates = found.setdefault(setting, [])
        for point in group:
            if point.repeat == 0 or not rates:
                rates.append([])
            rates[-1].append(point)
    return found


def _side(points: Sequence[Point]) -> Side:
    repeats = [point.figures for point in points]
    return Side(figures=over_repeats(repeats), repeats=repeats if len(repeats) > 1 else ())


def _capacities(a: Sequence[Capacity], b: Sequence[Capacity]) -> Iterator[str]:
    known = {one.setting: one for one in b}
    for one in a:
        other = known.get(one.setting)
        if other is not None:
            yield f"{one.setting.name}: capacity {_rate(one)} and {_rate(other)}"


def _rate(one: Capacity) -> str:
    return "none" if one.rate is None else f"{number(one.rate)}/s"
