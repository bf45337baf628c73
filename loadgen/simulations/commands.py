"""What `trieway sim` does, as functions of the parsed flags; each gives the exit code.

Keeps true: results go to standard output, progress to standard error; what cannot work is refused before anything is
simulated; an interrupt still leaves the reports that were asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from trieway import __version__
from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.reports.compare import Verdict
from trieway.loadgen.reports.compare_files import compare_files
from trieway.loadgen.reports.files import check_writable, write_bytes
from trieway.loadgen.reports.study import Point, Setting, Study
from trieway.loadgen.reports.text import lines, number, percent, table
from trieway.loadgen.runs.options import whole_numbers
from trieway.loadgen.runs.outputs import Outputs
from trieway.loadgen.runs.progress import Watcher, watcher
from trieway.loadgen.simulations import replay_tables
from trieway.loadgen.simulations.playing import Outcome, Stop, interruptible, play
from trieway.loadgen.simulations.replay_setup import replay_of
from trieway.loadgen.simulations.replays import Found, results
from trieway.loadgen.simulations.scale import scale_lines
from trieway.loadgen.simulations.seeds import play_seeds
from trieway.loadgen.simulations.setups import FLEET_MAX, Play, play_of
from trieway.router.core import POLICIES


def run(asked: argparse.Namespace) -> int:
    """`trieway sim run`."""
    outputs = Outputs(json=asked.json, html=asked.report, csv=asked.csv)
    planned = play_of(asked, policy=asked.policy, workers=asked.workers)
    with interruptible() as stop, _watching() as watching:
        outcome = play(planned, stop, watching.line, watching.update)
    _print([*lines(outcome.report), speed(outcome)])
    _print(f"wrote {path}" for path in outputs.write(outcome.report, outcome.records))
    return _verdict(outcome)


def speed(outcome: Outcome) -> str:
    """How fast it was simulated."""
    played = outcome.played
    ended = sum(record.last_s is not None for record in played.records)
    return (
        f"simulated {played.virtual_s:,.1f} s and {ended:,} requests in {played.cpu_s:,.1f} s of processor time: "
        f"{number(ended / max(played.cpu_s, 1e-9))} requests/s; trace {played.trace[:16]}"
    )


def _verdict(outcome: Outcome) -> int:
    report = outcome.report
    if report.partial:
        raise RunFailed(f"the report is partial: {report.partial_reason}")
    if not report.requests.measured:
        raise RunFailed("nothing was measured: the warm-up covers the whole run")
    if not report.requests.ok:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.errors.items())
        raise RunFailed(f"no request was answered: {kinds}")
    if report.goodput is not None and not report.goodput.holds:
        raise RunFailed(f"the SLO does not hold: {'; '.join(report.goodput.broken)}")
    return 0


def compare(asked: argparse.Namespace) -> int:
    """`trieway sim compare`."""
    if not asked.reports:
        return _compare_fleets(asked)
    if len(asked.reports) != 2:
        raise LoadError("give two reports to compare, or none and --policies or --workers")
    found = compare_files(*asked.reports)
    _print(found.lines)
    return int(asked.fail_on_worse and found.verdict is Verdict.WORSE)


def _compare_fleets(asked: argparse.Namespace) -> int:
    outputs = Outputs(json=asked.json, html=asked.report)
    plays = [
        (Setting(policy=policy, workers=workers), play_of(asked, policy=policy, workers=workers))
        for policy in _names(asked.policies)
        for workers in whole_numbers(asked.workers, "workers")
    ]
    points: list[Point] = []
    with interruptible() as stop, _watching() as watching:
        for setting, planned in plays:
            if not stop.asked:
                points += _points(setting, planned, stop, watching)
    study = Study(
        kind="sweep",
        version=__version__,
        partial=stop.asked,
        partial_reason="interrupted" if stop.asked else None,
        workload=plays[0][1].source,
        seed=asked.seed,
        settings=dict(plays[0][1].settings),
        config=dict(plays[0][1].config) | {"policy": asked.policies, "workers": asked.workers},
        slo=plays[0][1].slo,
        points=points,
    )
    _print(_study_lines(points))
    _print(f"wrote {path}" for path in outputs.write_study(study))
    if stop.asked:
        raise RunFailed("interrupted; what was simulated before is above")
    return 0


def _points(setting: Setting, planned: Play, stop: Stop, watching: Watcher) -> list[Point]:
    """One for each repeat."""
    found = []
    for repeat, one in enumerate(planned.singly()):
        watching.line(f"{setting.name}, run {repeat + 1} of {planned.repeats}")
        outcome = play(one, stop, watching.line, watching.update)
        if outcome.played.interrupted:
            break
        report = outcome.report
        goodput = report.goodput
        found.append(
            Point(
                setting=setting,
                rate=report.rates.offered_per_s or 0.0,
                repeat=repeat,
                seed=one.seed,
                requests=report.requests,
                figures={name: figure.value for name, figure in report.figures.items()},
                holds=None if goodput is None else goodput.holds,
                broken=[] if goodput is None else list(goodput.broken),
                bound_rate=report.cache.bound_rate,
                notes=[*report.notes, speed(outcome)],
            )
        )
    return found


def _study_lines(points: list[Point]) -> list[str]:
    names = ("requests_per_s", "ttft_p50_ms", "ttft_p95_ms", "itl_p95_ms")
    return table(
        ("fleet", "run", "ok", "failed", "per s", "TTFT p50 ms", "TTFT p95 ms", "ITL p95 ms", "hit", "bound", "SLO"),
        [
            (
                point.setting.name,
                str(point.repeat + 1),
                f"{point.requests.ok:,}",
                f"{point.requests.failed + point.requests.abandoned:,}",
                *(number(point.figures.get(name)) for name in names),
                percent(point.figures.get("hit_rate")),
                percent(point.bound_rate),
                {None: "-", True: "holds", False: "broken"}[point.holds],
            )
            for point in points
        ],
    )


def replay(asked: argparse.Namespace) -> int:
    """`trieway sim replay`."""
    check_writable((asked.json,))
    wanted = replay_of(asked)
    found: list[Found] = []
    with interruptible() as stop, _watching() as watching:
        total = len(wanted.sources) * len(wanted.sizes)
        watching.line(f"{total} times a trace on a fleet, in {wanted.processes} processes")
        _print(replay_tables.tables(_told(results(wanted, stop), found, total, watching), wanted.policies))
    _print(replay_tables.against(found))
    if asked.json is not None:
        write_bytes(asked.json, replay_tables.json_of(found, wanted, partial=stop.asked))
        _print(["", f"wrote {asked.json}"])
    if stop.asked:
        raise RunFailed(f"interrupted; {len(found)} of {total} are above")
    return 0


def _told(found: Iterable[Found], kept: list[Found], total: int, watching: Watcher) -> Iterator[Found]:
    for one in found:
        kept.append(one)
        cpu_s = sum(simulated.cpu_s for simulated in one.simulated)
        watching.line(f"{len(kept)} of {total}: {one.trace.name}, {cpu_s:.0f} s of processor time")
        yield one


def scale(asked: argparse.Namespace) -> int:
    """`trieway sim scale`."""
    sizes = whole_numbers(asked.workers, "workers")
    if max(sizes) > FLEET_MAX:
        raise LoadError(f"a simulated fleet has 1 to {FLEET_MAX} workers")
    if asked.requests < 10 or asked.rate <= 0.0 or asked.routers < 1:
        raise LoadError("give at least 10 requests, a rate above 0 and a router")
    with interruptible() as stop:
        for line in scale_lines(sizes, asked.requests, asked.rate, asked.routers, asked.seed, stop):
            print(line, flush=True)
    if stop.asked:
        raise RunFailed("interrupted")
    return 0


def seeds(asked: argparse.Namespace) -> int:
    """`trieway sim seeds`."""
    if asked.seeds < 1 or asked.first < 0 or asked.processes < 1:
        raise LoadError("give at least one seed and one process, and no negative seed")
    with interruptible() as stop, _watching() as watching:
        told = play_seeds(asked.first, asked.seeds, asked.processes, watching.line, stop)
    _print(told.lines())
    if told.failed:
        raise RunFailed(f"{len(told.failed)} of {asked.seeds} seeds failed, the first of them {told.failed[0].seed}")
    if stop.asked:
        raise RunFailed(f"interrupted after {len(told.outcomes)} of {asked.seeds} seeds")
    return 0


def _names(text: str) -> list[str]:
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise LoadError(f"--policies {text!r} names none; there are {', '.join(POLICIES)}")
    return found


@contextmanager
def _watching() -> Iterator[Watcher]:
    """Closed at the end."""
    watching = watcher()
    try:
        yield watching
    finally:
        watching.close()


def _print(text: Iterable[str]) -> None:
    for line in text:
        print(line, flush=True)
