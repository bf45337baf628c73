"""Two reports side by side, with a verdict that knows noise.

Keeps true: a difference is called one only if it is larger than what the measurements vary by themselves (95 %, split
over all figures that are compared) and larger than what anybody would care for; where noise hides differences that
matter, that is said too. Between runs more varies than within one: without repeats a verdict is provisional. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import variance

from trieway.loadgen.reports.figures import LOWER_IS_BETTER
from trieway.loadgen.reports.schema import Figure, Report
from trieway.loadgen.reports.stats import t95
from trieway.loadgen.reports.text import number, table

MATTERS = 0.02
"""Relative differences below this are nobody's business (shares: absolute, half of it)."""
SHARES = frozenset({"hit_rate", "error_rate", "good_share"})
BETWEEN_RUNS = 1.5
"""Without repeats, intervals within a run are widened so much: caches, machines and neighbours differ between runs."""
_T95_NORMAL = 1.96
_SAME = ("workload", "seed", "settings")
_SAME_CONFIG = ("model", "arrivals", "rate_counts", "duration_s", "processes", "flush", "slo")


class Verdict(Enum):
    """Of b against a."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    UNCLEAR = "too noisy to tell"


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Better or worse if one is and none is the opposite."""
    seen = set(verdicts)
    if Verdict.BETTER in seen and Verdict.WORSE in seen:
        return Verdict.UNCLEAR
    return next((one for one in (Verdict.WORSE, Verdict.BETTER, Verdict.UNCLEAR) if one in seen), Verdict.SAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One figure in both reports. `change`: b against a (shares: b - a; else relative), within `low` to `high`."""

    figure: str
    a: float
    b: float
    change: float
    low: float | None
    high: float | None
    verdict: Verdict

    @property
    def is_share(self) -> bool:
        """Whether `change` is in shares (0 to 1), not relative."""
        return self.figure in SHARES


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every figure that both have, and what to beware of."""

    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Better or worse if some figure is and none is the opposite."""
        return together(one.verdict for one in self.differences)

    @property
    def summary(self) -> str:
        """One line."""
        better = [one.figure for one in self.differences if one.verdict is Verdict.BETTER]
        worse = [one.figure for one in self.differences if one.verdict is Verdict.WORSE]
        unclear = [one.figure for one in self.differences if one.verdict is Verdict.UNCLEAR]
        if better and worse:
            return f"MIXED: b is better in {', '.join(better)} and worse in {', '.join(worse)}"
        hidden = f"; too noisy to tell: {', '.join(unclear)}" if unclear else ""
        if better or worse:
            return f"b is {'BETTER' if better else 'WORSE'} in {', '.join(better or worse)}{hidden}"
        if unclear:
            return f"NOT SHOWN: nothing differs by more than its noise{hidden}"
        return "NO DIFFERENCE that matters"


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What is compared of a report: headlines, and those of each repeat where there are several."""

    figures: Mapping[str, Figure]
    repeats: Sequence[Mapping[str, float]] = ()


def compare(a: Report, b: Report) -> Comparison:
    """b against a."""
    one, other = (Side(figures=report.figures, repeats=report.repeats) for report in (a, b))
    return Comparison(differences=differences(one, other), warnings=tuple(_warnings(a, b)))


def differences(a: Side, b: Side, *, among: int = 1) -> tuple[Difference, ...]:
    """Of every figure that both have. `among`: so many pairs are looked at, each with as many figures."""
    names = [name for name in a.figures if name in b.figures]
    # Several figures are looked at, so each has to be surer (Bonferroni, by widening the interval).
    wider = _widening(len(names) * among)
    return tuple(_difference(name, a, b, wider) for name in names)


def _widening(figures: int) -> float:
    """By what factor a 95 % interval grows to be 1 - 5 %/figures: normal quantiles, by bisection of erfc."""
    tail = 0.05 / max(figures, 1)
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) > tail else (low, middle)
    return low / _T95_NORMAL


