"""One run over HTTP from beginning to end: look, flush, send, scrape, sum up.

Keeps true: the server was asked whether it can serve this before anything else; whatever was measured becomes a report,
marked partial if the run was cut short or a client process died. Does not know terminals or files.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic

from trieway import __version__
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.messages import Batch, Finished, Job
from trieway.loadgen.client.processes import Processes
from trieway.loadgen.client.scrape import Scraper
from trieway.loadgen.client.target import Backend, Target
from trieway.loadgen.errors import RunFailed
from trieway.loadgen.flow import shard
from trieway.loadgen.oracle import Bound
from trieway.loadgen.prompts import resolve_hint
from trieway.loadgen.records import OK, Record
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.summary import Client, Context, summarise
from trieway.loadgen.run_bound import run_bound
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.vocabulary import Message, Text, Workload

ANSWERS_BYTES_MAX = 512 * 1024 * 1024
"""Answers kept for the oracle bound; past it they are taken as unlike any other."""
Tell = Callable[["Now"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Now:
    """How a run stands, for whoever watches. `recent`: what ended since the last time."""

    elapsed_s: float
    sent: int
    in_flight: int
    total: int
    records: Sequence[Record]
    recent: Sequence[Record]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run leaves."""

    report: Report
    records: list[Record]


@dataclass(slots=True)
class _Gathered:
    records: list[Record] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    answers_bytes: int = 0
    sent: dict[int, int] = field(default_factory=dict)
    in_flight: dict[int, int] = field(default_factory=dict)

    def take(self, number: int, batch: Batch) -> None:
        self.records += batch.records
        self.sent[number], self.in_flight[number] = batch.sent, batch.in_flight
        for record, text in zip(batch.records, batch.answers, strict=True):
            if record.status == OK and self.answers_bytes < ANSWERS_BYTES_MAX:
                self.answers[record.call] = text
                self.answers_bytes += len(text)


