"""Which waiting request runs next.

Keeps true: a request that waits holds nothing; one that is tried and does not fit has changed nothing; smaller ones may
pass a request that does not fit until it is overdue, then none may; an idle machine always admits someone. Does not
know steps or budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from trieway.worker.core.kv import KV
from trieway.worker.core.policies import Rng, admission_order, overdue
from trieway.worker.core.sequence import SchedulerConfig
from trieway.worker.core.tracked import Tracked

PASSED_MAX = 32
"""Requests that may not fit before a pass gives up: bounds the work of a step."""


class Admission:
    """The waiting requests, and whether another try could help."""

    def __init__(self, config: SchedulerConfig, kv: KV, rng: Rng) -> None:
        self.waiting: dict[str, Tracked] = {}
        self.worthwhile = False  # something changed since the last pass found nobody to admit
        self._config = config
        self._kv = kv
        self._rng = rng
        self._ended_at = -inf

    def push(self, sequence: Tracked) -> None:
        self.waiting[sequence.request.id] = sequence
        self.worthwhile = True

    def ended(self, now: float) -> None:
        """A request is complete: what its client asks next may be on the way."""
        self._ended_at = now

    def expects_follow_up(self, running: Sequence[Tracked], now: float) -> bool:
        """Whether nothing should be evicted yet for those that wait. On an idle machine somebody must run."""
        return bool(running) and now - self._ended_at < self._config.follow_up_s

    def candidates(self, running: Sequence[Tracked], now: float) -> Iterator[Tracked]:
        """Those to try, in order. `running` is the caller's live list, so that later ones see who was admitted. The
        caller stops early when its own room is spent; reaching the end means that nobody else can be admitted now."""
        if not self.waiting or not (self.worthwhile or not running):
            return
        order = admission_order(self.waiting.values(), self._config, self._kv.hit, self._rng, now)
        passed = 0
        for sequence in order:
            if self._awaits_sibling(sequence, running):
                continue
            yield sequence
            if sequence.request.id in self.waiting:
                passed += 1
                if passed >= PASSED_MAX or overdue(sequence, self._config, now):
                    break
        self.worthwhile = False

    def reserve(self, running: Sequence[Tracked], sequence: Tracked) -> int:
        """Pages to leave for the outputs of those that run and of `sequence`. On an idle machine none: it must run."""
        if not running:
            return 0
        most = self._config.reserve_tokens
        grown = (min(most, one.output_max - one.outputs) for one in (*running, sequence))
        return sum(self._kv.pages_for(max(0, tokens)) for tokens in grown)

    def victims(self, running: Sequence[Tracked], sequence: Tracked) -> Iterator[Tracked]:
        """Those that may be preempted for it: of strictly lower priority, the lowest and newest first."""
        for one in reversed(running):
            if one.request.priority <= sequence.request.priority:
                return
            yield one

    def _awaits_sibling(self, sequence: Tracked, running: Sequence[Tracked]) -> bool:
        """True if a running prefill will soon store a prefix much longer than what is cached of it now."""
        chain = sequence.request.chain
        siblings = [one for one in running if one.prefilling and one.request.publish and one.request.chain == chain]
        if not siblings or not self._kv.cache.enabled:
            return False
        page = self._config.page_size
        want = -(-(self._kv.hit(sequence) + self._config.share_tokens_min) // page) * page
        if want > sequence.reuse_max:
            return False
        last, head = sequence.tokens[want - 1], sequence.tokens[:want]
        return any(
            one.prefill_end >= want and one.tokens[want - 1] == last and one.tokens[:want] == head for one in siblings
        )
