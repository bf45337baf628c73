"""Decode steps in a row, taken at once: for an engine that computes several before it asks again, and for simulation.

Keeps true: after a leap of n steps the pool, every page table and every token path are as after n single steps in which
nothing arrived; a leap neither evicts nor finishes anything, so it causes no cache event. Does not know rates, counters
or time (scheduler.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trieway.worker.core.kv import KV
from trieway.worker.core.tracked import Tracked


def steady_steps(running: Sequence[Tracked], kv: KV) -> int:
    """How many steps could only decode all of `running`: none of them ends, and no page has to be evicted for them."""
    steps = min((one.output_max - one.outputs for one in running), default=1) - 1
    if steps <= 0 or any(one.prefilling for one in running):
        return 0
    if _pages(running, kv, steps) <= kv.pool.free:
        return steps
    low, high = 0, steps  # low steps fit, high do not
    while high - low > 1:
        middle = (low + high) // 2
        if _pages(running, kv, middle) <= kv.pool.free:
            low = middle
        else:
            high = middle
    return low


def advance(running: Sequence[Tracked], kv: KV, steps: int, sampled: Mapping[str, Sequence[int]]) -> None:
    """Takes `steps` of the steady steps. `sampled`: of each request, at least so many tokens."""
    _grow(running, kv, steps)
    for one in running:
        tokens = sampled[one.request.id][:steps]
        assert len(tokens) == steps
        assert not one.request.stop_token_ids.intersection(tokens), "a stop token ends a leap"
        one.tokens.extend(tokens)
        one.computed += steps


def _pages(running: Sequence[Tracked], kv: KV, steps: int) -> int:
    """Pages that so many steps add."""
    return sum([max(0, kv.pages_for(one.computed + steps) - len(one.row)) for one in running])


def _grow(running: Sequence[Tracked], kv: KV, steps: int) -> None:
    """The pages of those steps, handed out as one step after another would: the same page to the same place."""
    page = kv.page_size
    taken = kv.pool.allocate(_pages(running, kv, steps))
    taken.reverse()  # single allocations take the last free page first
    if page == 1 and all(one.computed == len(one.row) for one in running):
        for at, one in enumerate(running):
            one.row += taken[at :: len(running)]
        return
    due = [
        (step, at) for at, one in enumerate(running) for step in range(len(one.row) * page - one.computed, steps, page)
    ]
    for (_, at), new in zip(sorted(due), taken, strict=True):
        running[at].row.append(new)
