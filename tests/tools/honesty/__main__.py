"""The measurement: fleets up, calibrations and workloads in rounds, the simulator, the table.

Keeps true: nothing is fitted to the runs that are judged; no run begins when the given time is over; a fleet that was
started is ended. Exit code 0: every bound holds; 1: one does not, or something could not be measured; 2: bad usage;
3: more is to be measured, by the same command with the same --state.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

import msgspec

from tests.tools.honesty.cases import CASES, MODEL, WORKER_FLAGS, Case
from tests.tools.honesty.machine import Watch
from tests.tools.honesty.runs import Lagged, Run, real_run, simulated_run
from tests.tools.honesty.state import State, pooled
from tests.tools.honesty.table import broken, costs_of, text_of
from trieway.fleet.calibrate import calibrate
from trieway.fleet.console import Console
from trieway.fleet.errors import CommandError
from trieway.fleet.options import Access
from trieway.loadgen.client.loop import run_loop
from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.reports.study import Setting
from trieway.loadgen.reports.text import percent
from trieway.loadgen.runs.fleets import fleet_of
from trieway.loadgen.runs.options import whole_numbers

JUDGED_WORKERS = 2
MORE = 3
PIECE_S = 80.0
"""A calibration or a run is begun only if so much time is left."""
FOREIGN_MAX = 0.05


Pair = tuple[Case, Sequence[Run], Sequence[Run]]
"""A case, its real runs and its simulated ones."""


class TimeOver(Exception):
    """What is left to measure would take longer than there is time."""


class Session:
    """One call of the command."""

    def __init__(self, state: State, rounds: int, tries: int, minutes: float | None) -> None:
        self._state = state
        self._rounds = rounds
        self._tries = tries
        self._until = None if minutes is None else monotonic() + minutes * 60.0
        self._console = Console()

    def _spend(self, seconds: float) -> None:
        if self._until is not None and monotonic() + seconds > self._until:
            raise TimeOver

    def missing(self, workers: int) -> Iterator[Case | None]:
        """What is left to do, in rounds: a calibration (None), then a run of each case. So both are spread over the
        same time, whatever the machine does meanwhile."""
        for number in range(self._rounds):
            if len(self._state.calibrations(workers)) <= number:
                yield None
            for case in CASES:
                if len(self._state.runs(workers, case.name)) <= number:
                    yield case

    async def measure(self, workers: int) -> None:
        """Whatever is missing of this fleet. TimeOver, RunFailed, CommandError."""
        if not list(self.missing(workers)):
            return
        self._spend(PIECE_S)
        setting = Setting(workers=workers)
        async with fleet_of(setting, ("--model", MODEL, "--pin", *WORKER_FLAGS)) as url:
            for case in self.missing(workers):
                self._spend(PIECE_S)
                if case is None:
                    await self._calibrate(workers, url)
                else:
                    await self._run(workers, case, url)

    async def _calibrate(self, workers: int, url: str) -> None:
        self._console.line(f"{workers} workers: calibrating")
        watch = Watch()
        report = await calibrate(Access(url=url), None, 1, self._console)
        foreign = watch.foreign()
        self._state.add_calibration(workers, {**report.as_json(), "foreign": foreign})
        self._console.line(f"{workers} workers: calibrated, {percent(foreign)} of the machine used by others")

    async def _run(self, workers: int, case: Case, url: str) -> None:
        """Once more if others were at work meanwhile; the quieter one counts."""
        best = None
        for _ in range(self._tries):
            self._console.line(f"{workers} workers: {case.name}")
            watch = Watch()
            try:
                run = await real_run(case, url)
            except Lagged as late:
                self._console.line(f"{late}: once more; {percent(watch.foreign())} of the machine used by others")
                continue
            run = msgspec.structs.replace(run, foreign=watch.foreign())
            self._console.line(f"{workers} workers: {case.name}, {percent(run.foreign)} of the machine used by others")
            if best is None or run.foreign < best.foreign:
                best = run
            if best.foreign <= FOREIGN_MAX:
                break
            try:
                self._spend(PIECE_S)
            except TimeOver:
                break
        if best is None:
            raise RunFailed(f"{case.name}: the load generator lagged {self._tries} times; is the machine free?")
        self._state.add_run(workers, case.name, best)

    def pairs(self, workers: int) -> list[Pair]:
        """Both sides of every case that was measured."""
        calibrations = self._state.calibrations(workers)
        if not calibrations:
            return []
        calibration = pooled(calibrations)
        measured = [(case, self._state.runs(workers, case.name)) for case in CASES]
        return [
            (case, real, [simulated_run(case, calibration, workers, seed) for seed in range(self._rounds)])
            for case, real in measured
            if real
        ]

    def lines(self, workers: int, pairs: Sequence[Pair]) -> Iterator[str]:
        """The tables of one fleet."""
        calibrations = self._state.calibrations(workers)
        if calibrations:
            yield f"{workers} workers, each kept to a core; calibrated {len(calibrations)} times, fitted to all points:"
            yield from costs_of(pooled(calibrations))
        for case, real, simulated in pairs:
            yield ""
            yield from text_of(case, real, simulated, judged=workers == JUDGED_WORKERS)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="honesty", description=__doc__)
    parser.add_argument("--state", type=Path, help="folder that keeps what was measured; default: one that is removed")
    parser.add_argument("--workers", default="2,4", help="fleets to measure (default: 2,4)")
    parser.add_argument("--rounds", type=int, default=3, help="real runs of each workload (default: 3)")
    parser.add_argument(
        "--tries",
        type=int,
        default=3,
        help=f"runs until others use under {FOREIGN_MAX * 100:.0f} %% of the machine (default: 3)",
    )
    parser.add_argument("--minutes", type=float, help="begin nothing that would end later")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            sizes = whole_numbers(asked.workers, "workers")
            session = Session(
                State(asked.state or Path(folder)), max(asked.rounds, 1), max(asked.tries, 1), asked.minutes
            )
        except LoadError as error:
            print(f"honesty: error: {error}", file=sys.stderr)
            return 2
        try:
            for workers in sizes:
                run_loop(session.measure(workers))
        except TimeOver:
            print("more is to be measured: the same command with the same --state goes on", file=sys.stderr)
            return MORE
        except (LoadError, CommandError) as error:
            print(f"honesty: error: {error}", file=sys.stderr)
            return 1
        finally:
            compared = {workers: session.pairs(workers) for workers in sizes}
            for workers, pairs in compared.items():
                for line in session.lines(workers, pairs):
                    print(line, flush=True)
                print()
        wrong = [each for pair in compared.get(JUDGED_WORKERS, ()) for each in broken(*pair)]
        print("BROKEN: " + "; ".join(wrong) if wrong else "every bound holds")
        return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
