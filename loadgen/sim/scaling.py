"""Scaling a simulated fleet: workers that leave hand their prefixes on, newcomers are warmed, as the real ones do.

Keeps true: who gives what to whom, how much a taker computes and in which pieces is the production core's
(worker/core/legacy.py); a worker that leaves serves until its prefixes are where they shall be, or its time is over;
routers hear of a newcomer only then. The transfer itself takes no time: a few kilobytes. Does not know who scales.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from trieway.loadgen.sim.config import WorkerSetup
from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.sim.jumps import Job
from trieway.loadgen.sim.values import Done, First
from trieway.loadgen.sim.worker import SimWorker
from trieway.meta_tree.ids import WorkerId
from trieway.worker.core.legacy import (
    GIVERS_MAX,
    PATHS_MAX,
    PRIORITY,
    SHARE_OF_NEWCOMER,
    SHARE_OF_TAKER,
    Allowance,
    Prefix,
    gift_tokens,
    most_valuable,
    pieces,
    shares,
)
from trieway.worker.core.sequence import Request

HAND_OVER_S = 20.0
WARM_S = 20.0
"""Longest times of a hand-over at a worker's end and at its start, as of real replicas and pods."""
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class _Ask:
    """Stands where a request would be: a prefix has no answer."""

    chain: Any
    prompt: bytes
    hashes: list[int]
    answer: tuple[int, ...] = field(default=())


class Gift:
    """What one giver gives to one taker: the best path first, each when the one before is computed. The taker computes
    at most `tokens_max` for others."""

    def __init__(self, paths: Iterable[Prefix], tokens_max: int, until: float) -> None:
        self.paths = deque(paths)
        self.tokens_max = tokens_max
        self.until = until
        self.open = True
        self.computed_tokens = 0


class _Taker:
    """One incarnation of a worker, as a taker: one path at a time, in pieces, whoever gives."""

    def __init__(self, fleet: Fleet, worker: SimWorker) -> None:
        self.id = ""  # of the piece that is computed now, for the worker's books
        self.ask: Any = None
        self.allowance = Allowance()
        self._timeline = fleet.timeline
        self._worker = worker
        self._gifts: deque[Gift] = deque()
        self._gift: Gift | None = None
        self._path: Prefix | None = None
        self._ends: deque[int] = deque()

    def offer(self, gift: Gift) -> None:
        """One more giver; its turn comes after those that wait."""
        self._gifts.append(gift)
        if self._gift is None:
            self._turn()

    def _turn(self) -> None:
        """The next giver's next path; a gift ends with its paths, its time, or what may be computed for others."""
        now = self._timeline.now
        self._gift = None
        while self._gifts:
            gift = self._gifts.popleft()
            if not gift.paths or now >= gift.until or not self.allowance.left(gift.tokens_max, now):
                gift.open = False
                continue
            self._gift, self._path = gift, gift.paths.popleft()
            _remember(self._worker, self._path)
            tokens = array("i", self._path.tokens)
            held = self._worker.scheduler.kv.cache.match(self._path.chain, tokens, len(tokens)).length
            self._ends = deque(pieces(held, len(tokens), self.allowance.left(gift.tokens_max, now)))
            self._piece()
            return

    def _piece(self) -> None:
        """The next piece of the path, or the next path; one that the worker cannot take is left."""
        gift, path = self._gift, self._path
        if gift is None or path is None:
            return  # the worker died
        if not self._ends or self._timeline.now >= gift.until:
            self._gifts.append(gift)
            self._turn()
            return
        end = self._ends.popleft()
        head = path.tokens[:end]
        text = self._worker.codec.decode(head)
        self.id, self.ask = "", _Ask(path.chain, text, path.chain.hashes(text))

        def request(name: str, now: float) -> Request:
            canonical = min(path.canonical, end)
            return Request(
                id=name, chain=path.chain, tokens=head, canonical=canonical, max_new_tokens=0, priority=PRIORITY,
                arrived=now,
            )  # fmt: skip

        self._worker.take_hint(request, lambda name: self._job(name, head))
        if not self.id:
            self._ends.clear()
            self._timeline.after(0.0, self._piece)

    def _job(self, name: str, head: Sequence[int]) -> Job:
        self.id = name
        return Job(cast(Any, self), list(head))

    # What a request's way back would hear.

    def say(self, what: object) -> None:
        """The worker's word on a piece."""
        gift = self._gift
        if gift is None:
            return
        if isinstance(what, First):
            computed = what.token.prompt_tokens - what.token.cached_tokens
            self.allowance.spend(computed, self._timeline.now)
            gift.computed_tokens += computed
        if isinstance(what, Done):
            self._timeline.after(0.0, self._piece)

    def reset(self) -> None:
        """The worker's process is dead."""
        for gift in [*self._gifts, *([] if self._gift is None else [self._gift])]:
            gift.open = False
        self._gifts.clear()
        self._gift = None


