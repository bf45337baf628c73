"""Reproductions as tables for a terminal, each figure next to the published one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trieway.loadgen.reports.text import number, percent, table
from trieway.loadgen.reproductions import published
from trieway.loadgen.reproductions.results import AblationRow, CurveRow, OverheadRow, Results, ScalingRow, Times

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, header, rows."""


def lines(results: Results) -> Iterator[str]:
    """All that was found."""
    if results.partial:
        yield "PARTIAL: interrupted"
    for title, header, rows in tables(results):
        yield ""
        yield title
        yield from table(header, rows)
    yield ""
    yield from verdicts(results)


def tables(results: Results) -> Iterator[Table]:
    """Those that have rows."""
    found = (
        _hit_rates(results),
        _ablations(results.ablations),
        _curve(results),
        _scaling(results.scaling),
        _overhead(results.overhead, results.times),
    )
    return (one for one in found if one[2])


def verdicts(results: Results) -> Iterator[str]:
    """The headline figures, one line each."""
    if results.share_mean is not None:
        yield (
            f"share of the optimal hit rate, mean of {_compared(results)} benchmarks: {percent(results.share_mean)} "
            f"(published: {percent(results.published_share_mean)} of eleven, {published.SHARE_MEAN.where}; "
            f"{percent(results.published_share_mean_of_these)} of these by figure 13); as shipped "
            f"{percent(results.shipped_share_mean)}"
        )
    for row in results.scaling:
        if row.workers == published.SCALING_WORKERS and row.policy == "cache_aware":
            yield (
                f"scaling, MMLU {row.order}: {row.speedup:.2f} times the throughput on {row.workers} workers, hit rate "
                f"{percent(row.hit_rate)} of {percent(row.optimum)} (published: {published.SCALING})"
            )
    for times in results.times:
        against = ""
        if times.share_of_published_run is not None:
            against = (
                f", {times.share_of_published_run:.2%} of the {published.OVERHEAD_RUN_S.value:g} s that the paper "
                f"measured (published: {published.OVERHEAD_MANAGING_S.value:g} s, under "
                f"{published.OVERHEAD_SHARE.value:.1%}; section 6.3)"
            )
        yield (
            f"overhead without sharing, {times.machine}: {times.managing_cpu_s:.3f} s of managing, "
            f"{times.share_of_run:.2%} of the simulated run{against}"
        )


def _compared(results: Results) -> int:
    return sum(row.published_hit_rate is not None for row in results.hit_rates)


def reading(value: float | None, error: float | None, *, shares: bool = True) -> str:
    """A published value with how far off it may have been read."""
    if value is None:
        return "-"
    if shares:
        return f"{value * 100:.0f} ±{(error or 0.0) * 100:.0f} %"
    return f"{value:.2f} ±{error or 0.0:.2f}"


def _hit_rates(results: Results) -> Table:
    rows = []
    for row in results.hit_rates:
        known = (row.published_hit_rate, row.published_optimum)
        share = None if known[0] is None or not known[1] else known[0] / known[1]
        rows.append(
            (
                row.benchmark,
                f"{row.calls:,}",
                percent(row.hit_rate),
                percent(row.optimum),
                percent(row.share),
                reading(known[0], row.published_error),
                reading(known[1], row.published_error),
                percent(share),
                percent(row.shipped_hit_rate),
                f"{number(row.programs_per_s)}",
                f"{row.over_no_cache:.2f}",
            )
        )
    title = f"Hit rates on one worker ({results.machine['name']}, {results.machine['kv_tokens']:,} tokens of cache)"
    header = (
        "benchmark", "calls", "hit rate", "optimum", "share", "published", "its optimum", "its share", "as shipped",
        "programs/s", "over no cache",
    )  # fmt: skip
    return title, header, rows


def _ablations(rows: Sequence[AblationRow]) -> Table:
    shown = [
        (
            f"{row.benchmark}: {row.variant} ({row.about})",
            f"{row.throughput:.2f}",
            percent(row.hit_rate),
            reading(row.published, row.published_error, shares=False),
        )
        for row in rows
    ]
    header = ("ablation", "throughput", "hit rate", "published")
    return "Ablations: throughput over that with everything on (figure 8c)", header, shown


def _curve(results: Results) -> Table:
    points = results.published_curve
    rows = []
    for row in results.curve:
        near = min(points, key=lambda point: abs(point.hit_rate - row.hit_rate))
        close = abs(near.hit_rate - row.hit_rate) <= 0.05
        rows.append((*_point(row), *(_near(near.batch, close), _near(near.output_tokens_per_s, close))))
        rows[-1] += (_near(near.run_s, close), _near(near.ttft_s, close))
    header = (
        "at most", "hit rate", "batch", "tokens/s", "run s", "TTFT s", "published batch", "tokens/s", "run s", "TTFT s",
    )  # fmt: skip
    return "Hit rate, batch, throughput and latency on trees of thought (figures 8a and 8b, ±10 %)", header, rows


def _point(row: CurveRow) -> tuple[str, ...]:
    return (
        f"{row.reuse_share:.0%}",
        percent(row.hit_rate),
        number(row.batch),
        number(row.output_tokens_per_s),
        number(row.run_s),
        number(row.ttft_s),
    )


def _near(value: float, close: bool) -> str:
    return f"{value:g}" if close else "-"


def _scaling(rows: Sequence[ScalingRow]) -> Table:
    shown = [
        (
            f"{row.order}: {row.workers} x {row.policy}",
            number(row.programs_per_s),
            f"{row.speedup:.2f}",
            f"{row.speedup / row.workers:.0%}",
            percent(row.hit_rate),
            percent(row.optimum),
            percent(row.share),
            f"{row.busiest:.2f}",
        )
        for row in rows
    ]
    header = ("workers", "questions/s", "speed-up", "of linear", "hit rate", "optimum", "share", "busiest / mean")
    return "MMLU on several workers (appendix A.4: linear, optimal hit rate)", header, shown


def _overhead(rows: Sequence[OverheadRow], times: Sequence[Times]) -> Table:
    measured = {one.machine: one for one in times}
    shown = []
    for row in rows:
        one = measured.get(row.machine)
        shown.append(
            (
                row.machine,
                f"{row.requests:,}",
                f"{row.prompt_tokens:,}",
                f"{row.output_tokens:,}",
                f"{row.operations:,}",
                number(row.run_s),
                "-" if one is None else f"{one.managing_cpu_s:.3f}",
                "-" if one is None else f"{one.share_of_run:.2%}",
                "-" if one is None else f"{one.core_share_of_run:.2%}",
            )
        )
    header = (
        "no sharing", "requests", "prompt", "output", "operations", "run s", "managing s", "of the run",
        "whole scheduler",
    )  # fmt: skip
    return "Managing the cache where nothing is shared (section 6.3: 0.2 s of 74.3 s)", header, shown