class Stop:
    """How a run is cut short, and why."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: str | None = None

    def set(self, reason: str) -> None:
        """The first reason counts."""
        self.reason = self.reason or reason
        self._event.set()

    async def wait(self) -> None:
        """Until it is set."""
        await self._event.wait()


async def run_once(plan: Plan, stop: Stop, tell: Tell = lambda now: None) -> Outcome:
    """`stop` set: the run is cut short. LoadError: it cannot be made; RunFailed: nobody answered at all."""
    workload = plan.scheduled()
    async with Target(plan.access) as target:
        dialect = await _prepare(plan, target, workload)
        backends = await target.backends()
        if plan.flush:
            await target.flush(backends)
        if plan.hints:
            await _early_hints(target, dialect, workload)
        scraper = Scraper(target, backends, plan.scrape_s) if plan.scrape_s else None
        started = datetime.now(UTC).isoformat(timespec="seconds")
        if scraper is not None:
            await scraper.once()
        processes = Processes()
        gathered = _Gathered()
        try:
            await _drive(plan, workload, dialect, processes, scraper, stop, gathered, tell)
        finally:
            await processes.close()
        if scraper is not None:
            await scraper.once()
        records = with_warmup(gathered.records, plan.warmup_s, plan.warmup_requests)
        size = plan.cache_tokens or _cache_tokens(backends)
        head = await target.chat_head(dialect.model) if plan.bound else None
        notes = _notes(plan, processes, gathered)
        bound = _bound(plan, workload, records, gathered, size, head) if plan.bound else None
        context = Context(
            kind="load",
            version=__version__,
            workload=workload.name,
            seed=plan.seed,
            settings=dict(workload.settings),
            config={**plan.config(), "model": dialect.model, "cache_tokens": size, "workers": len(backends)},
            slo=plan.slo,
            bound=bound,
            started=started,
            partial_reason=_partial(processes, stop, records),
            notes=notes,
            client=_client(plan, processes),
            scrapes=scraper.told() if scraper is not None else (),
            tree=await target.tree(),
        )
    return Outcome(report=summarise(records, context), records=records)


async def _prepare(plan: Plan, target: Target, workload: Workload) -> Dialect:
    model = await target.model(plan.model)
    dialect = Dialect(
        url=plan.access.url,
        model=model,
        key=plan.access.key,
        tenant_keys=plan.tenant_keys,
        extensions=plan.extensions,
    )
    await target.probe(dialect, stream=workload.calls[0].stream, usage_needed=plan.usage_needed)
    return dialect


async def _early_hints(target: Target, dialect: Dialect, workload: Workload) -> None:
    for hint in workload.hint_prefixes:
        if hint.session is None:
            status, _ = await target.post("/cache/prefix", resolve_hint(hint, model=dialect.model))
            if status != 200:
                raise RunFailed(f"{target.access.url} takes no prefix hints (status {status}); run without --hints")


async def _drive(
    plan: Plan,
    workload: Workload,
    dialect: Dialect,
    processes: Processes,
    scraper: Scraper | None,
    stop: Stop,
    gathered: _Gathered,
    tell: Tell,
) -> None:
    shards = [shard(workload, number, plan.processes) for number in range(plan.processes)]
    paces = plan.paces()
    jobs = [
        Job(workload=part, pace=pace, dialect=dialect, connections_max=plan.connections)
        for part, pace in zip(shards, paces, strict=True)
    ]
    start_s = await processes.start(jobs)
    if scraper is not None:
        scraper.start_s = start_s
    tasks = [asyncio.create_task(_interrupt(stop, processes))]
    if scraper is not None:
        tasks.append(asyncio.create_task(scraper.forever()))
    try:
        async for number, batch in processes.batches():
            gathered.take(number, batch)
            tell(
                Now(
                    elapsed_s=max(monotonic() - start_s, 0.0),
                    sent=sum(gathered.sent.values()),
                    in_flight=sum(gathered.in_flight.values()),
                    total=len(workload.calls),
                    records=gathered.records,
                    recent=batch.records,
                )
            )
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _interrupt(stop: Stop, processes: Processes) -> None:
    await stop.wait()
    processes.interrupt()


def with_warmup(records: Sequence[Record], seconds: float, requests: int) -> list[Record]:
    """The records with those marked that were due within the first `seconds`, or among the first `requests`."""
    ordered = sorted(records, key=lambda record: record.due_s)
    return [
        replace(record, warmup=True) if number < requests or record.due_s < seconds else record
        for number, record in enumerate(ordered)
    ]


def _cache_tokens(backends: Sequence[Backend]) -> int | None:
    """Of all workers together; None if one does not say."""
    sizes = [backend.cache_tokens for backend in backends]
    return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)


def _bound(
    plan: Plan, workload: Workload, records: Sequence[Record], gathered: _Gathered, size: int | None, head: str | None
) -> Bound | None:
    if not any(record.ok and not record.warmup for record in records):
        return None
    apart = bool(plan.tenant_keys) or (plan.access.key is None and plan.extensions)
    if not plan.hints:
        workload = replace(workload, hint_prefixes=())
    if head is not None:
        workload = with_head(workload, head)
    return run_bound(workload, records, size, answers=gathered.answers, tenants_apart=apart)


def with_head(workload: Workload, head: str) -> Workload:
    """What the model's template adds to chats without a system message, as if they had it."""
    system = Message("system", (Text(head),))
    return replace(
        workload,
        calls=tuple(
            replace(call, messages=(system, *call.messages))
            if call.messages and call.messages[0].role != "system"
            else call
            for call in workload.calls
        ),
        hint_prefixes=tuple(
            replace(hint, messages=(system, *hint.messages))
            if hint.messages and hint.messages[0].role != "system"
            else hint
            for hint in workload.hint_prefixes
        ),
    )


def _client(plan: Plan, processes: Processes) -> Client:
    told = list(processes.finished.values())
    shares = [one.cpu_s / one.wall_s for one in told if one.wall_s > 0]
    return Client(
        processes=plan.processes,
        cpu_s=sum(one.cpu_s for one in told) if told else None,
        cpu_share_max=max(shares, default=None),
    )


def _partial(processes: Processes, stop: Stop, records: Sequence[Record]) -> str | None:
    if processes.died:
        return f"{len(processes.died)} of the client processes died"
    if stop.reason is not None:
        last = max((record.last_s or record.due_s for record in records), default=0.0)
        unsent = sum(one.unsent for one in processes.finished.values())
        return f"{stop.reason} after {last:.1f} s; {unsent} calls were not sent"
    return None


def _notes(plan: Plan, processes: Processes, gathered: _Gathered) -> list[str]:
    told: list[Finished] = list(processes.finished.values())
    notes = []
    first: dict[str, str] = {}
    for one in told:
        first = {**one.messages, **first}
    notes += [f"first {status}: {message}" for status, message in sorted(first.items())]
    unsent = sum(one.unsent for one in told)
    if unsent:
        notes.append(f"{unsent} calls were left unsent at the end")
    failed = sum(one.hints_failed for one in told)
    if failed:
        notes.append(f"{failed} of {sum(one.hints for one in told)} prefix hints failed")
    if any(one.connections >= plan.connections for one in told):
        notes.append(f"all {plan.connections} connections of a client process were in use: requests waited for one")
    if gathered.answers_bytes >= ANSWERS_BYTES_MAX:
        notes.append("not all answers were kept: the oracle bound takes the others as unlike any text")
    return notes
