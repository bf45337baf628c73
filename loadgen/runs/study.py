"""Sweeps and capacity searches: many runs, one after the other, over rates and fleets.

Keeps true: every point that was measured is in the state file before the next run begins, so that an interrupted study
goes on where it was; a state file of another study is refused. Does not know terminals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from trieway import __version__
from trieway.loadgen.arrivals import Arrivals
from trieway.loadgen.client.target import Access
from trieway.loadgen.errors import LoadError
from trieway.loadgen.records import INTERRUPTED, Record
from trieway.loadgen.reports.judging import broken, tpot_s
from trieway.loadgen.reports.slo import Slo
from trieway.loadgen.reports.study import Capacity, Point, Setting, Study, certain_share
from trieway.loadgen.reports.text import number
from trieway.loadgen.runs.capacity import Found, Range, Search, Trial
from trieway.loadgen.runs.once import Now, Outcome, Stop, run_once
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.vocabulary import Workload

FILL = 1.2
"""Random arrivals come in more than is expected, now and then."""
SHORT_S = 10.0
"""A run of less offers too little to see a queue grow."""
Say = Callable[[str], None]
At = Callable[[float], tuple[Arrivals, str]]
"""The arrivals of a rate, and as text."""
Fleet = Callable[[Setting], AbstractAsyncContextManager[Access]]
HOPELESS = "the SLO cannot hold any more"
BLAMED_MAX = 3
"""Runs in a row that the generator spoilt before a search gives up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyPlan:
    """`plan`: of every run, but for rate, seed and server. Exactly one of `rates` and `search` is there."""

    plan: Plan
    arrivals_at: At
    workload_at: Callable[[int], Workload]
    """The workload of a seed: where caches are not flushed, runs must not ask the same again."""
    settings: Sequence[Setting]
    fleet: Fleet
    rates: Sequence[float] = ()
    repeats: int = 1
    search: Range | None = None
    state: Path | None = None
    config: dict[str, Any]
    """For the report and, as it decides what is measured, for the state file."""

    def __post_init__(self) -> None:
        assert bool(self.rates) != (self.search is not None), "rates or a search"
        if self.search is not None and self.plan.slo is None:
            raise LoadError("a capacity search needs an --slo such as ttft_p95=500ms,errors=1%")


class _State:
    """Points measured so far, on disk if there is a path."""

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self._path = path
        self.points: list[Point] = []
        if path is None:
            return
        try:
            if path.exists() and path.stat().st_size:
                self.points = _read_state(path, fingerprint)
            else:
                path.write_bytes(msgspec.json.encode({"study": fingerprint}) + b"\n")
        except OSError as error:
            raise LoadError(f"cannot use the state file {path}: {error.strerror}") from None

    def add(self, point: Point) -> None:
        """Keep it."""
        self.points.append(point)
        if self._path is not None:
            with self._path.open("ab") as out:
                out.write(msgspec.json.encode(point) + b"\n")

    def of(self, setting: Setting, rate: float) -> list[Point]:
        """Measured at this place."""
        return [point for point in self.points if point.setting == setting and point.rate == rate]


def _read_state(path: Path, fingerprint: str) -> list[Point]:
    head, *rows = path.read_bytes().splitlines()
    try:
        told = json.loads(head)
        known = told.get("study") if isinstance(told, dict) else None
    except ValueError:
        known = None
    if known != fingerprint:
        raise LoadError(f"{path} is the state of another study; name another file or remove it")
    points = []
    for number_, row in enumerate(rows, start=2):
        try:
            points.append(msgspec.json.decode(row, type=Point))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number_ == len(rows) + 1:
                break  # the last line may be torn: its run is made again
            raise LoadError(f"{path}:{number_}: {error}") from None
    return points


