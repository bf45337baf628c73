"""The scheduler: which sequences run in the next step, on which pages.

A step is plan -> (the engine computes and samples) -> commit. Keeps true: free + cached + running-private pages =
total after every call; a request is in exactly one place, waiting or running, until it ends. Does not know text, torch,
threads or clocks: `now` (seconds, never backwards) comes in. The work of a step does not grow with the cache.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trieway.meta_tree.events import CacheEvent
from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import Reject
from trieway.worker.core.admission import Admission
from trieway.worker.core.counters import Counters
from trieway.worker.core.kv import KV
from trieway.worker.core.leap import advance, steady_steps
from trieway.worker.core.policies import Rng, overdue
from trieway.worker.core.rates import StepRates
from trieway.worker.core.sequence import (
    Committed,
    FinishReason,
    FirstToken,
    Outcome,
    Plan,
    Request,
    SchedulerConfig,
    SchedulerStats,
    Work,
)
from trieway.worker.core.tracked import Tracked

RETRY_AFTER_MAX_S = 30.0


class Scheduler:
    """Owns the page pool, the radix cache and every request from `add` to its end."""

    def __init__(
        self, config: SchedulerConfig, token_bytes: Sequence[bytes], rng: Rng, *, kv: KV | None = None
    ) -> None:
        """`kv`: another cache than the usual one, for studies."""
        self.config = config
        self.kv = KV(config, token_bytes) if kv is None else kv
        self._vocabulary = len(token_bytes)
        self._admission = Admission(config, self.kv, rng)
        self._running: list[Tracked] = []  # by rank: the last is the first to be preempted
        self._by_id: dict[str, Tracked] = {}  # waiting and running
        self._rates = StepRates()
        self._counters = Counters()
        self._serial = 0
        self._steps = 0
        self._open: Plan | None = None
        self._opened_at = 0.0

    # Requests come and go

    def add(self, request: Request, now: float) -> Reject | None:
        """Queues a request. Rejects: `queue_full` (with retry_after_s), `empty`, `bad_token`, `too_long`."""
        reject = self._refusal(request)
        if reject is not None:
            self._counters.rejected += 1
            return reject
        assert request.id not in self._by_id, "a request id is used twice"
        prompt = len(request.tokens)
        capacity = self.kv.pool.pages * self.config.page_size
        # The last token is sampled and never computed, so a lone request may fill the pool and one more.
        output_max = min(request.max_new_tokens, self.config.context_max - prompt, capacity - prompt + 1)
        self._serial += 1
        tracked = Tracked(request, self._serial, request.arrived or now, output_max, self.kv.cover_for(request))
        self._by_id[request.id] = tracked
        self._admission.push(tracked)
        self.kv.hit(tracked)  # for `load`
        self._counters.requests += 1
        return None

    def hint(self, request: Request, now: float) -> Reject | None:
        """Queues a request for its prompt alone: it is computed, stored and finishes with `length` and no token."""
        return self.add(replace(request, max_new_tokens=0), now)

    def _refusal(self, request: Request) -> Reject | None:
        tokens = request.tokens
        if not tokens:
            return Reject(reason="empty")
        if min(tokens) < 0 or max(tokens) >= self._vocabulary:
            return Reject(reason="bad_token")
        room = min(self.config.context_max - (request.max_new_tokens > 0), self.kv.pool.pages * self.config.page_size)
        if len(tokens) > room:
            return Reject(reason="too_long")
        if len(self._admission.waiting) >= self.config.waiting_max:
            wait = self._rates.seconds_for(self._tokens_to_compute()) or 1.0
            return Reject(reason="queue_full", retry_after_s=min(max(wait, 1.0), RETRY_AFTER_MAX_S))
        return None

    def cancel(self, request_id: str, now: float) -> bool:
        """Ends a request wherever it is and frees all it held; what was computed is stored. False if unknown.

        One that the open plan computes goes with that plan's commit or abandon: its pages are being written.
        """
        return self._stop(request_id, cancelled=True)

    def finish(self, request_id: str, now: float) -> bool:
        """Ends a running request that the caller found complete (a stop string). False if unknown."""
        self._admission.ended(now)
        return self._stop(request_id, cancelled=False)

    def _stop(self, request_id: str, *, cancelled: bool) -> bool:
        tracked = self._by_id.get(request_id)
        if tracked is None or tracked.doomed:
            return False
        self._counters.cancelled += cancelled
        self._counters.finished += not cancelled
        if self._open is not None and any(work.id == request_id for work in self._open.work):
            tracked.doomed = True
        else:
            self._end(tracked)
        return True

    def _end(self, tracked: Tracked) -> None:
        del self._by_id[tracked.request.id]
        if self._admission.waiting.pop(tracked.request.id, None) is None:
            self._running.remove(tracked)
            self.kv.release(tracked)
        self._admission.worthwhile = True

    # A step

    def plan(self, now: float) -> Plan:
        """The next step: decodes first, then prefill chunks, then as many new requests as fit. Its work is empty if
        nothing waits or runs. One plan at a time: commit or abandon it before the next."""
        assert self._open is None, "the last plan is neither committed nor abandoned"
        works: dict[str, Work] = {}
        self._plan_decodes(works)
        decodes = len(works)
        budget = self._plan_chunks(works, self.config.batch_tokens_max - decodes)
        self._plan_admissions(works, budget, now)
        assert works or not self._by_id, "an idle machine must admit someone"
        self._steps += 1
        work = tuple(works.values())
        decoding = sum(not self._by_id[one.id].prefilling for one in work)
        prefill = sum(len(one.tokens) for one in work) - decoding
        self._open = Plan(number=self._steps, work=work, prefill_tokens=prefill, decode_tokens=decoding)
        self._opened_at = now
        return self._open

    def _plan_decodes(self, works: dict[str, Work]) -> None:
        at = 0
        while at < len(self._running):  # preemption shortens the list from its end
            tracked = self._running[at]
            at += 1
            if not tracked.prefilling and self._room_for_one(tracked):
                works[tracked.request.id] = Work(
                    id=tracked.request.id,
                    tokens=(tracked.tokens[-1],),
                    start=tracked.computed,
                    pages=tracked.row,
                    samples=True,
                )

    def _room_for_one(self, tracked: Tracked) -> bool:
        """A page for its next token, at the cost of the lowest and newest. False if that was itself."""
        if tracked.computed < len(tracked.row) * self.config.page_size:
            return True
        while not self.kv.grow(tracked, 1):
            victim = self._running[-1]
            self.kv.release(victim)
            self._requeue(victim)
            if victim is tracked:
                return False
        return True

    def _requeue(self, tracked: Tracked) -> None:
        """A preempted request, released, waits again: it will replay prompt and output."""
        self._running.remove(tracked)
        self._admission.push(tracked)
        self._counters.preempted += 1

    def _plan_chunks(self, works: dict[str, Work], budget: int) -> int:
        for tracked in self._running:
            if tracked.prefilling:
                budget = self._plan_chunk(works, tracked, budget)
        return budget

    def _plan_chunk(self, works: dict[str, Work], tracked: Tracked, budget: int) -> int:
        size = self._chunk(tracked.computed, tracked.prefill_end, budget)
        if not size:
            return budget
        end = tracked.computed + size
        works[tracked.request.id] = Work(
            id=tracked.request.id,
            tokens=tuple(tracked.tokens[tracked.computed : end]),
            start=tracked.computed,
            pages=tracked.row[: self.kv.pages_for(end)],
            samples=end == tracked.prefill_end and tracked.output_max > 0,
        )
        return budget - size

    def _chunk(self, start: int, end: int, budget: int) -> int:
        """Tokens to compute of start .. end: all that is left, or as much of it as ends on a page."""
        if end - start <= budget:
            return end - start
        return max(0, (start + budget) // self.config.page_size * self.config.page_size - start)

    def _plan_admissions(self, works: dict[str, Work], budget: int, now: float) -> None:
        admission = self._admission
        if len(self._running) >= self.config.running_max or not budget:
            return
        spare = awaited = admission.expects_follow_up(self._running, now)
        for tracked in admission.candidates(self._running, now):
            if not self._chunk(self.kv.hit(tracked), len(tracked.tokens), budget):
                return
            reserve = admission.reserve(self._running, tracked)
            evict = not spare or overdue(tracked, self.config, now)
            released = self.kv.admit(tracked, reserve, admission.victims(self._running, tracked), evict=evict)
            if released is None:
                spare = spare or (self.config.keep_warm and tracked.hit > 0)
                continue
            for victim in released:
                works.pop(victim.request.id, None)
                self._requeue(victim)
            self._admitted(tracked, now)
            budget = self._plan_chunk(works, tracked, budget)
            if len(self._running) >= self.config.running_max or not budget:
                return
        admission.worthwhile = admission.worthwhile or awaited  # the wait ends by itself

    def _admitted(self, tracked: Tracked, now: float) -> None:
        del self._admission.waiting[tracked.request.id]
        insort(self._running, tracked, key=lambda one: one.rank)
        if tracked.admitted_at is None:  # a replay after preemption is no new hit
            tracked.admitted_at = now
            tracked.cached_tokens = tracked.computed
            self._counters.prompt_tokens += len(tracked.tokens)
            self._counters.cached_tokens += tracked.computed

    def commit(self, plan: Plan, sampled: Mapping[str, int], now: float) -> Committed:
        """Books a computed step. `sampled` has one token for each work with `samples` (others are ignored)."""
        self._close(plan)
        self._rates.observe(plan.prefill_tokens, plan.decode_tokens, now - self._opened_at)
        outcomes: dict[str, Outcome] = {}
        for work in plan.work:
            tracked = self._by_id[work.id]
            prefilled = tracked.prefilling
            tracked.computed += len(work.tokens)
            self._counters.computed_tokens += len(work.tokens)
            if tracked.doomed:
                self._end(tracked)
                continue
            if tracked.prefilling:
                outcomes[work.id] = Outcome(id=work.id)
                continue
            if prefilled:
                self.kv.store(tracked)
                self._admission.worthwhile = True
            outcomes[work.id] = self._token(tracked, sampled[work.id] if work.samples else None, now)
        return Committed(outcomes=outcomes)

    def _token(self, tracked: Tracked, token: int | None, now: float) -> Outcome:
        """Takes a sampled token (None: a hint has none) and ends the request if it was the last."""
        finish: FinishReason | None = None
        if token is not None:
            tracked.tokens.append(token)
            self._counters.generated_tokens += 1
            if token in tracked.request.stop_token_ids:
                finish = "stop"
        if finish is None and tracked.outputs >= tracked.output_max:
            finish = "length"
        first: FirstToken | None = None
        if not tracked.first_said:
            tracked.first_said = True
            assert tracked.admitted_at is not None
            first = FirstToken(
                cached_tokens=tracked.cached_tokens,
                prompt_tokens=len(tracked.request.tokens),
                queue_ms=max(0.0, tracked.admitted_at - tracked.arrived) * 1e3,
                prefill_ms=(now - tracked.admitted_at) * 1e3,
            )
        if finish is not None:
            self._counters.finished += 1
            self._admission.ended(now)
            self._end(tracked)
        return Outcome(id=tracked.request.id, token=token, first=first, finish=finish)

    def abandon(self, plan: Plan, now: float) -> tuple[str, ...]:
        """A step failed: its requests are dropped, what was computed before it is stored. Returns their ids, those
        cancelled meanwhile left out."""
        self._close(plan)
        dropped = []
        for work in plan.work:
            tracked = self._by_id[work.id]
            if not tracked.doomed:
                dropped.append(work.id)
                self._counters.cancelled += 1
            self._end(tracked)
        return tuple(dropped)

    # Several steps at once

    def steady_steps(self) -> int:
        """How many of the coming steps one `leap` could take: in them nobody is admitted, prefilled, preempted or
        finished, and nothing is evicted. 0 while a plan is open. Counts tokens alone: stop tokens are the caller's."""
        admission = self._admission
        admits = admission.waiting and admission.worthwhile and len(self._running) < self.config.running_max
        return 0 if admits or self._open is not None else steady_steps(self._running, self.kv)

    def leap(self, sampled: Mapping[str, Sequence[int]], began_at: float, ends: Sequence[float]) -> None:
        """Takes len(ends) steady steps (at least one); afterwards all is as after as many plans and commits.

        sampled: of each running request at least so many tokens, none of them a stop token. ends: when each step ended.
        """
        steps = len(ends)
        assert 0 < steps <= self.steady_steps(), "these steps are not all steady"
        advance(self._running, self.kv, steps, sampled)
        decodes = len(self._running)
        for began, ended in zip((began_at, *ends), ends, strict=False):
            self._rates.observe(0, decodes, ended - began)
            self._opened_at = began
        self._steps += steps
        self._counters.computed_tokens += steps * decodes
        self._counters.generated_tokens += steps * decodes

    def _close(self, plan: Plan) -> None:
        assert plan is self._open, "not the open plan"
        self._open = None

    # What it says

    def has_work(self) -> bool:
        """True if anything waits or runs."""
        return bool(self._by_id)

    @property
    def running_ids(self) -> list[str]:
        """The requests that run, by rank."""
        return [one.request.id for one in self._running]

    @property
    def running_tokens(self) -> int:
        """Context tokens of the requests that run, prompts and outputs."""
        return sum([len(one.tokens) for one in self._running])

    def drain_events(self) -> list[CacheEvent]:
        """The cache events since the last call, in order. Call after each plan, commit, cancel, finish and flush."""
        return self.kv.cache.announcer.drain()

    def flush(self) -> int:
        """Drops every cached token that no running request holds; returns how many. Emits Cleared, then what stays."""
        self._counters.flushes += 1
        return self.kv.cache.flush()

    def _tokens_to_compute(self) -> int:
        waiting = sum(len(one.tokens) - one.hit for one in self._admission.waiting.values())
        return waiting + sum(one.prefill_end - one.computed for one in self._running if one.prefilling)

    def load(self, now: float, *, draining: bool = False) -> WorkerLoad:
        """What a heartbeat carries. O(requests)."""
        page = self.config.page_size
        return WorkerLoad(
            running=len(self._running),
            waiting=len(self._admission.waiting),
            waiting_tokens=self._tokens_to_compute(),
            running_tokens=self.running_tokens,
            prefill_tokens_per_s=self._rates.prefill_tokens_per_s,
            decode_step_ms=self._rates.decode_step_s * 1e3,
            kv_free_tokens=self.kv.pool.free * page,
            kv_cached_tokens=self.kv.cache.cached,
            kv_total_tokens=self.kv.pool.pages * page,
            draining=draining,
        )

    def stats(self) -> SchedulerStats:
        return self._counters.stats(self.kv, running=len(self._running), waiting=len(self._admission.waiting))

    def check(self) -> None:
        """Proves the conservation sums of pool, cache and queues; AssertionError otherwise. O(cache)."""
        waiting = self._admission.waiting
        self.kv.check(self._running)
        assert [one.rank for one in self._running] == sorted(one.rank for one in self._running)
        assert len(self._running) <= self.config.running_max
        assert len(self._by_id) == len(self._running) + len(waiting)
        for one in self._running:
            assert self._by_id[one.request.id] is one
            assert one.request.id not in waiting
            assert one.computed < len(one.tokens)
        for name, one in waiting.items():
            assert self._by_id[name] is one
            assert not one.row
            assert one.receipt is None
            assert one.computed == one.shared == 0
        stats = self.stats()
        assert stats.kv_free + stats.kv_cached + stats.kv_running == stats.kv_total
        alive = sum(not one.doomed for one in self._by_id.values())  # the doomed are counted where they were stopped
        assert stats.requests_total == stats.finished_total + stats.cancelled_total + alive
