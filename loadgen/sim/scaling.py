"""Scaling a simulated fleet: workers that leave hand their prefixes on, newcomers are warmed, as the real ones do.

Keeps true: what is handed on is chosen and shared by the production core (worker/core/legacy.py); a taker computes it
at the lowest priority, on its own time. The transfer itself takes no time: a few kilobytes. Does not know who scales.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, cast

from trieway.loadgen.sim.config import WorkerSetup
from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.sim.jumps import Job
from trieway.loadgen.sim.worker import SimWorker
from trieway.worker.core.legacy import Prefix, most_valuable, shares
from trieway.worker.core.sequence import Request

SHARE_OF_TAKER = 0.25
PATHS_MAX = 256
WARM_S = 5.0
PRIORITY = 1 << 20
"""After everything that a user waits for: as in worker/handover.py."""


@dataclass(eq=False)
class _Nobody:
    """Stands where a request's way back would be: a prefix has no client."""

    id: str
    ask: Any = None

    def say(self, what: object) -> None:
        """Heard by nobody."""

    def reset(self) -> None:
        """Missed by nobody."""


@dataclass(frozen=True, slots=True)
class _Ask:
    chain: Any
    prompt: bytes
    hashes: list[int]
    answer: tuple[int, ...] = field(default=())


def hand_over(givers: Sequence[SimWorker], takers: Sequence[SimWorker]) -> int:
    """Each giver's most valuable prefixes, each to one taker, the best of every giver first, within what a taker
    computes for others. Returns the tokens that takers were asked to compute."""
    by_name = {str(taker.id): taker for taker in takers if taker.up}
    if not by_name:
        return 0
    left = {name: round(taker.setup.kv_tokens * SHARE_OF_TAKER) for name, taker in by_name.items()}
    queues: list[list[tuple[str, Prefix]]] = []
    for giver in givers:
        found = most_valuable(giver.scheduler.kv.cache, tokens_max=sum(left.values()), paths_max=PATHS_MAX)
        homes = {id(one): name for name, share in shares(found, list(by_name)).items() for one in share}
        queues.append([(homes[id(one)], one) for one in found])
    tokens = 0
    for turn in zip_longest(*queues):
        for entry in turn:
            if entry is None or left[entry[0]] <= 0:
                continue
            name, prefix = entry
            taker = by_name[name]
            new = (
                len(prefix.tokens)
                - taker.scheduler.kv.cache.match(prefix.chain, array("i", prefix.tokens), len(prefix.tokens)).length
            )
            left[name] -= new
            tokens += new
            adopt(taker, prefix)
    return tokens


def join_warm(fleet: Fleet, setup: WorkerSetup, *, warm_s: float = WARM_S) -> SimWorker:
    """A new worker is given its peers' prefixes; routers hear of it `warm_s` later."""
    peers = [worker for worker in fleet.workers.values() if worker.up]
    newcomer = fleet.join(setup, told=False)
    hand_over(peers, [newcomer])
    fleet.timeline.after(warm_s, fleet.tell, newcomer)
    return newcomer


def adopt(taker: SimWorker, prefix: Prefix) -> None:
    """The taker computes it when nobody waits, and remembers the tokens of generated text."""
    codec = taker.codec
    text = codec.decode(prefix.tokens)
    if taker.memory is not None and prefix.canonical == len(prefix.tokens):
        usual = codec.encode(text)
        agreed = next(
            (n for n, (a, b) in enumerate(zip(usual, prefix.tokens, strict=False)) if a != b), len(prefix.tokens)
        )
        if agreed < len(prefix.tokens):
            start = len(codec.decode(prefix.tokens[:agreed]))
            taker.memory.remember(prefix.chain, text, prefix.tokens, start)
    ask = _Ask(prefix.chain, text, prefix.chain.hashes(text))
    taker.take_hint(
        lambda name, now: Request(
            id=name,
            chain=prefix.chain,
            tokens=prefix.tokens,
            canonical=prefix.canonical,
            max_new_tokens=0,
            priority=PRIORITY,
            arrived=now,
        ),
        lambda name: Job(cast(Any, _Nobody(name, ask)), list(prefix.tokens)),
    )