def _difference(name: str, a: Side, b: Side, wider: float) -> Difference:
    first, second = a.figures[name], b.figures[name]
    scale = 1.0 if name in SHARES else 1.0 / first.value if first.value else math.nan
    change = (second.value - first.value) * scale
    half = _half_width(_repeats(a, name), _repeats(b, name), first, second)
    width = None if half is None or math.isnan(scale) else half * abs(scale) * wider
    if math.isnan(change):
        change = 0.0 if second.value == first.value else math.inf
    verdict = _verdict(name, change, width)
    return Difference(
        figure=name,
        a=first.value,
        b=second.value,
        change=change,
        low=None if width is None else change - width,
        high=None if width is None else change + width,
        verdict=verdict,
    )


def _repeats(side: Side, name: str) -> list[float]:
    values = [repeat[name] for repeat in side.repeats if name in repeat]
    return values if len(values) == len(side.repeats) else []


def _half_width(a: Sequence[float], b: Sequence[float], first: Figure, second: Figure) -> float | None:
    """Of the 95 % interval of the difference: Welch over repeats, else from both intervals within the runs."""
    if len(a) > 1 and len(b) > 1:
        parts = (variance(a) / len(a), variance(b) / len(b))
        if sum(parts) == 0.0:
            return 0.0
        freedom = sum(parts) ** 2 / sum(
            part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True) if part
        )
        return t95(max(freedom, 1.0)) * math.sqrt(sum(parts))
    halves = [_half(one) for one in (first, second)]
    known = [half for half in halves if half is not None]
    return math.hypot(*known) * BETWEEN_RUNS if len(known) == 2 else None


def _half(figure: Figure) -> float | None:
    return None if figure.low is None or figure.high is None else (figure.high - figure.low) / 2


def _verdict(name: str, change: float, width: float | None) -> Verdict:
    matters = MATTERS / 2 if name in SHARES else MATTERS
    if width is None:
        return Verdict.UNCLEAR if abs(change) > matters else Verdict.SAME
    if abs(change) > max(width, matters):
        return Verdict.BETTER if (change < 0) == (name in LOWER_IS_BETTER) else Verdict.WORSE
    # A change of 10 % that the interval cannot rule out would matter to anybody.
    return Verdict.UNCLEAR if abs(change) + width > 5 * matters else Verdict.SAME


def _warnings(a: Report, b: Report) -> Iterator[str]:
    for name, report in (("a", a), ("b", b)):
        if report.partial:
            yield f"{name} is partial: {report.partial_reason}"
        if report.generator is not None and report.generator.lagged:
            yield f"{name}'s generator lagged: its figures are those of another load"
        if len(report.repeats) < 2:
            yield f"{name} is one run: what varies between runs is only guessed; use --repeats 3 or more"
    if a.kind != b.kind:
        yield f"a is a {a.kind}, b a {b.kind}"
    for field in _SAME:
        if getattr(a, field) != getattr(b, field):
            yield f"{field} differs: {_short(getattr(a, field))} and {_short(getattr(b, field))}"
    for field in _SAME_CONFIG:
        if a.config.get(field) != b.config.get(field):
            yield f"{field} differs: {_short(a.config.get(field))} and {_short(b.config.get(field))}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def lines(comparison: Comparison) -> Iterator[str]:
    """The comparison as text; the verdict is last."""
    for warning in comparison.warnings:
        yield f"note: {warning}"
    yield from table(
        ("figure", "a", "b", "change", "95 % interval", "verdict"),
        [
            (
                one.figure,
                number(one.a),
                number(one.b),
                _change(one, one.change),
                "-" if one.low is None or one.high is None else f"{_change(one, one.low)} to {_change(one, one.high)}",
                one.verdict.value,
            )
            for one in comparison.differences
        ],
    )
    yield comparison.summary


def _change(one: Difference, value: float) -> str:
    if math.isinf(value):
        return "new"
    return f"{value * 100:+.1f} {'points' if one.is_share else '%'}"
