"""One run, or several equal ones for figures that know how much they vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from trieway.loadgen.reports.figures import over_repeats
from trieway.loadgen.runs.once import Outcome, Stop, Tell, run_once
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.vocabulary import Workload


async def run_repeats(
    plan: Plan, repeats: int, workload_at: Callable[[int], Workload], stop: Stop, tell: Tell, say: Callable[[str], None]
) -> Outcome:
    """The last run, with the headlines of all. Without a flush each run asks with another seed, or the second would
    find its answers cached; an interrupted run counts only if it is the only one."""
    whole: list[Outcome] = []
    cut: Outcome | None = None
    for number in range(repeats):
        if repeats > 1:
            say(f"run {number + 1} of {repeats}")
        workload = plan.workload if plan.flush or not number else workload_at(plan.seed + number)
        outcome = await run_once(replace(plan, seed=plan.seed + number, workload=workload), stop, tell)
        if outcome.report.partial:
            cut = outcome
            break
        whole.append(outcome)
    if not whole:
        assert cut is not None, "at least one run was made"
        return cut
    last = whole[-1]
    if repeats == 1:
        return last
    figures = [{name: one.value for name, one in outcome.report.figures.items()} for outcome in whole]
    report = msgspec.structs.replace(
        last.report,
        seed=plan.seed,
        repeats=figures,
        figures=over_repeats(figures) if len(whole) > 1 else last.report.figures,
        partial=cut is not None,
        partial_reason=None
        if cut is None
        else f"{len(whole)} of {repeats} runs were made: {cut.report.partial_reason}",
    )
    return Outcome(report=report, records=last.records)
