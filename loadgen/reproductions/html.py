"""Reproductions as one page: the tables of the terminal, and the curves drawn. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from trieway.loadgen.reports import page, svg
from trieway.loadgen.reports.text import percent
from trieway.loadgen.reproductions.results import AblationRow, CurveRow, PublishedCurveRow, Results
from trieway.loadgen.reproductions.text import tables, verdicts


def html_of(results: Results) -> str:
    """The whole file."""
    subtitle = f"{results.machine['name']} · seed {results.seed} · version {results.version}"
    body = [
        *([page.warning("Partial: interrupted")] if results.partial else []),
        *([page.note("A quick run: small workloads, coarse figures")] if results.quick else []),
        *map(page.note, verdicts(results)),
        page.plots([*_curves(results), *_bars(results)]),
    ]
    for title, header, rows in tables(results):
        body += [page.section(title), page.table(header, rows)]
    settings = [{"benchmark": row.benchmark, row.workload: row.settings} for row in results.hit_rates]
    body.append(page.details("Effective configuration", json.dumps([results.machine, *settings], indent=1)))
    return page.page(f"Next to the RadixAttention paper ({results.paper})", subtitle, body)


_CURVES = (
    ("Hit rate and batch", "requests that decode", "batch"),
    ("Hit rate and throughput", "output tokens per second", "output_tokens_per_s"),
    ("Hit rate and time of the run", "seconds", "run_s"),
    ("Hit rate and time to first token", "seconds", "ttft_s"),
)


def _curves(results: Results) -> Iterator[str]:
    if not results.curve:
        return
    for title, label, name in _CURVES:
        lines = [
            svg.Line(name="here", points=_points(results.curve, name), dots=True),
            svg.Line(name="published, read off", points=_points(results.published_curve, name), dashed=True, dots=True),
        ]
        across = svg.Axis(label="hit rate, %", low=0.0, high=100.0)
        yield page.plot(title, svg.lines(lines, across, svg.Axis(label=label, low=0.0)))


def _points(rows: list[CurveRow] | list[PublishedCurveRow], name: str) -> list[tuple[float, float | None]]:
    values = [msgspec.to_builtins(row) for row in rows]
    return [(value["hit_rate"] * 100.0, value[name]) for value in values]


def _bars(results: Results) -> Iterator[str]:
    if results.hit_rates:
        rows: list[tuple[str, float | None]] = [(row.benchmark, row.share) for row in results.hit_rates]
        yield page.plot("Share of the optimal hit rate", svg.bars(rows, high=1.0, show=percent))
    groups: dict[str, list[AblationRow]] = {}
    for row in results.ablations:
        groups.setdefault(row.benchmark, []).append(row)
    for benchmark, found in groups.items():
        bars: list[tuple[str, float | None]] = [(row.variant, row.throughput) for row in found]
        high = max(1.0, *(row.throughput for row in found))
        yield page.plot(f"{benchmark}: throughput over everything on", svg.bars(bars, high=high, show=_twice))


def _twice(value: float) -> str:
    return f"{value:.2f}"
