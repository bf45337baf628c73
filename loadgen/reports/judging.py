"""Runs and requests against an SLO.

Keeps true: an SLO without a measured value does not hold. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from trieway.loadgen.records import Record
from trieway.loadgen.reports.schema import Goodput
from trieway.loadgen.reports.slo import Bound, Slo
from trieway.loadgen.reports.stats import Sorted, ratio


def tpot_s(record: Record) -> float | None:
    """Time per output token after the first; None of fewer than two tokens."""
    if record.first_s is None or record.last_s is None or record.output_tokens < 2:
        return None
    return (record.last_s - record.first_s) / (record.output_tokens - 1)


def values_of(metric: str, records: Sequence[Record]) -> Sorted:
    """The seconds of one of slo.METRICS over answered requests."""
    match metric:
        case "ttft":
            return Sorted.of(record.ttft_s for record in records if record.ttft_s is not None)
        case "itl":
            return Sorted(gap for record in records for gap in record.gaps)
        case "tpot":
            return Sorted.of(value for value in map(tpot_s, records) if value is not None)
    assert metric == "e2e", f"no metric {metric}"
    return Sorted.of(record.e2e_s for record in records if record.e2e_s is not None)


def is_good(record: Record, slo: Slo) -> bool:
    """Answered, and each of its own times within the limit (of its waits between tokens: their mean)."""
    return record.ok and all(_within(record, bound) for bound in slo.bounds)


def _within(record: Record, bound: Bound) -> bool:
    value = {"ttft": record.ttft_s, "e2e": record.e2e_s}.get(bound.metric, tpot_s(record))
    return value is None or value * 1e3 <= bound.limit_ms


def broken(measured: Sequence[Record], slo: Slo) -> list[str]:
    """What does not hold, in words; empty: all does."""
    if not measured:
        return ["nothing was measured"]
    found = []
    ok = [record for record in measured if record.ok]
    for bound in slo.bounds:
        values = values_of(bound.metric, ok)
        at = values.quantile(bound.share)
        if at is None:
            # Answers of one token have no waits between tokens: nothing is broken by them.
            if bound.metric in ("ttft", "e2e") or not ok:
                found.append(f"{bound.metric} {bound.quantile} was not measured")
        elif at * 1e3 > bound.limit_ms:
            found.append(f"{bound.metric} {bound.quantile} {at * 1e3:.4g} ms > {bound.limit_ms:g} ms")
    errors = 1.0 - len(ok) / len(measured)
    if errors > slo.errors_max:
        found.append(f"errors {errors:.2%} > {slo.errors_max:g}" if slo.errors_max < 1e-4 else
                     f"errors {errors:.2%} > {slo.errors_max:.2%}")  # fmt: skip
    return found


def judge(measured: Sequence[Record], slo: Slo, window_s: float) -> Goodput:
    """Goodput, and whether the run as a whole holds."""
    good = sum(is_good(record, slo) for record in measured)
    problems = broken(measured, slo)
    return Goodput(
        slo=slo,
        good=good,
        share=ratio(good, len(measured)),
        per_s=ratio(good, window_s),
        holds=not problems,
        broken=problems,
    )
