"""Recorded traffic under the reference's plain rules, and on the simulated fleet beside them.

Keeps true: both sides have the same rows, caches of the same size and the same measures (hit rate, busiest over mean of
uncached tokens, the same in the trace's own windows of 60 s). They differ in what a calculator leaves out: on the fleet
time passes, requests overlap and hold their pages, answers are cached too, and a router knows what it was told. Text is
cut by the simulated tokenizer, not at four bytes a token. Does not know files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trieway.loadgen.arrivals import TraceTimes, schedule
from trieway.loadgen.oracle import trace_bound
from trieway.loadgen.records import Record
from trieway.loadgen.reference import RULES, WINDOW_MS, Outcome, Reference, imbalance
from trieway.loadgen.replay import replay
from trieway.loadgen.reports.figures import uncached
from trieway.loadgen.reports.stats import Sorted
from trieway.loadgen.run_bound import run_bound
from trieway.loadgen.sim.config import FleetSetup, RouterSetup, WorkerSetup
from trieway.loadgen.sim.cost import CostModel
from trieway.loadgen.simulations.playing import Stop, simulate
from trieway.loadgen.traces import Trace, TraceRow

PAGE_TOKENS = 16
"""Of a simulated worker: divides the block sizes of all traces."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A fleet: so many workers with a cache of so many tokens each (None: endless)."""

    workers: int
    cache_tokens: int | None

    @property
    def total_tokens(self) -> int | None:
        return None if self.cache_tokens is None else self.workers * self.cache_tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What each rule reached with one size, and what no placement could exceed."""

    rules: dict[str, Outcome]
    bound_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What a policy reached on the simulated fleet. `load`: computing of prompts, as a share of the fleet's time."""

    policy: str
    outcome: Outcome
    bound_share: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    load: float
    requests: int
    failed: int
    virtual_s: float
    cpu_s: float
    interrupted: bool


def count(reference: Reference, trace: Trace, size: Size) -> Counted:
    """All rules, one request after the other."""
    return Counted(
        rules={rule: reference.run(rule, size.workers, size.cache_tokens) for rule in RULES},
        bound_share=trace_bound(trace, size.total_tokens).share,
    )


def play_trace(
    trace: Trace, size: Size, policy: str, cost: CostModel, *, seed: int, speed: float = 1.0, stop: Stop | None = None
) -> Simulated:
    """The trace at its own times (`speed` times as fast), a session's call after the answer to the one before."""
    workload = schedule(replay(trace, seed=seed), TraceTimes(speed=speed), seed=seed)
    tokens = _cache(trace, size)
    worker = WorkerSetup(
        kv_tokens=tokens,
        page_size=PAGE_TOKENS,
        context_max=tokens,
        memory_bytes_max=0,  # a trace's prompts never quote what a simulated model said
        cost=cost,
    )
    setup = FleetSetup(seed=seed, workers=(worker,) * size.workers, router=RouterSetup(policy=policy))
    played = simulate(setup, workload, stop=stop)
    ok = [record for record in played.records if record.ok]
    ttft = Sorted.of(record.ttft_s for record in ok if record.ttft_s is not None)
    total = None if size.cache_tokens is None else tokens * size.workers
    return Simulated(
        policy=policy,
        outcome=outcome_of(trace.rows, ok, size.workers),
        bound_share=run_bound(workload, played.records, total).share,
        ttft_p50_ms=_milliseconds(ttft.quantile(0.5)),
        ttft_p95_ms=_milliseconds(ttft.quantile(0.95)),
        load=_prefill_s(ok, cost) / (played.virtual_s * size.workers),
        requests=len(ok),
        failed=len(played.records) - len(ok),
        virtual_s=played.virtual_s,
        cpu_s=played.cpu_s,
        interrupted=played.interrupted,
    )


def outcome_of(rows: Sequence[TraceRow], ok: Iterable[Record], workers: int) -> Outcome:
    """The reference's measures, of records that are named as replay.py names them."""
    work: defaultdict[str, int] = defaultdict(int)
    windows: defaultdict[int, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    prompts = hits = 0
    for record in ok:
        assert record.worker is not None
        row = rows[int(record.call.removeprefix("row-"))]
        tokens = uncached(record)
        prompts += record.prompt_tokens or 0
        hits += record.cached_tokens or 0
        work[record.worker] += tokens
        windows[int(row.timestamp_ms // WINDOW_MS)][record.worker] += tokens
    shares = [_imbalance(window, workers) for window in windows.values() if any(window.values())]
    return Outcome(
        hit_share=hits / prompts if prompts else 0.0,
        imbalance=_imbalance(work, workers),
        win60=sum(shares) / len(shares) if shares else 1.0,
    )


def _imbalance(work: dict[str, int], workers: int) -> float:
    """Workers that got nothing count."""
    return imbalance([*work.values(), *[0] * (workers - len(work))])


def _cache(trace: Trace, size: Size) -> int:
    """Tokens of one cache. An endless one holds every prompt and answer of the trace."""
    if size.cache_tokens is not None:
        return size.cache_tokens // PAGE_TOKENS * PAGE_TOKENS
    every = sum(row.input_tokens + row.output_tokens + PAGE_TOKENS for row in trace.rows)
    return -(-every // PAGE_TOKENS) * PAGE_TOKENS


def _prefill_s(ok: Iterable[Record], cost: CostModel) -> float:
    """Time to compute what was not cached, each prompt in one step of its own."""
    total = 0.0
    for record in ok:
        tokens, cached = uncached(record), record.cached_tokens or 0
        if tokens:
            total += cost.step_s(tokens, tokens * cached + tokens * (tokens + 1) // 2, 0, 0)
    return total


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else value * 1e3
