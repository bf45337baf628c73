"""Fault seeds in several processes. Each seed is a world of its own, so they share nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trieway.loadgen.reports.text import number
from trieway.loadgen.sim.seeds import Outcome, play, world_of
from trieway.loadgen.simulations.playing import Stop
from trieway.loadgen.simulations.pools import each

TELL_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedFailed:
    """A seed in whose world something did not hold."""

    seed: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What came of all seeds."""

    outcomes: list[Outcome]
    failed: list[SeedFailed]
    wall_s: float
    cpu_s: float

    def lines(self) -> Iterator[str]:
        """For the terminal."""
        for one in self.failed:
            yield f"seed {one.seed}: {one.why}"
        ends: Counter[str] = Counter()
        for outcome in self.outcomes:
            ends += outcome.statuses
        steps = sum(outcome.steps for outcome in self.outcomes)
        virtual = sum(outcome.virtual_s for outcome in self.outcomes)
        yield (
            f"{len(self.outcomes):,} seeds hold: {ends.total():,} calls, {steps:,} checked steps, "
            f"{virtual:,.0f} simulated s, in {number(self.wall_s)} s ({number(self.cpu_s)} s of processor time)"
        )
        yield "calls ended: " + ", ".join(f"{count:,} {status}" for status, count in ends.most_common())


def seed_outcome(seed: int) -> tuple[Outcome | SeedFailed, float]:
    """One world, and its processor time."""
    began = time.process_time()
    try:
        found: Outcome | SeedFailed = play(world_of(seed))
    except AssertionError as error:
        found = SeedFailed(seed=seed, why=str(error) or _where(error))
    return found, time.process_time() - began


def _where(error: BaseException) -> str:
    """The place of an assertion without words."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an assertion"
    return f"an assertion in {trace.tb_frame.f_code.co_qualname}, line {trace.tb_lineno}"


def play_seeds(
    first: int, count: int, processes: int, say: Callable[[str], None] = lambda line: None, stop: Stop | None = None
) -> Told:
    """All seeds from `first` on; failures do not end it, an interrupt does."""
    began = said = time.monotonic()
    outcomes: list[Outcome] = []
    failed: list[SeedFailed] = []
    cpu_s = 0.0
    for found, took_s in each(seed_outcome, range(first, first + count), processes, stop or Stop()):
        cpu_s += took_s
        if isinstance(found, Outcome):
            outcomes.append(found)
        else:
            failed.append(found)
            say(f"seed {found.seed}: {found.why}")
        now = time.monotonic()
        if now - said > TELL_S:
            said = now
            say(f"{len(outcomes) + len(failed)} of {count} seeds, {len(failed)} failed, {now - began:.0f} s")
    return Told(outcomes=outcomes, failed=failed, wall_s=time.monotonic() - began, cpu_s=cpu_s)
