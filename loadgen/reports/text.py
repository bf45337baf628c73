"""A report as text for a terminal, and numbers in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trieway.loadgen.reports.schema import Distribution, Report


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns padded to their widest cell, the first flush left, the rest right."""
    every = [header, *rows]
    assert all(len(row) == len(header) for row in every), "ragged table"
    widths = [max(len(row[column]) for row in every) for column in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in every
    ]


def number(value: float | None, digits: int = 3) -> str:
    """To so many significant digits, thousands set off; a dash for what is unknown."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    size = len(str(int(abs(value))))
    places = max(0, digits - size) if abs(value) >= 1 else digits
    return f"{value:,.{places}f}"


def percent(value: float | None) -> str:
    """A share."""
    return "-" if value is None else f"{value * 100:.1f} %"


def milliseconds(value: float | None) -> str:
    """A time in ms as one would say it."""
    if value is None:
        return "-"
    return f"{number(value / 1e3)} s" if value >= 10_000 else f"{number(value)} ms"


def lines(report: Report) -> Iterator[str]:
    """The whole summary."""
    if report.partial:
        yield f"PARTIAL: {report.partial_reason}"
    for note in report.notes:
        yield f"note: {note}"
    requests, rates = report.requests, report.rates
    outside = [f"{requests.warmup} warm-up"] * bool(requests.warmup)
    outside += [f"{requests.interrupted} interrupted"] * bool(requests.interrupted)
    tail = f" ({', '.join(outside)} apart)" if outside else ""
    yield (
        f"{requests.measured} requests measured: {requests.ok} ok, {requests.failed} failed, "
        f"{requests.abandoned} abandoned{tail}; seed {report.seed}"
    )
    for kind, count in report.errors.items():
        yield f"  {kind}: {count}"
    yield (
        f"offered {number(rates.offered_per_s)}/s, achieved {number(rates.achieved_per_s)}/s, "
        f"output {number(rates.output_tokens_per_s)} tokens/s, window {number(rates.window_s)} s"
    )
    latency = report.latency
    yield from table(
        ("ms", "count", "mean", "p50", "p90", "p95", "p99", "max"),
        [
            _latency("TTFT", latency.ttft_ms),
            _latency("inter-token", latency.itl_ms),
            _latency("per token", latency.tpot_ms),
            _latency("end to end", latency.e2e_ms),
        ],
    )
    yield from _cache(report)
    yield from _balance(report)
    goodput = report.goodput
    if goodput is not None:
        verdict = "holds" if goodput.holds else f"does not hold: {'; '.join(goodput.broken)}"
        yield f"SLO {goodput.slo} {verdict}; goodput {percent(goodput.share)}, {number(goodput.per_s)}/s"
    generator = report.generator
    if generator is not None:
        yield (
            f"generator: {generator.processes} process(es), lag p50 {milliseconds(generator.lag_ms.p50)}, "
            f"p99 {milliseconds(generator.lag_ms.p99)}, busiest at {percent(generator.cpu_share_max)} of a core"
        )


def _latency(name: str, at: Distribution) -> tuple[str, ...]:
    values = (at.mean, at.p50, at.p90, at.p95, at.p99, at.max)
    return name, f"{at.count:,}", *(number(value) for value in values)


def _cache(report: Report) -> Iterator[str]:
    cache = report.cache
    bound = ""
    if cache.bound_rate is not None:
        bound = f"; oracle bound {percent(cache.bound_rate)}, share of it {percent(cache.share_of_bound)}"
        if cache.share_of_bound is not None and cache.share_of_bound > 1.0:
            bound += " (the caches were warm before: --flush empties them)"
    yield (
        f"cached {_count(cache.cached_tokens)} of {cache.input_tokens:,} prompt tokens: hit rate "
        f"{percent(cache.hit_rate)}{bound}"
    )


def _balance(report: Report) -> Iterator[str]:
    workers = report.balance.workers
    if len(workers) > 1:
        yield (
            f"balance (busiest / mean): requests {number(report.balance.requests)}, "
            f"uncached tokens {number(report.balance.work)}"
        )
    if 1 < len(workers) <= 16:
        yield from table(
            ("worker", "requests", "uncached", "hit rate", "TTFT p50", "TTFT p95"),
            [
                (
                    share.worker,
                    str(share.requests),
                    f"{share.uncached_tokens:,}",
                    percent(share.hit_rate),
                    milliseconds(share.ttft_ms.p50),
                    milliseconds(share.ttft_ms.p95),
                )
                for share in workers
            ],
        )


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
