"""In which order waiting requests are tried for admission.

Keeps true: a request that has waited `wait_max_s` is ranked by arrival alone, before all others; among the others a
lower `priority` goes first, then the policy's rank, then arrival. Does not know the cache: how long each request's hit
is comes in as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from trieway.worker.core.sequence import SchedulerConfig
from trieway.worker.core.tracked import Tracked


class Rng(Protocol):
    """The part of random.Random that is used; the caller seeds it."""

    def random(self) -> float: ...


def overdue(sequence: Tracked, config: SchedulerConfig, now: float) -> bool:
    return now - sequence.arrived >= config.wait_max_s


def admission_order(
    waiting: Iterable[Tracked], config: SchedulerConfig, hit: Callable[[Tracked], int], rng: Rng, now: float
) -> list[Tracked]:
    """The waiting requests, first to try first. lpm ranks by the longest hit, and is fcfs with too many waiting."""
    late: list[Tracked] = []
    rest: list[Tracked] = []
    for sequence in waiting:
        (late if overdue(sequence, config, now) else rest).append(sequence)
    late.sort(key=lambda sequence: sequence.serial)
    if config.policy == "lpm" and len(late) + len(rest) <= config.lpm_waiting_max:
        rest.sort(key=lambda sequence: (sequence.request.priority, -hit(sequence), sequence.serial))
    elif config.policy == "random":
        rest.sort(key=lambda sequence: (sequence.request.priority, rng.random()))
    else:
        rest.sort(key=lambda sequence: sequence.rank)
    return late + rest
