"""Both sides beside each other, figure by figure, with what the real fleet differs from itself. Pure.

Keeps true: bounds are the issue's own (a point of hit rate, 15 % of throughput and of the median TTFT) and judged on
means over the runs; figures without a bound are printed beside and judge nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tests.tools.honesty.cases import Case
from tests.tools.honesty.runs import FIGURES, Run
from trieway.loadgen.reports.stats import interval
from trieway.loadgen.reports.text import number, percent, table

BOUNDS = {"hit_rate": 0.01, "requests_per_s": 0.15, "ttft_p50_ms": 0.15}
"""The hit rate's in points (1 is all), the others relative to the real figure."""

_COSTS = (
    *(("step_ms", "ms"), ("request_us", "us"), ("prefill_token_us", "us"), ("prefill_pair_ns", "ns")),
    *(("prefill_context_us", "us"), ("decode_us", "us"), ("decode_context_us", "us")),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One figure of one workload. `difference`, `noise` and `half`: as BOUNDS counts them. `noise`: the farthest that
    a real run was from the mean of the others; `half`: of the 95 % interval of the real mean. None: of one run."""

    figure: str
    real: float
    simulated: float
    difference: float
    noise: float | None
    half: float | None

    @property
    def within(self) -> bool | None:
        """None: no bound."""
        bound = BOUNDS.get(self.figure)
        return None if bound is None else abs(self.difference) <= bound


def line_of(figure: str, real: Sequence[float], simulated: Sequence[float]) -> Line:
    """At least one run of each."""
    middle = fmean(real)
    scale = 1.0 if figure == "hit_rate" or not middle else 1.0 / middle
    ends = interval(real)
    noise = None
    if len(real) > 1:
        others = [(sum(real) - one) / (len(real) - 1) for one in real]
        noise = max(abs(one - other) for one, other in zip(real, others, strict=True)) * scale
    return Line(
        figure=figure,
        real=middle,
        simulated=fmean(simulated),
        difference=(fmean(simulated) - middle) * scale,
        noise=noise,
        half=None if ends is None else (ends[1] - ends[0]) / 2 * scale,
    )


def lines_of(real: Sequence[Run], simulated: Sequence[Run]) -> list[Line]:
    """Every figure; then the tokens, which must be alike for the rest to mean anything."""
    found = [
        line_of(name, [run.figures[name] for run in real], [run.figures[name] for run in simulated]) for name in FIGURES
    ]
    for name in ("prompt_tokens", "output_tokens"):
        found.append(line_of(name, [getattr(run, name) for run in real], [getattr(run, name) for run in simulated]))
    return found


def text_of(case: Case, real: Sequence[Run], simulated: Sequence[Run], *, judged: bool) -> Iterator[str]:
    """The table of one workload. `judged`: whether bounds apply to this fleet."""
    loop = "closed" if case.saturated else "open: the throughput is that of the arrivals"
    yield f"{case.name} ({case.arrivals_text}, {loop}): {case.about}"
    yield f"{real[0].requests} requests measured, {len(real)} real and {len(simulated)} simulated runs, equal calls"
    yield from table(
        ("figure", "real", "95 % +-", "simulated", "difference", "bound", "", "real against itself"),
        [_row(line, judged) for line in lines_of(real, simulated)],
    )


def _row(line: Line, judged: bool) -> tuple[str, ...]:
    bound = BOUNDS.get(line.figure) if judged else None
    verdict = "" if bound is None else ("holds" if line.within else "BROKEN")
    return (
        line.figure,
        _value(line.figure, line.real),
        _part(line.figure, line.half),
        _value(line.figure, line.simulated),
        _part(line.figure, line.difference, sign=True),
        _part(line.figure, bound),
        verdict,
        _part(line.figure, line.noise),
    )


def _value(figure: str, value: float) -> str:
    return f"{value * 100:.2f} %" if figure == "hit_rate" else number(value)


def _part(figure: str, part: float | None, *, sign: bool = False) -> str:
    if part is None:
        return "-"
    unit = "points" if figure == "hit_rate" else "%"
    digits = 2 if figure == "hit_rate" else 1
    return f"{part * 100:+.{digits}f} {unit}" if sign else f"{part * 100:.{digits}f} {unit}"


def broken(case: Case, real: Sequence[Run], simulated: Sequence[Run]) -> list[str]:
    """The bounds that do not hold, in words."""
    return [
        f"{case.name}: {line.figure} is off by {_part(line.figure, line.difference, sign=True)}"
        for line in lines_of(real, simulated)
        if line.within is False
    ]


def costs_of(calibration: Mapping[str, Any]) -> Iterator[str]:
    """What was measured, alone and together."""
    sides = [(name, calibration[name]) for name in ("alone", "together") if calibration[name] is not None]
    names = [f"{name[: -len(unit) - 1].replace('_', ' ')}, {unit}" for name, unit in _COSTS]
    rows = [(side, *(number(costs[name]) for name, _ in _COSTS), percent(costs["error"])) for side, costs in sides]
    yield from table(("", *names, "error of a mix"), rows)
    yield f"a lone request takes {number(calibration['latency_ms'])} ms more, with the engine free"
