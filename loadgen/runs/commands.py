"""What `trieway load` does, as functions of the parsed flags; each gives the exit code.

Keeps true: what cannot work is refused before anything is sent; an interrupt still leaves the reports that were asked
for; results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from trieway.loadgen.arrivals import Arrivals, parse
from trieway.loadgen.client.loop import run_loop
from trieway.loadgen.client.target import Access
from trieway.loadgen.client.url import Url, parse_url
from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.reports.compare import Verdict
from trieway.loadgen.reports.compare_files import compare_files
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.study import Capacity, Setting, Study
from trieway.loadgen.reports.text import lines, number, percent, table
from trieway.loadgen.runs.capacity import Range
from trieway.loadgen.runs.fleets import fleet_of
from trieway.loadgen.runs.once import Stop
from trieway.loadgen.runs.options import plan_of, workload_of
from trieway.loadgen.runs.outputs import Outputs
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.runs.progress import Watcher, watcher
from trieway.loadgen.runs.repeats import run_repeats
from trieway.loadgen.runs.study import Runner, StudyPlan
from trieway.loadgen.workloads import RECIPES, SCALE, describe
from trieway.router.core import POLICIES

INTERRUPTED_BY_USER = "interrupted"
T = TypeVar("T")


def run(asked: argparse.Namespace) -> int:
    """`trieway load run`."""
    url = parse_url(asked.url)
    outputs = Outputs(json=asked.json, html=asked.report, csv=asked.csv)
    plan = plan_of(asked, url, asked.arrivals)

    async def whole(stop: Stop, watching: Watcher) -> int:
        outcome = await run_repeats(
            plan, asked.repeats, lambda seed: workload_of(asked, seed), stop, watching.update, watching.line
        )
        watching.close()
        _print(lines(outcome.report))
        _print(f"wrote {path}" for path in outputs.write(outcome.report, outcome.records))
        return _verdict(outcome.report)

    return _interruptible(whole)


def _verdict(report: Report) -> int:
    """RunFailed where the run says nothing good of the server, in one line."""
    requests = report.requests
    if report.partial:
        raise RunFailed(f"the report is partial: {report.partial_reason}")
    if not requests.measured:
        raise RunFailed("nothing was measured: the warm-up covers the whole run")
    if not requests.ok:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
        raise RunFailed(f"no request was answered: {kinds}{_first(report)}")
    if report.goodput is not None and not report.goodput.holds:
        raise RunFailed(f"the SLO does not hold: {'; '.join(report.goodput.broken)}")
    return 0


def _first(report: Report) -> str:
    return next((f" ({note})" for note in report.notes if note.startswith("first ")), "")


def replay(asked: argparse.Namespace) -> int:
    """`trieway load replay`."""
    if asked.rules is not None:
        from trieway.loadgen.reference_tables import tables_of

        if asked.url is not None:
            raise LoadError("--rules counts without a server; leave the URL out, or --rules")
        _print(tables_of([asked.workload], bound=asked.bound))
        return 0
    if asked.url is None:
        raise LoadError("give the server's URL after the file, or --rules reference to do without one")
    return run(asked)


def sweep(asked: argparse.Namespace) -> int:
    """`trieway load sweep`."""
    outputs = Outputs(json=asked.json, html=asked.report)
    settings, fleet = _fleets(asked)
    rates = _rates(asked.rates)
    at = _arrivals_at(asked.process)
    within = None
    if not rates:
        within = Range(
            low=asked.rate_min, high=asked.rate_max, precision=asked.precision, repeats=max(asked.repeats, 1)
        )
    for rate in [*rates, asked.rate_min, asked.rate_max]:
        at(rate)  # refused now rather than after an hour
    plan = plan_of(asked, parse_url(asked.url or "127.0.0.1"), at(rates[0] if rates else asked.rate_min)[1])
    config = _study_config(asked, plan)
    study_plan = StudyPlan(
        plan=plan,
        arrivals_at=at,
        workload_at=lambda seed: workload_of(asked, seed),
        settings=settings,
        fleet=_with_keys(fleet, plan.access),
        rates=rates,
        repeats=asked.repeats,
        search=within,
        state=asked.state,
        config=config,
    )

    async def whole(stop: Stop, watching: Watcher) -> int:
        runner = Runner(study_plan, stop, watching.line, watching.update)
        try:
            await runner.run()
        finally:
            watching.close()
            study = runner.result()
            if study.points:
                _print(_study_lines(study))
                _print(f"wrote {path}" for path in outputs.write_study(study))
        if study.partial:
            raise RunFailed(f"the study is partial: {study.partial_reason}" + _go_on(asked))
        never = [one for one in study.capacities if one.rate is None]
        if never:
            raise RunFailed(f"{never[0].setting.name}: {never[0].why}")
        return 0

    return _interruptible(whole)


def _go_on(asked: argparse.Namespace) -> str:
    return f"; the same command with --state {asked.state} goes on" if asked.state is not None else ""


def _study_config(asked: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    told = {**plan.config(), "arrivals": asked.process, "repeats": asked.repeats, "rates": asked.rates}
    told |= {"rate_min": asked.rate_min, "rate_max": asked.rate_max, "precision": asked.precision}
    told |= {"policies": asked.policies, "workers": asked.workers, "up_args": asked.up_args}
    return told | {"url": asked.url and str(plan.access.url)}


def _rates(text: str | None) -> list[float]:
    if text is None:
        return []
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise LoadError(f"--rates {text!r} is no list of numbers; give one like 1,2,4") from None
    return sorted(dict.fromkeys(rates))


def _arrivals_at(process: str) -> Callable[[float], tuple[Arrivals, str]]:
    name, _, rest = process.partition(":")
    if name not in ("poisson", "constant", "gamma"):
        raise LoadError(f"--process {process!r} is none of poisson, constant or gamma:BURSTINESS")

    def at(rate: float) -> tuple[Arrivals, str]:
        text = f"{name}:{rate:g}" + (f":{rest}" if rest else "")
        return parse(text), text

    return at


_Started = Callable[[Setting], AbstractAsyncContextManager[Url]]


def _fleets(asked: argparse.Namespace) -> tuple[list[Setting], _Started]:
    """The fleets to measure, and how to get at one."""
    policies = [part.strip() for part in asked.policies.split(",")] if asked.policies else []
    for policy in policies:
        if policy not in POLICIES:
            raise LoadError(f"no policy named {policy!r}; there are {', '.join(POLICIES)}")
    try:
        workers = [int(part) for part in asked.workers.split(",")] if asked.workers else []
    except ValueError:
        raise LoadError(f"--workers {asked.workers!r} is no list of numbers; give one like 1,2,4") from None
    if any(count < 1 for count in workers):
        raise LoadError("--workers are at least 1")
    if asked.url is not None and (policies or workers):
        raise LoadError("--policies and --workers start fleets here; leave the URL out, or them")

    try:
        more = shlex.split(asked.up_args)
    except ValueError as error:
        raise LoadError(f"--up-args {asked.up_args!r} cannot be taken apart: {error}") from None

    @asynccontextmanager
    async def found(setting: Setting) -> AsyncIterator[Url]:
        yield parse_url(asked.url)

    @asynccontextmanager
    async def started(setting: Setting) -> AsyncIterator[Url]:
        async with fleet_of(setting, more) as url:
            yield parse_url(url)

    if asked.url is not None:
        return [Setting()], found
    some: list[str | None] = [*policies] or [None]
    sizes: list[int | None] = [*workers] or [None]
    return [Setting(policy=policy, workers=count) for policy in some for count in sizes], started


def _with_keys(fleet: _Started, access: Access) -> Callable[[Setting], AbstractAsyncContextManager[Access]]:
    @asynccontextmanager
    async def entered(setting: Setting) -> AsyncIterator[Access]:
        async with fleet(setting) as url:
            yield replace(access, url=url)

    return entered


def _study_lines(study: Study) -> Iterable[str]:
    for note in study.notes:
        yield f"note: {note}"
    yield from table(
        ("fleet", "rate /s", "run", "TTFT p50 ms", "TTFT p95 ms", "ITL p95 ms", "hit rate", "bound", "SLO"),
        [
            (
                point.setting.name,
                number(point.rate),
                str(point.repeat + 1),
                *(number(point.figures.get(name)) for name in ("ttft_p50_ms", "ttft_p95_ms", "itl_p95_ms")),
                percent(point.figures.get("hit_rate")),
                percent(point.bound_rate),
                "lagged" if point.inconclusive else {None: "-", True: "holds", False: "broken"}[point.holds],
            )
            for point in study.points
        ],
    )
    for one in study.capacities:
        yield f"{one.setting.name}: {one.why}{_certainty(one)}"


def _certainty(one: Capacity) -> str:
    if one.rate is None:
        return ""
    return f"; {one.held} of {one.repeats} runs held there (95 % sure: at least {percent(one.confidence)} of runs do)"


def compare(asked: argparse.Namespace) -> int:
    """`trieway load compare`."""
    found = compare_files(asked.a, asked.b)
    _print(found.lines)
    return int(asked.fail_on_worse and found.verdict is Verdict.WORSE)


def workloads(asked: argparse.Namespace) -> int:
    """`trieway load workloads`."""
    if asked.name is None:
        _print(table(("name", ""), [(name, recipe.about) for name, recipe in RECIPES.items()]))
        return 0
    if asked.name not in RECIPES:
        raise LoadError(f"no workload named {asked.name!r}; there are {', '.join(RECIPES)}")
    rows = [(key, str(default), about) for key, default, about in describe(asked.name)]
    _print(table(("setting", "default", ""), [*rows, (SCALE, "1.0", "every length in tokens times this")]))
    return 0


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line, flush=True)


def _interruptible(whole: Callable[[Stop, Watcher], Coroutine[Any, Any, int]]) -> int:
    """The first interrupt cuts the run short, so that it still reports; the second ends it."""

    async def main() -> int:
        stop, watching = Stop(), watcher()
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def interrupted() -> None:
            if stop.reason is None:
                watching.line("interrupted: collecting what there is; once more to give up")
                stop.set(INTERRUPTED_BY_USER)
            else:
                task.cancel()

        for number_ in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number_, interrupted)
        try:
            return await whole(stop, watching)
        finally:
            watching.close()
            for number_ in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number_)

    try:
        return run_loop(main())
    except asyncio.CancelledError:
        raise RunFailed("interrupted; nothing was written") from None
