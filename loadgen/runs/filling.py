"""A workload made long enough for a rate: the same again with other seeds, so that every rate lasts as long.

Keeps true: copies share nothing by name, so each copy's sessions are whole and its answers its own; what a workload
shares within itself stays. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trieway.loadgen.errors import LoadError
from trieway.loadgen.vocabulary import AnswerOf, Call, Hint, Message, Part, Workload

COPIES_MAX = 10_000
CALLS_MAX = 5_000_000


def filled(
    workload: Workload, workload_at: Callable[[int], Workload], count: Callable[[Workload], int], least: float
) -> Workload:
    """`workload` and as many copies of other seeds as `count` needs to reach `least`. LoadError: too many."""
    calls, hints = list(workload.calls), list(workload.hint_prefixes)
    have = count(workload)
    for copy in range(1, COPIES_MAX):
        if have >= least:
            return replace(workload, calls=tuple(calls), hint_prefixes=tuple(hints))
        more = renamed(workload_at(workload.seed + copy * 1_000_003), f"{copy}:")
        calls += more.calls
        hints += more.hint_prefixes
        have += count(more)
        if len(calls) > CALLS_MAX:
            break
    raise LoadError(f"{workload.name} is too short to fill such a run; make it larger with --set, or take less time")


def calls_of(workload: Workload) -> int:
    """What a rate of calls counts."""
    return len(workload.calls)


def sessions_of(workload: Workload) -> int:
    """What a rate of sessions counts."""
    return len({call.session for call in workload.calls})


def renamed(workload: Workload, prefix: str) -> Workload:
    """Every call and session under another name."""

    def part(one: Part) -> Part:
        return AnswerOf(prefix + one.call) if isinstance(one, AnswerOf) else one

    def message(one: Message) -> Message:
        return replace(one, parts=tuple(map(part, one.parts)))

    def call(one: Call) -> Call:
        return replace(
            one,
            id=prefix + one.id,
            session=prefix + one.session,
            after=tuple(prefix + name for name in one.after),
            messages=tuple(map(message, one.messages)),
            prompt=tuple(map(part, one.prompt)),
        )

    def hint(one: Hint) -> Hint:
        return one if one.session is None else replace(one, session=prefix + one.session)

    return replace(
        workload, calls=tuple(map(call, workload.calls)), hint_prefixes=tuple(map(hint, workload.hint_prefixes))
    )
