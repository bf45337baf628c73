"""One run on either side, boiled down to the figures that are compared.

Keeps true: both sides play the same calls at the same times, and are judged by the same code (loadgen.reports); a real
run that failed, was cut short, or came late at an open loop's times is an error, not a figure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.tools.honesty.cases import (
    BATCH_TOKENS,
    CONTEXT_TOKENS,
    KV_TOKENS,
    PAGE_SIZE,
    RUNNING_MAX,
    SEED,
    WAITING_MAX,
    Case,
)
from trieway.loadgen.client.target import Access
from trieway.loadgen.client.url import parse_url
from trieway.loadgen.errors import RunFailed
from trieway.loadgen.records import INTERRUPTED, Record
from trieway.loadgen.reports.figures import figures_of
from trieway.loadgen.runs.once import Stop, run_once, with_warmup
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.sim.config import FleetSetup, NetworkSetup, WorkerSetup
from trieway.loadgen.sim.cost import calibrated
from trieway.loadgen.simulations.playing import simulate

RUN_MAX_S = 240.0
FIGURES = ("hit_rate", "requests_per_s", "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms", "e2e_p50_ms")


class Lagged(RunFailed):
    """The calls of an open loop went out late: it was another load than the one that is simulated."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run."""

    figures: dict[str, float]
    requests: int
    prompt_tokens: int
    output_tokens: int
    foreign: float = 0.0
    """Share of the machine that processes of others used meanwhile."""
    calls: list[tuple[str, str | None, int, int, float, float, float]] = []
    """(call, worker, prompt tokens, cached tokens, due, first token, last token) of those measured, in order of due
    time; for whoever looks for the cause of a difference."""


def run_of(records: Sequence[Record], case: Case) -> Run:
    """RunFailed: some call did not come to its end."""
    bad = next((record for record in records if not record.ok), None)
    if bad is not None:
        raise RunFailed(f"{case.name}: {bad.call} ended as {bad.status}")
    measured = sorted(
        (record for record in with_warmup(records, 0.0, case.warmup) if not record.warmup),
        key=lambda record: record.due_s,
    )
    figures = figures_of(measured)
    return Run(
        figures={name: figures[name].value for name in FIGURES},
        requests=len(measured),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in measured),
        output_tokens=sum(record.output_tokens for record in measured),
        calls=[_call(record) for record in measured],
    )


def _call(record: Record) -> tuple[str, str | None, int, int, float, float, float]:
    return (
        record.call, record.worker, record.prompt_tokens or 0, record.cached_tokens or 0, round(record.due_s, 4),
        round(record.first_s or 0.0, 4), round(record.last_s or 0.0, 4),
    )  # fmt: skip


async def real_run(case: Case, url: str) -> Run:
    """On the fleet at `url`, its caches flushed before. RunFailed: see run_of; Lagged."""
    plan = Plan(
        access=Access(url=parse_url(url)),
        workload=case.bare_workload(),
        arrivals=case.arrivals,
        arrivals_text=case.arrivals_text,
        seed=SEED,
        flush=True,
        bound=False,
        scrape_s=0.0,
    )
    stop = Stop()
    timer = asyncio.get_running_loop().call_later(RUN_MAX_S, stop.set, f"{RUN_MAX_S:.0f} s were over")
    try:
        outcome = await run_once(plan, stop)
    finally:
        timer.cancel()
    if any(record.status == INTERRUPTED for record in outcome.records):
        raise RunFailed(f"{case.name}: not done in {RUN_MAX_S:.0f} s; the machine is too slow for it, or not free")
    if not case.saturated and outcome.report.generator is not None and outcome.report.generator.lagged:
        raise Lagged(f"{case.name}: the load generator lagged")
    return run_of(outcome.records, case)


def fleet_setup(calibration: dict[str, Any], workers: int, seed: int) -> FleetSetup:
    """The real fleet's twin. The ways between processes are in the calibration."""
    worker = WorkerSetup(
        kv_tokens=KV_TOKENS,
        page_size=PAGE_SIZE,
        batch_tokens_max=BATCH_TOKENS,
        running_max=RUNNING_MAX,
        waiting_max=WAITING_MAX,
        context_max=CONTEXT_TOKENS,
        cost=calibrated(calibration),
    )
    return FleetSetup(seed=seed, workers=(worker,) * workers, network=NetworkSetup(delay_s=0.0, jitter_s=0.0))


def simulated_run(case: Case, calibration: dict[str, Any], workers: int, seed: int) -> Run:
    """On the simulated fleet; `seed` is that of its own chance, the calls are the same for all."""
    setup = fleet_setup(calibration, workers, seed)
    return run_of(simulate(setup, case.workload(), users_max=case.users).records, case)
