"""Playing a simulation to its end, with progress, an interrupt that still leaves a report, and the processor's time.

Keeps true: the report says no wall time, so that the same seed writes the same bytes; what was simulated before an
interrupt becomes a report marked partial. Does not know files.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import msgspec

from trieway import __version__
from trieway.loadgen.oracle import Bound
from trieway.loadgen.records import Record
from trieway.loadgen.reports.figures import over_repeats
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.summary import Context, summarise
from trieway.loadgen.run_bound import run_bound
from trieway.loadgen.runs.once import Now, with_warmup
from trieway.loadgen.sim.checks import Checks
from trieway.loadgen.sim.config import FleetSetup
from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.simulations.setups import Play
from trieway.loadgen.vocabulary import Workload

LOOK_STEPS = 512
TELL_S = 0.5
YOUNG_MAX = 100_000
"""Objects made between two walks of the garbage collector: a simulation makes many, and few of them in circles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """What a simulation leaves. `cpu_s`: of this process while it ran."""

    records: list[Record]
    cpu_s: float
    virtual_s: float
    steps: int
    trace: str
    interrupted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The report of a play, the records of its last run, and how fast that was simulated."""

    report: Report
    records: list[Record]
    played: Played


class Stop:
    """An interrupt that has come."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def interruptible() -> Iterator[Stop]:
    """The first interrupt is a wish, kept in `asked`; the second one raises KeyboardInterrupt."""
    stop = Stop()

    def heard(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def simulate(
    setup: FleetSetup,
    workload: Workload,
    *,
    stop: Stop | None = None,
    users_max: int | None = None,
    tell: Callable[[Now], None] | None = None,
) -> Played:
    """Plays one workload on one fleet."""
    fleet = Fleet(setup, workload, users_max=users_max)
    check = _check(fleet)
    look = _Look(fleet, len(workload.calls), stop or Stop(), tell)
    cut = False
    with _little_garbage():
        began = time.process_time()
        step, clients = fleet.timeline.step, fleet.clients
        while clients.unfinished and not cut:
            for _ in range(LOOK_STEPS):
                if not clients.unfinished:
                    break
                assert step(), "calls are left, and nothing is to come"
                if check is not None:
                    check()
            cut = look.cut()
        cpu_s = time.process_time() - began
    records = fleet.records + (clients.interrupted() if cut else [])
    return Played(
        records=records,
        cpu_s=cpu_s,
        virtual_s=fleet.timeline.now,
        steps=fleet.timeline.steps,
        trace=fleet.trace,
        interrupted=cut and bool(clients.unfinished),
    )


def _check(fleet: Fleet) -> Callable[[], None] | None:
    """What to call after every step."""
    every = fleet.setup.check_every
    checks = Checks(fleet)
    if every <= 1:
        return checks.after_step if every else None
    timeline = fleet.timeline

    def now_and_then() -> None:
        if not timeline.steps % every:
            checks.sample()

    return now_and_then


class _Look:
    """Every so many steps: tell how it stands, and whether to stop."""

    def __init__(self, fleet: Fleet, total: int, stop: Stop, tell: Callable[[Now], None] | None) -> None:
        self._fleet = fleet
        self._total = total
        self._stop = stop
        self._tell = tell
        self._told_at = time.monotonic()
        self._told = 0

    def cut(self) -> bool:
        """Whether the run is to be cut short here."""
        now = time.monotonic()
        if self._tell is not None and now - self._told_at >= TELL_S:
            self._told_at = now
            clients = self._fleet.clients
            records = clients.records
            recent, self._told = records[self._told :], len(records)
            sent = clients.sent
            self._tell(
                Now(
                    elapsed_s=self._fleet.timeline.now,
                    sent=sent,
                    in_flight=sent - sum(record.sent_s is not None for record in records),
                    total=self._total,
                    records=records,
                    recent=recent,
                )
            )
        return self._stop.asked


@contextmanager
def _little_garbage() -> Iterator[None]:
    """What is there already is not walked again, and the rest rarely."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def play(asked: Play, stop: Stop, say: Callable[[str], None], tell: Callable[[Now], None] | None = None) -> Outcome:
    """All repeats; the report is the last one's, with the headlines of all."""
    outcomes: list[Outcome] = []
    for number, one in enumerate(asked.singly()):
        if asked.repeats > 1:
            say(f"run {number + 1} of {asked.repeats}")
        outcomes.append(_once(one, stop, tell))
        if outcomes[-1].played.interrupted:
            break
    last = outcomes[-1]
    whole = [outcome for outcome in outcomes if not outcome.played.interrupted]
    if asked.repeats == 1 or len(whole) < 2:
        return last
    figures = [{name: one.value for name, one in outcome.report.figures.items()} for outcome in whole]
    report = msgspec.structs.replace(
        whole[-1].report,
        seed=asked.seed,
        repeats=figures,
        figures=over_repeats(figures),
        partial=last.played.interrupted,
        partial_reason=f"{len(whole)} of {asked.repeats} runs were made" if last.played.interrupted else None,
    )
    return Outcome(report=report, records=whole[-1].records, played=whole[-1].played)


def _once(asked: Play, stop: Stop, tell: Callable[[Now], None] | None) -> Outcome:
    workload = asked.workload(asked.seed)
    played = simulate(asked.fleet, workload, stop=stop, users_max=asked.users_max, tell=tell)
    records = with_warmup(played.records, asked.warmup_s, asked.warmup_requests)
    context = Context(
        kind="sim",
        version=__version__,
        workload=workload.name,
        seed=asked.seed,
        settings=dict(workload.settings),
        config={**asked.config, **_played(played)},
        slo=asked.slo,
        bound=_bound(asked, workload, records),
        partial_reason=f"interrupted after {played.virtual_s:.1f} simulated seconds" if played.interrupted else None,
    )
    return Outcome(report=summarise(records, context), records=records, played=played)


def _played(played: Played) -> dict[str, Any]:
    return {"virtual_s": round(played.virtual_s, 6), "steps": played.steps, "trace": played.trace}


def _bound(asked: Play, workload: Workload, records: list[Record]) -> Bound | None:
    if not asked.bound or not any(record.ok and not record.warmup for record in records):
        return None
    cache_tokens = sum(worker.kv_tokens for worker in asked.fleet.workers) if asked.fleet.workers[0].prefix_cache else 0
    return run_bound(workload, records, cache_tokens, tenants_apart=True)
