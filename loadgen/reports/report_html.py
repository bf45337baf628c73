"""One run's report as a page. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from trieway.loadgen.reports import page, svg
from trieway.loadgen.reports.schema import Branch, Distribution, Report, Scrape, Timeline
from trieway.loadgen.reports.text import milliseconds, number, percent

_NAMES = {"ttft": "time to first token", "itl": "between tokens", "tpot": "per output token", "e2e": "end to end"}
_TABLE_ROWS_MAX = 64
_PLOT_SERIES_MAX = 8


def html_of(report: Report) -> str:
    """The whole file."""
    kind = "load test" if report.kind == "load" else "simulation"
    config = report.config
    where = [str(config["url"])] if "url" in config else []
    how = [str(config[key]) for key in ("model", "arrivals") if config.get(key)]
    subtitle = " · ".join([*where, *how, f"seed {report.seed}", *filter(None, [report.started])])
    body = [
        *_warnings(report),
        page.cards(list(_cards(report))),
        page.section("Latency"),
        page.plots(list(_latency_plots(report))),
        _latency_table(report),
        page.section("Reuse"),
        page.plots(list(_reuse_plots(report))),
        page.section("Workers"),
        page.plots(list(_worker_plots(report))),
        _worker_table(report),
        *_tenants(report),
        *_servers(report),
        page.details("Effective configuration", json.dumps({"workload": report.settings, "run": config}, indent=1)),
    ]
    return page.page(f"{report.workload}: {kind}", subtitle, body)


def _warnings(report: Report) -> Iterator[str]:
    if report.partial:
        yield page.warning(f"Partial: {report.partial_reason}")
    for text in report.notes:
        yield page.warning(text) if "LAGGED" in text else page.note(text)


def _cards(report: Report) -> Iterator[str]:
    requests, latency, rates, cache = report.requests, report.latency, report.rates, report.cache
    yield page.card(
        f"{requests.ok:,} of {requests.measured:,}", "requests answered", good=requests.ok == requests.measured
    )
    yield page.card(f"{number(rates.achieved_per_s)}/s", f"achieved; offered {number(rates.offered_per_s)}/s")
    yield page.card(milliseconds(latency.ttft_ms.p50), f"TTFT p50; p95 {milliseconds(latency.ttft_ms.p95)}")
    yield page.card(milliseconds(latency.itl_ms.p50), f"between tokens p50; p95 {milliseconds(latency.itl_ms.p95)}")
    yield page.card(percent(cache.hit_rate), f"hit rate; oracle bound {percent(cache.bound_rate)}")
    if cache.share_of_bound is not None:
        yield page.card(percent(cache.share_of_bound), "of the oracle bound reached")
    if report.balance.work is not None:
        yield page.card(number(report.balance.work), "busiest worker over mean, uncached tokens")
    if report.goodput is not None:
        yield page.card(
            "holds" if report.goodput.holds else "broken",
            f"SLO {report.goodput.slo}; goodput {percent(report.goodput.share)}",
            good=report.goodput.holds,
        )


def _latency_plots(report: Report) -> Iterator[str]:
    latency = report.latency
    shares = [share * 100 for share in latency.quantiles]
    for names, title in ((("ttft", "e2e"), "Share of requests answered within"), (("itl", "tpot"), "Between tokens")):
        curves = [
            svg.Line(name=_NAMES[name], points=list(zip(latency.curves_ms[name], shares, strict=True)))
            for name in names
            if name in latency.curves_ms
        ]
        yield page.plot(title, svg.lines(curves, svg.Axis(label="ms (logarithmic)", log=True), _share_axis("%")))
    if report.timeline is not None:
        yield page.plot("Time to first token over the run", _ttft_over_time(report.timeline))
    if report.errors:
        most = max(report.errors.values())
        rows = [(kind, float(count)) for kind, count in list(report.errors.items())[:12]]
        yield page.plot("Errors by kind", svg.bars(rows, high=most, show=lambda count: f"{count:.0f}"))


def _share_axis(label: str) -> svg.Axis:
    return svg.Axis(label=label, low=0.0, high=100.0)


def _ttft_over_time(timeline: Timeline) -> str:
    times = [index * timeline.step_s for index in range(len(timeline.ttft_p50_ms))]
    return svg.lines(
        [
            svg.Line(name="p50", points=list(zip(times, timeline.ttft_p50_ms, strict=True))),
            svg.Line(name="p95", points=list(zip(times, timeline.ttft_p95_ms, strict=True))),
        ],
        svg.Axis(label="seconds", low=0.0),
        svg.Axis(label="ms", low=0.0),
    )


def _latency_table(report: Report) -> str:
    latency = report.latency
    rows = [
        _row("time to first token", latency.ttft_ms),
        _row("between tokens", latency.itl_ms),
        _row("per output token", latency.tpot_ms),
        _row("end to end", latency.e2e_ms),
    ]
    if report.generator is not None:
        rows.append(_row("generator's lag", report.generator.lag_ms))
    return page.table(("ms", "count", "mean", "p50", "p90", "p95", "p99", "max"), rows)


def _row(name: str, at: Distribution) -> tuple[str, ...]:
    return name, f"{at.count:,}", *(number(value) for value in (at.mean, at.p50, at.p90, at.p95, at.p99, at.max))


def _reuse_plots(report: Report) -> Iterator[str]:
    cache = report.cache
    foreseen = None
    if cache.predicted_tokens is not None and cache.input_tokens:
        foreseen = cache.predicted_tokens / cache.input_tokens
    rows = [("oracle bound", cache.bound_rate), ("hit rate", cache.hit_rate), ("router's prediction", foreseen)]
    yield page.plot(
        "Prompt tokens reused, against the oracle bound",
        svg.bars(rows, high=1.0, show=percent),
        caption="The bound is what no placement could exceed with caches of this size.",
    )
    if report.timeline is not None:
        yield page.plot("Hit rate over the run", _hits_over_time(report.timeline, cache.bound_rate))
    for group, branches in list(report.tree.items())[:4]:
        yield page.plot(
            f"Heat of the meta-tree, {group}",
            svg.icicle([_cell(branch, _workers_in(branches)) for branch in branches]),
            wide=True,
            caption="Each row is a level of the prefix tree. Width: blocks in and below; colour: share of the workers "
            "that hold it.",
        )


def _hits_over_time(timeline: Timeline, bound: float | None) -> str:
    def rates(given: Sequence[int], cached: Sequence[int]) -> list[tuple[float, float | None]]:
        return [
            (index * timeline.step_s, 100 * hit / tokens if tokens else None)
            for index, (tokens, hit) in enumerate(zip(given, cached, strict=True))
        ]

    totals = [
        [sum(values) for values in zip(*(getattr(lane, name) for lane in timeline.lanes), strict=True)]
        for name in ("input_tokens", "cached_tokens")
    ]
    lines = [svg.Line(name="all", points=rates(*totals))]
    if 1 < len(timeline.lanes) <= _PLOT_SERIES_MAX - 2:
        lines += [
            svg.Line(name=lane.worker, points=rates(lane.input_tokens, lane.cached_tokens)) for lane in timeline.lanes
        ]
    if bound is not None:
        end = (len(timeline.ttft_p50_ms) - 1) * timeline.step_s
        lines.append(
            svg.Line(name="bound of the whole run", points=[(0.0, 100 * bound), (end, 100 * bound)], dashed=True)
        )
    return svg.lines(lines, svg.Axis(label="seconds", low=0.0), _share_axis("% of prompt tokens"))


def _cell(branch: Branch, workers: int) -> svg.Cell:
    below = [_cell(child, workers) for child in branch.children]
    holders = len(branch.workers)
    return svg.Cell(
        tip=f"{branch.hash}: {branch.blocks} blocks, usable {branch.usable} tokens, held by {holders} "
        f"({', '.join(branch.workers[:8])}), {branch.forks} branches follow",
        size=branch.blocks + sum(cell.size for cell in below),
        heat=holders / workers if workers else 0.0,
        below=below,
    )


def _workers_in(branches: Sequence[Branch]) -> int:
    def every(branch: Branch) -> set[str]:
        return set(branch.workers).union(*map(every, branch.children))

    return len(set().union(*map(every, branches)))


def _worker_plots(report: Report) -> Iterator[str]:
    timeline = report.timeline
    if timeline is None:
        return
    busiest = max((max(lane.in_flight, default=0.0) for lane in timeline.lanes), default=0.0)
    yield page.plot(
        f"Requests in flight per worker (up to {number(busiest)})",
        svg.strips(
            [(lane.worker, lane.in_flight) for lane in timeline.lanes],
            step_s=timeline.step_s,
            high=busiest,
            show=lambda value: f"{number(value)} in flight",
        ),
        wide=True,
    )
    hits = [
        (
            lane.worker,
            [hit / given if given else None for given, hit in zip(lane.input_tokens, lane.cached_tokens, strict=True)],
        )
        for lane in timeline.lanes
    ]
    yield page.plot("Hit rate per worker", svg.strips(hits, step_s=timeline.step_s, high=1.0, show=percent), wide=True)


def _worker_table(report: Report) -> str:
    rows = [
        (
            share.worker,
            f"{share.requests:,}",
            f"{share.input_tokens:,}",
            f"{share.uncached_tokens:,}",
            f"{share.output_tokens:,}",
            percent(share.hit_rate),
            milliseconds(share.ttft_ms.p50),
            milliseconds(share.ttft_ms.p95),
        )
        for share in report.balance.workers[:_TABLE_ROWS_MAX]
    ]
    header = ("worker", "requests", "prompt tokens", "uncached", "output", "hit rate", "TTFT p50", "TTFT p95")
    return page.table(header, rows) if rows else ""


def _tenants(report: Report) -> Iterator[str]:
    if report.tenants:
        rows = [
            (
                share.tenant,
                f"{share.requests:,}",
                f"{share.failed:,}",
                percent(share.hit_rate),
                milliseconds(share.ttft_ms.p50),
                milliseconds(share.ttft_ms.p95),
            )
            for share in report.tenants[:_TABLE_ROWS_MAX]
        ]
        yield page.section("Tenants")
        yield page.table(("tenant", "requests", "failed", "hit rate", "TTFT p50", "TTFT p95"), rows)


def _servers(report: Report) -> Iterator[str]:
    drawn = [page.plot(name, drawing) for scrape in report.scrapes for name, drawing in _gauges(scrape)]
    if drawn:
        yield page.section("What the servers said of themselves")
        yield page.plots(drawn)
    gained = {f"{scrape.source} {name}": value for scrape in report.scrapes for name, value in scrape.deltas.items()}
    if gained:
        yield page.details("Counters gained during the run", "\n".join(f"{n} {v:g}" for n, v in gained.items()))


def _gauges(scrape: Scrape) -> Iterator[tuple[str, str]]:
    families: dict[str, list[svg.Line]] = {}
    for series in scrape.series:
        name, _, labels = series.name.partition("{")
        if any(series.values):
            line = svg.Line(
                name=labels.rstrip("}") or name, points=list(zip(series.times_s, series.values, strict=True))
            )
            families.setdefault(name, []).append(line)
    for name, lines in list(families.items())[:4]:
        drawing = svg.lines(lines[:_PLOT_SERIES_MAX], svg.Axis(label="seconds", low=0.0), svg.Axis(label="", low=0.0))
        yield f"{scrape.source}: {name}", drawing
