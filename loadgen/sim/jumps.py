"""Many steps in one: what a worker's jobs and clock are after them, and what a step costs.

Keeps true: a jump of n steps leaves scheduler, jobs and times as n single steps would; it can be broken off after any
step. Does not know what breaks it off (worker.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trieway.loadgen.sim.clock import LocalClock
from trieway.loadgen.sim.cost import CostModel
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import Plan

if TYPE_CHECKING:
    from trieway.loadgen.sim.exchange import Exchange

JUMP_STEPS_MAX = 64
"""A jump is mostly broken off by an arrival: planning much farther is work for nothing."""
LIKE_GAPS = 0.1
"""Waits between tokens within this share of each other are kept as their mean."""


class Job:
    """A request at a worker, waiting or running."""

    __slots__ = ("exchange", "gaps", "given", "last_at", "tokens", "watched")

    def __init__(self, exchange: Exchange, tokens: list[int]) -> None:
        self.exchange = exchange
        self.tokens = tokens  # of the prompt
        self.given = 0  # tokens of the answer that the model has said
        self.last_at = 0.0
        self.gaps: list[tuple[float, int]] = []
        self.watched = False

    @property
    def next_token(self) -> int:
        return self.exchange.ask.answer[self.given]

    @property
    def said(self) -> Sequence[int]:
        """What it has said so far."""
        return self.exchange.ask.answer[: self.given]

    def token(self, now: float) -> None:
        """The next token is there."""
        if self.given:
            self._gap(now - self.last_at, 1)
        self.given += 1
        self.last_at = now

    def leap(self, steps: int, now: float) -> None:
        """So many tokens more, the last of them now, evenly spread."""
        self._gap((now - self.last_at) / steps, steps)
        self.given += steps
        self.last_at = now

    def _gap(self, gap: float, count: int) -> None:
        if self.gaps:
            mean, before = self.gaps[-1]
            if abs(gap - mean) <= LIKE_GAPS * mean:
                self.gaps[-1] = ((mean * before + gap * count) / (before + count), before + count)
                return
        self.gaps.append((gap, count))


class Jump:
    """Steps under way: `done` of them are taken, the last at time `reached`."""

    __slots__ = ("_jobs", "done", "ends", "reached")

    def __init__(self, jobs: Mapping[str, Job], began: float, ends: list[float]) -> None:
        self._jobs = jobs
        self.ends = ends
        self.reached = began
        self.done = 0

    @property
    def left(self) -> int:
        return len(self.ends) - self.done

    def take(self, scheduler: Scheduler, clock: LocalClock, now: float) -> None:
        """Takes the steps that have ended by `now`."""
        done = bisect_right(self.ends, now, self.done)
        steps = done - self.done
        if not steps:
            return
        ends = self.ends[self.done : done]
        sampled = {name: job.exchange.ask.answer[job.given : job.given + steps] for name, job in self._jobs.items()}
        scheduler.leap(sampled, clock.at(self.reached), [clock.at(end) for end in ends])
        for job in self._jobs.values():
            job.leap(steps, ends[-1])
        self.done, self.reached = done, ends[-1]


def steady_jump(
    scheduler: Scheduler, jobs: Mapping[str, Job], cost: CostModel, began: float, speed: float
) -> Jump | None:
    """The steady steps that come next, if there are two at least."""
    steps = min(scheduler.steady_steps(), JUMP_STEPS_MAX)
    if steps < 2:
        return None
    running = scheduler.running_ids
    decodes = len(running)
    context = scheduler.running_tokens
    ends = []
    now = began
    for _ in range(steps):
        now += cost.step_s(0, 0, decodes, context) / speed
        context += decodes
        ends.append(now)
    return Jump({name: jobs[name] for name in running}, began, ends)


def plan_cost(plan: Plan, cost: CostModel, requests: int = 0, busy: float = 0.0) -> float:
    """Seconds of a step on a machine of normal speed; `requests` and `busy` as CostModel has them."""
    decodes = plan.decode_tokens
    context = pairs = before = 0
    for at, work in enumerate(plan.work):
        if at < decodes:
            context += work.start + 1
        else:
            count = len(work.tokens)
            before += work.start
            pairs += count * work.start + count * (count + 1) // 2
    return cost.step_s(plan.prefill_tokens, pairs, decodes, context, before, requests, busy)
