"""From records to a report: the sums, for the HTTP runner and the simulator alike.

Keeps true: requests = ok + failed + abandoned + warm-up + interrupted; every latency is of answered, measured requests
and counts from the due time; a share of nothing is None. Does not know who made the records. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trieway.loadgen.oracle import Bound as OracleBound
from trieway.loadgen.records import ABANDONED, INTERRUPTED, Record
from trieway.loadgen.reports import schema
from trieway.loadgen.reports.figures import figures_of, hit_rate, uncached
from trieway.loadgen.reports.judging import judge, tpot_s
from trieway.loadgen.reports.schema import Branch, Distribution, Report, Scrape
from trieway.loadgen.reports.slo import Slo
from trieway.loadgen.reports.stats import QUANTILES, Sorted, ratio
from trieway.loadgen.reports.timeline import timeline_of

LATE_MS = 5.0
LATE_OF_TTFT = 0.1
LATE_SHARE_MAX = 0.01
"""A generator lagged if over 1 % of requests went out late: by more than 5 ms and a tenth of the median TTFT."""
WORKERS_MAX = 1000
TENANTS_MAX = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """The load generator's own use. `cpu_share_max`: of its busiest process, of one core."""

    processes: int
    cpu_s: float | None = None
    cpu_share_max: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What a report says beside the records."""

    kind: Literal["load", "sim"]
    version: str
    workload: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    slo: Slo | None = None
    bound: OracleBound | None = None
    started: str | None = None
    partial_reason: str | None = None
    notes: Sequence[str] = ()
    client: Client | None = None
    """None: no generator that could lag (a simulation)."""
    scrapes: Sequence[Scrape] = ()
    tree: Mapping[str, list[Branch]] = field(default_factory=dict)


def summarise(records: Sequence[Record], context: Context) -> Report:
    """The report of one run; `records` in any order."""
    inside = [record for record in records if not record.warmup and record.status != INTERRUPTED]
    measured = sorted(inside, key=lambda record: record.due_s)
    ok = [record for record in measured if record.ok]
    latency = latency_of(ok)
    requests = _requests(records, measured)
    rates = _rates(measured, ok)
    client = None if context.client is None else generator_of(measured, latency.ttft_ms.p50, context.client)
    return Report(
        kind=context.kind,
        version=context.version,
        started=context.started,
        partial=context.partial_reason is not None,
        partial_reason=context.partial_reason,
        notes=[*context.notes, *_notes(client, ok)],
        workload=context.workload,
        seed=context.seed,
        settings=dict(context.settings),
        config=dict(context.config),
        requests=requests,
        errors=dict(Counter(record.status for record in measured if not record.ok).most_common()),
        rates=rates,
        latency=latency,
        goodput=None if context.slo is None else judge(measured, context.slo, rates.window_s),
        cache=_cache(ok, context.bound),
        balance=_balance(ok),
        tenants=_tenants(measured),
        generator=client,
        timeline=timeline_of(measured),
        scrapes=list(context.scrapes),
        tree=dict(context.tree),
        figures=figures_of(measured, context.slo),
    )


def distribution(values: Sorted, *, scale: float = 1e3) -> Distribution:
    """The percentiles of `values` times `scale` (seconds to ms)."""
    if values.mean is None:
        return Distribution(count=0)
    low, p50, p90, p95, p99, high = (
        None if at is None else at * scale for at in map(values.quantile, (0, 0.5, 0.9, 0.95, 0.99, 1.0))
    )
    return Distribution(
        count=values.count, mean=values.mean * scale, min=low, p50=p50, p90=p90, p95=p95, p99=p99, max=high
    )


def latency_of(ok: Sequence[Record]) -> schema.Latency:
    """Of answered requests."""
    sets = {
        "ttft": Sorted.of(record.ttft_s for record in ok if record.ttft_s is not None),
        "itl": Sorted(gap for record in ok for gap in record.gaps),
        "tpot": Sorted.of(value for value in map(tpot_s, ok) if value is not None),
        "e2e": Sorted.of(record.e2e_s for record in ok if record.e2e_s is not None),
    }
    return schema.Latency(
        ttft_ms=distribution(sets["ttft"]),
        itl_ms=distribution(sets["itl"]),
        tpot_ms=distribution(sets["tpot"]),
        e2e_ms=distribution(sets["e2e"]),
        curves_ms={name: _curve(values) for name, values in sets.items() if values.count},
        quantiles=list(QUANTILES),
    )


def _curve(values: Sorted) -> list[float]:
    return [at * 1e3 for at in map(values.quantile, QUANTILES) if at is not None]


def _requests(records: Sequence[Record], measured: Sequence[Record]) -> schema.Requests:
    ok = sum(record.ok for record in measured)
    abandoned = sum(record.status == ABANDONED for record in measured)
    interrupted = sum(record.status == INTERRUPTED for record in records)
    requests = schema.Requests(
        total=len(records),
        warmup=len(records) - len(measured) - interrupted,
        interrupted=interrupted,
        measured=len(measured),
        ok=ok,
        failed=len(measured) - ok - abandoned,
        abandoned=abandoned,
    )
    assert requests.warmup >= 0, "a record is counted twice"
    return requests


def _rates(measured: Sequence[Record], ok: Sequence[Record]) -> schema.Rates:
    if not measured:
        return schema.Rates(
            window_s=0.0, offered_per_s=None, achieved_per_s=None, input_tokens_per_s=None, output_tokens_per_s=None
        )
    first = measured[0].due_s
    window = max(record.due_s if record.last_s is None else record.last_s for record in measured) - first
    return schema.Rates(
        window_s=window,
        offered_per_s=ratio(len(measured) - 1, measured[-1].due_s - first),
        achieved_per_s=ratio(len(ok), window),
        input_tokens_per_s=ratio(sum(record.prompt_tokens or 0 for record in ok), window),
        output_tokens_per_s=ratio(sum(record.output_tokens for record in ok), window),
    )


def _cache(ok: Sequence[Record], bound: OracleBound | None) -> schema.Cache:
    said = [(r.prompt_tokens, r.cached_tokens) for r in ok]
    reused = [cached for prompt, cached in said if prompt is not None and cached is not None]
    total = sum(record.prompt_tokens or 0 for record in ok)
    rate = hit_rate(ok)
    best = None if bound is None else bound.share
    foreseen = [
        (r.predicted_tokens, r.cached_tokens)
        for r in ok
        if r.predicted_tokens is not None and r.cached_tokens is not None
    ]
    return schema.Cache(
        reported=bool(reused),
        input_tokens=total,
        cached_tokens=sum(reused) if reused else None,
        hit_rate=rate,
        bound_tokens=None if best is None else round(best * total),
        bound_rate=best,
        share_of_bound=None if rate is None or not best else rate / best,
        predicted_tokens=sum(expected for expected, _ in foreseen) if foreseen else None,
        prediction_error=ratio(
            sum(abs(expected - cached) for expected, cached in foreseen), sum(cached for _, cached in foreseen)
        ),
    )


def _ttft(records: Iterable[Record]) -> Distribution:
    return distribution(Sorted.of(record.ttft_s for record in records if record.ttft_s is not None))


def _balance(ok: Sequence[Record]) -> schema.Balance:
    parts: defaultdict[str, list[Record]] = defaultdict(list)
    for record in ok:
        if record.worker is not None:
            parts[record.worker].append(record)
    workers = [_share(worker, parts[worker]) for worker in sorted(parts)]
    return schema.Balance(
        workers=workers[:WORKERS_MAX],
        requests=imbalance([share.requests for share in workers]),
        work=imbalance([share.uncached_tokens for share in workers]),
    )


def imbalance(loads: Sequence[float]) -> float | None:
    """Busiest over mean."""
    return ratio(max(loads) * len(loads), sum(loads)) if loads else None


def _share(worker: str, records: Sequence[Record]) -> schema.WorkerShare:
    return schema.WorkerShare(
        worker=worker,
        requests=len(records),
        input_tokens=sum(record.prompt_tokens or 0 for record in records),
        cached_tokens=sum(record.cached_tokens or 0 for record in records),
        uncached_tokens=sum(map(uncached, records)),
        output_tokens=sum(record.output_tokens for record in records),
        hit_rate=hit_rate(records),
        ttft_ms=_ttft(records),
    )


def _tenants(measured: Sequence[Record]) -> list[schema.TenantShare]:
    parts: defaultdict[str, list[Record]] = defaultdict(list)
    for record in measured:
        if record.tenant is not None:
            parts[record.tenant].append(record)
    return [
        schema.TenantShare(
            tenant=tenant,
            requests=len(records),
            failed=sum(not record.ok for record in records),
            input_tokens=sum(record.prompt_tokens or 0 for record in records),
            output_tokens=sum(record.output_tokens for record in records),
            hit_rate=hit_rate([record for record in records if record.ok]),
            ttft_ms=_ttft(record for record in records if record.ok),
        )
        for tenant, records in sorted(parts.items())[:TENANTS_MAX]
    ]


def generator_of(measured: Sequence[Record], ttft_p50_ms: float | None, client: Client) -> schema.Generator:
    """How punctual the generator was."""
    lags = [record.lag_s for record in measured if record.lag_s is not None]
    late_ms = max(LATE_MS, LATE_OF_TTFT * (ttft_p50_ms or 0.0))
    late = ratio(sum(lag * 1e3 > late_ms for lag in lags), len(lags))
    return schema.Generator(
        processes=client.processes,
        lag_ms=distribution(Sorted.of(lags)),
        late_share=late,
        late_ms=late_ms,
        lagged=late is not None and late > LATE_SHARE_MAX,
        cpu_s=client.cpu_s,
        cpu_share_max=client.cpu_share_max,
    )


def _notes(client: schema.Generator | None, ok: Sequence[Record]) -> Iterable[str]:
    if client is not None and client.lagged:
        assert client.late_share is not None
        yield (
            f"THE GENERATOR LAGGED: {client.late_share:.1%} of requests went out over {client.late_ms:.0f} ms late "
            f"(p99 {client.lag_ms.p99 or 0.0:.0f} ms). Use more client processes, another machine, or a lower rate."
        )
    if ok and all(record.cached_tokens is None for record in ok):
        yield "the server does not report cached tokens: the hit rate is unknown"
    if ok and all(record.prompt_tokens is None for record in ok):
        yield "the server does not report usage: token counts are of stream events, and prompts are not counted"
