"""The headline figures of a run, with intervals that know how much they would vary by themselves.

Keeps true: the same records give the same figures. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from trieway.loadgen.records import Record
from trieway.loadgen.reports.judging import is_good, tpot_s, values_of
from trieway.loadgen.reports.schema import Figure
from trieway.loadgen.reports.slo import Slo
from trieway.loadgen.reports.stats import Sorted, interval, ratio, spread

LOWER_IS_BETTER = frozenset(
    {
        *("ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms", "tpot_p50_ms", "e2e_p50_ms", "e2e_p95_ms"),
        *("error_rate", "work_imbalance"),
    }
)
"""Of every other figure, more is better."""
Measure = Callable[[Sequence[Record]], float | None]


def uncached(record: Record) -> int:
    """Prompt tokens that had to be computed, as far as is known."""
    return (record.prompt_tokens or 0) - (record.cached_tokens or 0)


def _quantile(metric: str, share: float) -> Measure:
    def measure(records: Sequence[Record]) -> float | None:
        at = values_of(metric, [record for record in records if record.ok]).quantile(share)
        return None if at is None else at * 1e3

    return measure


def hit_rate(records: Sequence[Record]) -> float | None:
    """Cached over prompt tokens, of answered requests that tell both."""
    known = [r for r in records if r.ok and r.prompt_tokens is not None and r.cached_tokens is not None]
    return ratio(sum(r.cached_tokens or 0 for r in known), sum(r.prompt_tokens or 0 for r in known))


def _error_rate(records: Sequence[Record]) -> float | None:
    return ratio(sum(not record.ok for record in records), len(records))


def _per_s(amount: Callable[[Record], int]) -> Measure:
    """Over the span in which answers ended."""

    def measure(records: Sequence[Record]) -> float | None:
        ends = sorted((r.last_s, amount(r)) for r in records if r.ok and r.last_s is not None)
        if len(ends) < 2:
            return None
        return ratio(sum(much for _, much in ends[1:]), ends[-1][0] - ends[0][0])

    return measure


def _work_imbalance(records: Sequence[Record]) -> float | None:
    work: defaultdict[str, int] = defaultdict(int)
    for record in records:
        if record.ok and record.worker is not None:
            work[record.worker] += uncached(record)
    return ratio(max(work.values()) * len(work), sum(work.values())) if len(work) > 1 else None


MEASURES: dict[str, Measure] = {
    "ttft_p50_ms": _quantile("ttft", 0.5),
    "ttft_p95_ms": _quantile("ttft", 0.95),
    "itl_p50_ms": _quantile("itl", 0.5),
    "itl_p95_ms": _quantile("itl", 0.95),
    "tpot_p50_ms": lambda records: _milliseconds(Sorted.of(v for v in map(tpot_s, records) if v is not None)),
    "e2e_p50_ms": _quantile("e2e", 0.5),
    "e2e_p95_ms": _quantile("e2e", 0.95),
    "requests_per_s": _per_s(lambda record: 1),
    "output_tokens_per_s": _per_s(lambda record: record.output_tokens),
    "hit_rate": hit_rate,
    "error_rate": _error_rate,
}
_BY_END = {"requests_per_s", "output_tokens_per_s"}


def _milliseconds(values: Sorted) -> float | None:
    at = values.quantile(0.5)
    return None if at is None else at * 1e3


def figures_of(measured: Sequence[Record], slo: Slo | None = None) -> dict[str, Figure]:
    """Every headline that the records allow. `measured` in order of due time."""
    by_end = sorted((r for r in measured if r.last_s is not None), key=lambda record: record.last_s or 0.0)
    measures = dict(MEASURES)
    if slo is not None:
        measures["good_share"] = lambda records: ratio(sum(is_good(r, slo) for r in records), len(records))
    found = {}
    for name, measure in measures.items():
        records = by_end if name in _BY_END else measured
        value = measure(records)
        if value is not None:
            low, high = spread(records, measure, value) or (None, None)
            found[name] = Figure(value=value, low=low, high=high)
    # The work of a block of records says little of the whole's balance: no interval within one run.
    work = _work_imbalance(measured)
    if work is not None:
        found["work_imbalance"] = Figure(value=work)
    return found


def over_repeats(repeats: Sequence[dict[str, float]]) -> dict[str, Figure]:
    """The mean of each figure that every repeat has, with the interval between repeats."""
    assert repeats, "nothing to average"
    found = {}
    for name in repeats[0]:
        values = [repeat[name] for repeat in repeats if name in repeat]
        if len(values) == len(repeats):
            low, high = interval(values) or (None, None)
            found[name] = Figure(value=sum(values) / len(values), low=low, high=high)
    return found