class Scaling:
    """Of one fleet. `gifts` are all that were given."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._takers: dict[tuple[WorkerId, int], _Taker] = {}
        self.gifts: list[Gift] = []

    @property
    def given_tokens(self) -> int:
        """What takers computed for others, all in all."""
        return sum(gift.computed_tokens for gift in self.gifts)

    def leave(self, names: Sequence[WorkerId], *, hand_over: bool = True, serve_on: bool = True) -> None:
        """These workers leave at once. With `hand_over` each gives its best prefixes to those that stay; it takes
        requests until they have them, or without `serve_on` no more from now on."""
        fleet = self._fleet
        leaving = [fleet.workers[name] for name in names if name in fleet.workers]
        stay = [worker for name, worker in fleet.workers.items() if name not in names and worker.up]
        for worker in leaving:
            gifts = self._give(worker, stay, SHARE_OF_TAKER, HAND_OVER_S) if hand_over and stay and worker.up else []
            self._after(gifts if serve_on else [], fleet.leave, worker.id)

    def join(self, setup: WorkerSetup, *, warm: bool = True, then: Callable[[], None] = lambda: None) -> SimWorker:
        """A new worker starts; routers hear of it, and `then` is called, when its peers have given it theirs."""
        fleet = self._fleet
        peers = [worker for worker in fleet.workers.values() if worker.up]
        newcomer = fleet.join(setup, told=False)

        def told() -> None:
            fleet.tell(newcomer)
            then()

        self._after(self._warm(newcomer, peers) if warm else [], told)
        return newcomer

    def _warm(self, newcomer: SimWorker, peers: Sequence[SimWorker]) -> list[Gift]:
        giving = [self._give(giver, [newcomer], SHARE_OF_NEWCOMER, WARM_S) for giver in peers[:GIVERS_MAX]]
        return [gift for gifts in giving for gift in gifts]

    def _give(self, giver: SimWorker, takers: Sequence[SimWorker], share: float, timeout_s: float) -> list[Gift]:
        tokens_max = gift_tokens(giver.setup.kv_tokens, share, len(takers))
        found = most_valuable(giver.scheduler.kv.cache, tokens_max=tokens_max, paths_max=PATHS_MAX)
        by_name = {str(taker.id): taker for taker in takers}
        until = self._fleet.timeline.now + timeout_s
        gifts = []
        for name, paths in shares(found, list(by_name)).items():
            taker = by_name[name]
            gift = Gift(paths, gift_tokens(taker.setup.kv_tokens, share), until)
            gifts.append(gift)
            self._taker(taker).offer(gift)
        self.gifts += gifts
        return gifts

    def _taker(self, worker: SimWorker) -> _Taker:
        key = worker.id, worker.epoch
        found = self._takers.get(key)
        if found is None:
            found = self._takers[key] = _Taker(self._fleet, worker)
        return found

    def _after(self, gifts: Sequence[Gift], then: Callable[..., None], *values: object) -> None:
        """When all of them are taken or their time is over."""
        timeline = self._fleet.timeline
        if any(gift.open and timeline.now < gift.until for gift in gifts):
            timeline.after(LOOK_S, self._after, gifts, then, *values)
        else:
            then(*values)


def _remember(taker: SimWorker, prefix: Prefix) -> None:
    """The taker remembers the tokens of text that the giver generated, as it would its own."""
    codec, tokens = taker.codec, prefix.tokens
    if taker.memory is None or prefix.canonical < len(tokens):
        return
    text = codec.decode(tokens)
    usual = codec.encode(text)
    differ = (at for at, (mine, theirs) in enumerate(zip(usual, tokens, strict=False)) if mine != theirs)
    agreed = next(differ, min(len(usual), len(tokens)))
    if agreed < len(tokens):
        taker.memory.remember(prefix.chain, text, tokens, len(codec.decode(tokens[:agreed])))