def fingerprint_of(study: StudyPlan) -> str:
    """What has to be the same for points to belong together."""
    told = {
        "config": study.config,
        "workload": [study.plan.workload.name, study.plan.workload.seed, dict(study.plan.workload.settings)],
        "calls": len(study.plan.workload.calls),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Runner:
    """One study. `result` is there at any time."""

    def __init__(self, study: StudyPlan, stop: Stop, say: Say, tell: Callable[[Now], None]) -> None:
        self._study = study
        self._stop = stop
        self._say = say
        self._tell = tell
        self._state = _State(study.state, fingerprint_of(study))
        self._capacities: list[Capacity] = []
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        if self._state.points:
            say(f"going on from {study.state}: {len(self._state.points)} runs are there already")

    async def run(self) -> None:
        """All of it, or until it is stopped."""
        for setting in self._study.settings:
            if self._stop.reason is not None:
                return
            async with self._fleet(setting) as point_of:
                if self._study.search is not None:
                    await self._search(setting, self._study.search, point_of)
                else:
                    await self._sweep(setting, point_of)

    async def _sweep(self, setting: Setting, point_of: _Measure) -> None:
        for rate in self._study.rates:
            for repeat in range(len(self._state.of(setting, rate)), self._study.repeats):
                if await point_of(rate, repeat) is None:
                    return

    async def _search(self, setting: Setting, within: Range, point_of: _Measure) -> None:
        search = Search(within)
        used: dict[float, int] = {}
        blamed = 0
        while isinstance(asked := search.ask(), Trial):
            known = self._state.of(setting, asked.rate)
            at = used.get(asked.rate, 0)
            point = known[at] if at < len(known) else await point_of(asked.rate, at)
            if point is None:
                return
            used[asked.rate] = at + 1
            blamed = blamed + 1 if point.inconclusive else 0
            if blamed > BLAMED_MAX:
                self._stop.set(
                    f"the generator cannot keep up with {asked.rate:g}/s, so nothing can be said of the server "
                    "(use more --processes or a lower --rate-max)"
                )
                return
            if not point.inconclusive:
                search.tell(asked.rate, bool(point.holds))
        assert isinstance(asked, Found)
        self._capacities.append(self._capacity(setting, asked))
        self._say(f"{setting.name}: {self._capacities[-1].why}")

    def _capacity(self, setting: Setting, found: Found) -> Capacity:
        broke = next(
            (p.broken for p in self._state.points if p.setting == setting and p.rate == found.fails_at and p.broken), []
        )
        reason = f" ({'; '.join(broke)})" if broke else ""
        if found.rate is None:
            why = f"the SLO is not met even at {number(found.fails_at)}/s{reason}"
        elif found.fails_at is None:
            why = f"holds at {number(found.rate)}/s, the highest rate that was allowed"
        else:
            why = f"holds at {number(found.rate)}/s, breaks at {number(found.fails_at)}/s{reason}"
        return Capacity(
            setting=setting,
            rate=found.rate,
            fails_at=found.fails_at,
            held=found.held,
            repeats=found.repeats,
            confidence=certain_share(found.held, found.repeats),
            why=why,
        )

    @asynccontextmanager
    async def _fleet(self, setting: Setting) -> AsyncIterator[_Measure]:
        """The fleet is started only when the first run needs it."""
        async with _Lazy(self._study.fleet(setting)) as fleet:

            async def measure(rate: float, repeat: int) -> Point | None:
                if self._stop.reason is not None:
                    return None
                return await self._measure(setting, await fleet.access(), rate, repeat)

            yield measure

    async def _measure(self, setting: Setting, access: Access, rate: float, repeat: int) -> Point | None:
        """None: it was interrupted."""
        plan = self._study.plan
        arrivals, text = self._study.arrivals_at(rate)
        # Repeats differ in their arrivals, not in what is asked.
        seed = plan.seed + repeat
        workload = plan.workload if plan.flush else self._study.workload_at(plan.seed + len(self._state.points))
        plan = replace(plan, access=access, arrivals=arrivals, arrivals_text=text, seed=seed, workload=workload)
        self._say(f"{setting.name}: {rate:g}/s, run {repeat + 1}")
        stop = Stop()
        total = len(plan.scheduled().calls)

        def watch(now: Now) -> None:
            self._tell(now)
            if self._stop.reason is not None:
                stop.set(self._stop.reason)
            elif plan.slo is not None and self._study.search is not None and hopeless(now.records, total, plan.slo):
                stop.set(HOPELESS)

        outcome = await run_once(plan, stop, watch)
        if stop.reason is not None and stop.reason != HOPELESS:
            return None
        blamed = _blames_generator(outcome, plan.slo, total, cut=stop.reason == HOPELESS)
        point = _point(outcome, setting, rate, repeat, seed, stop.reason == HOPELESS, blamed)
        self._state.add(point)
        self._say(_line(point))
        return point

    def result(self) -> Study:
        """What there is."""
        study, plan = self._study, self._study.plan
        reason = self._stop.reason
        notes = list(self._notes())
        return Study(
            kind="sweep" if study.search is None else "capacity",
            version=__version__,
            started=self._started,
            partial=reason is not None,
            partial_reason=reason,
            notes=notes,
            workload=plan.workload.name,
            seed=plan.seed,
            settings=dict(plan.workload.settings),
            config=study.config,
            slo=plan.slo,
            points=self._state.points,
            capacities=self._capacities,
        )

    def _notes(self) -> Iterator[str]:
        points = self._state.points
        lagged = sum(point.lagged for point in points)
        if lagged:
            yield f"THE GENERATOR LAGGED in {lagged} runs; they are left out of the plots"
        shortest = min((point.requests.total / point.rate for point in points), default=SHORT_S)
        if shortest < SHORT_S:
            yield (
                f"the shortest run offered its load for {shortest:.1f} s only, too short to see a queue grow: "
                "give --duration, such as 30s, and every rate lasts so long"
            )


_Measure = Callable[[float, int], Any]


class _Lazy:
    """Enters a fleet's context at the first need, leaves it at the end."""

    def __init__(self, fleet: AbstractAsyncContextManager[Access]) -> None:
        self._fleet = fleet
        self._access: Access | None = None

    async def __aenter__(self) -> _Lazy:
        return self

    async def access(self) -> Access:
        """Of the running fleet."""
        if self._access is None:
            self._access = await self._fleet.__aenter__()
        return self._access

    async def __aexit__(self, *raised: Any) -> None:
        if self._access is not None:
            await self._fleet.__aexit__(*raised)


def hopeless(records: Sequence[Record], total: int, slo: Slo) -> bool:
    """Whether so many of `total` calls have broken a limit already that the rest cannot make up for it."""
    failed = sum(not record.ok for record in records)
    if failed > slo.errors_max * total:
        return True
    for bound in slo.bounds:
        if bound.metric == "itl":
            continue  # its waits are not counted beforehand
        late = 0
        for record in records:
            value = {"ttft": record.ttft_s, "e2e": record.e2e_s}.get(bound.metric, tpot_s(record))
            late += record.ok and value is not None and value * 1e3 > bound.limit_ms
        # Percentiles interpolate: one more than the share has to be late.
        if late > (1.0 - bound.share) * total + 1:
            return True
    return False


def _point(outcome: Outcome, setting: Setting, rate: float, repeat: int, seed: int, cut: bool, blamed: bool) -> Point:
    report = outcome.report
    goodput = report.goodput
    problems = list(goodput.broken) if goodput is not None else []
    return Point(
        setting=setting,
        rate=rate,
        repeat=repeat,
        seed=seed,
        requests=report.requests,
        figures={name: figure.value for name, figure in report.figures.items()},
        holds=None if goodput is None else goodput.holds and not cut,
        broken=problems or ([HOPELESS] if cut else []),
        lagged=report.generator is not None and report.generator.lagged,
        inconclusive=blamed,
        bound_rate=report.cache.bound_rate,
        notes=list(report.notes),
    )


def _blames_generator(outcome: Outcome, slo: Slo | None, total: int, *, cut: bool) -> bool:
    """Whether a limit broke that holds when counted from the sending. Of a run that was cut short, the rest is unknown:
    it is judged by what it shows."""
    goodput = outcome.report.goodput
    if slo is None or goodput is None or (goodput.holds and not cut):
        return False
    measured = [record for record in outcome.records if not record.warmup and record.status != INTERRUPTED]
    sent = [record if record.sent_s is None else replace(record, due_s=record.sent_s) for record in measured]
    return not hopeless(sent, total, slo) if cut else not broken(sent, slo)


def _line(point: Point) -> str:
    verdict = {None: "", True: "; holds", False: f"; broken: {'; '.join(point.broken)}"}[point.holds]
    lagged = "; THE GENERATOR LAGGED" if point.lagged else ""
    lagged += " and is to blame: once more" if point.inconclusive else ""
    told = [f"{name} {number(point.figures[name])}" for name in _SHOWN if name in point.figures]
    return f"  {point.requests.ok} of {point.requests.measured} ok, {', '.join(told)}{verdict}{lagged}"


_SHOWN = ("ttft_p50_ms", "ttft_p95_ms", "itl_p95_ms", "hit_rate")
