"""How many workers a model needs, from what its workers report: the autoscaling policy of the fleet on Ray. Pure.

Asymmetric and damped: up at once and by as many as the load asks for (at most doubling), since a queue costs every
request; then nothing more until those that were asked for serve and have had time to take load, and not while the
strain falls by itself, since a queue from the time of too few says nothing of how many are needed. Down by one at a
time, only after the load has fitted fewer workers for `calm_s` without a break, since a worker that leaves takes its
cache along. Between the two lies a band in which nothing moves, so that the answer to a change of load does not swing.

Keeps true: within [least, most]; while reports are missing, the target stays; the same reports and state give the same
answer. It imports nothing of the project, so that Ray's controller can run it without the package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One worker's last word. `queue_ms`: mean wait of requests that began lately; `ttft_ms`: what a new request would
    wait for its first token; `pressure`: share of the KV pool that running requests hold, 0 to 1."""

    queue_ms: float
    ttft_ms: float
    pressure: float
    busy: float
    """Running and waiting requests over those it runs well at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """What the fleet should look like."""

    least: int
    most: int
    ttft_target_ms: float = 1000.0
    queue_target_ms: float = 250.0
    pressure_target: float = 0.75
    busy_target: float = 0.7
    down_at: float = 0.6
    """Fewer workers must carry the load at this share of the targets before one leaves."""
    calm_s: float = 120.0
    start_s: float = 300.0
    """Newcomers that do not report are waited for so long after they were asked for."""
    up_pause_s: float = 15.0
    """Once they all report, the next ones are asked for no sooner: at least as long as reports are averaged over."""
    growth_max: float = 2.0
    falls_by: float = 0.1
    """Strain that falls by this share within a pause is on its way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What is kept between two looks. Seconds on the clock that `decide` is given."""

    calm_since: float | None = None
    raised_at: float | None = None
    unsettled_at: float | None = None
    """When a newcomer was last missing or asked for, or the strain was last seen to fall."""
    strain_then: float | None = None
    """The fleet's strain at that time."""


def strain(report: Report, aim: Aim) -> float:
    """How far one worker is from its targets: 1 is at the target, 2 carries twice what it should."""
    return max(
        report.ttft_ms / aim.ttft_target_ms,
        report.queue_ms / aim.queue_target_ms,
        report.pressure / aim.pressure_target,
        report.busy / aim.busy_target,
    )


def decide(reports: Sequence[Report], target: int, aim: Aim, memory: Memory, now: float) -> tuple[int, Memory]:
    """The new target, and what to remember. `reports`: of the workers that serve; `target`: what was last asked for."""
    bounded = min(max(target, aim.least), aim.most)
    if not reports:
        return bounded, replace(memory, calm_since=None)
    # The work is shared: what counts is the mean; one strained worker among idle ones is routing's business.
    total = sum(strain(report, aim) for report in reports)
    if len(reports) < bounded and memory.raised_at is not None and now - memory.raised_at < aim.start_s:
        return bounded, replace(memory, calm_since=None, unsettled_at=now, strain_then=total)
    if total > len(reports) and math.ceil(total - 1e-9) > bounded:
        return _more(total, bounded, aim, memory, now)
    fewer = bounded - 1
    if fewer < aim.least or total > aim.down_at * fewer:
        return bounded, replace(memory, calm_since=None)
    if memory.calm_since is None:
        return bounded, replace(memory, calm_since=now)
    if now - memory.calm_since < aim.calm_s:
        return bounded, memory
    # The next one must be as sure: the calm begins anew.
    return fewer, replace(memory, calm_since=now)


def _more(total: float, bounded: int, aim: Aim, memory: Memory, now: float) -> tuple[int, Memory]:
    """The fleet's strain asks for more than `bounded`."""
    memory = replace(memory, calm_since=None)
    if memory.unsettled_at is not None and memory.strain_then is not None:
        if now - memory.unsettled_at < aim.up_pause_s:
            return bounded, memory
        if total <= memory.strain_then * (1 - aim.falls_by):
            return bounded, replace(memory, unsettled_at=now, strain_then=total)
    raised = min(math.ceil(total - 1e-9), math.ceil(bounded * aim.growth_max), aim.most)
    if raised <= bounded:
        return bounded, memory
    return raised, Memory(raised_at=now, unsettled_at=now, strain_then=total)


REPORT_KEYS = ("queue_ms", "ttft_ms", "pressure", "busy")
KEPT = ("calm_since", "raised_at", "unsettled_at", "strain_then")
"""Names of the state that Serve keeps between two looks."""


class Policy:
    """As Ray Serve calls it; keyword arguments are those of `Aim` but its bounds, which come from Serve."""

    def __init__(self, **aim: float) -> None:
        self._aim = aim

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """`context` is Serve's AutoscalingContext. Returns the target and the state to keep."""
        state = dict(context.policy_state or {})
        aim = Aim(
            least=context.capacity_adjusted_min_replicas, most=context.capacity_adjusted_max_replicas, **self._aim
        )
        memory = Memory(**{name: state.get(name) for name in KEPT})
        reports = read_reports(context.aggregated_metrics or {})
        target, memory = decide(reports, context.target_num_replicas, aim, memory, context.current_time)
        return target, state | {name: getattr(memory, name) for name in KEPT}


def read_reports(metrics: Mapping[str, Mapping[Any, float]]) -> list[Report]:
    """Serve's metric -> replica -> value turned round; replicas that did not report everything are left out."""
    columns = [metrics.get(key) or {} for key in REPORT_KEYS]
    replicas = set(columns[0]).intersection(*columns[1:])
    return [
        Report(**{key: float(column[replica]) for key, column in zip(REPORT_KEYS, columns, strict=True)})
        for replica in sorted(replicas, key=str)
    ]
