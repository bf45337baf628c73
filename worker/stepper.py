"""One engine step: plan, compute, sample, commit, turn tokens into text, find stop strings.

Keeps true: a request is live here exactly while the scheduler has it; a step that raises costs only its own requests;
text that a stop string may still cut is never given out. Runs on one thread, the caller's. Does not know threads, HTTP
or what listens.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from trieway.meta_tree.events import CacheEvent
from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import Reject
from trieway.worker.core.radix import RadixCache
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import FirstToken, Outcome, Plan, Request, SchedulerStats, Work
from trieway.worker.generation import Begun, Output
from trieway.worker.runner import StepLogits
from trieway.worker.sampling import Sampled, Sampler, SamplingParams, SamplingState, token_logprobs
from trieway.worker.transcript import PromptScores, Transcript, Vocabulary

log = logging.getLogger(__name__)

FAILED_STEPS_MAX = 8
"""So many failing steps in a row mean that the device is lost, not that a request was bad."""


GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One sequence to run. `prompt_logprobs`: alternatives for each prompt token, None for no prompt scores.

    `text_start` is where the choice's generated text begins, in characters (after an echoed prompt). A request with
    max_new_tokens 0 computes, keeps and scores its prompt alone.
    """

    request: Request
    sampling: SamplingParams = GREEDY
    stop: tuple[str, ...] = ()
    prompt_logprobs: int | None = None
    text_start: int = 0
    hidden_chars: int = 0
    """Characters of the prompt's text that `echo` does not show (BOS)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The scheduler's own numbers after a turn."""

    load: WorkerLoad
    stats: SchedulerStats


@dataclass(kw_only=True, slots=True)
class StepReport:
    """What a step gave: outputs by request name, ids that failed, and times in seconds."""

    seconds: float
    batch_tokens: int
    outputs: dict[str, list[Output]] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    ttft_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)


class Runner(Protocol):
    """What computes; `trieway.worker.runner.ModelRunner` is the real one."""

    def step(self, work: Sequence[Work], all_logits: AbstractSet[str] = ...) -> StepLogits: ...


class EngineBroken(Exception):
    """The engine cannot go on."""


@dataclass(kw_only=True, slots=True)
class _Live:
    sample: Sample
    index: int
    transcript: Transcript
    scores: PromptScores | None
    sampling: SamplingState
    last_token_at: float = 0.0


class Stepper:
    """Owns the scheduler, the model and the sampler. `rng` seeds the samples that name no seed; `clock` gives
    seconds and never goes back."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        vocabulary: Vocabulary,
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = Sampler()
        self._vocabulary = vocabulary
        # A model's head may be padded beyond the ids that stand for something.
        self._size = len(vocabulary.token_bytes)
        self._rng = rng
        self._clock = clock
        self._live: dict[str, _Live] = {}
        self._failed_steps = 0

    @property
    def cache(self) -> RadixCache:
        """To read from; the scheduler alone changes it."""
        return self._scheduler.kv.cache

    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return self._scheduler.has_work()

    def state(self) -> State:
        """The numbers of now."""
        return State(load=self._scheduler.load(self._clock()), stats=self._scheduler.stats())

    def drain_events(self) -> list[CacheEvent]:
        """The cache's events since the last call."""
        return self._scheduler.drain_events()

    def add(self, samples: Sequence[Sample]) -> Reject | None:
        """Queues samples that belong together: all or none."""
        now = self._clock()
        for index, sample in enumerate(samples):
            request = sample.request
            hint = request.max_new_tokens == 0
            reject = self._scheduler.hint(request, now) if hint else self._scheduler.add(request, now)
            if reject is not None:
                self.cancel([earlier.request.id for earlier in samples[:index]])
                return reject
            self._live[request.id] = self._start(sample, index)
        return None

    def cancel(self, ids: Sequence[str]) -> None:
        """Ends requests wherever they are; ids that have ended are passed over."""
        for name in ids:
            if self._live.pop(name, None) is not None:
                self._scheduler.cancel(name, self._clock())

    def flush(self) -> int:
        """Drops the unlocked cache; how many tokens that were."""
        return self._scheduler.flush()

    def step(self) -> StepReport | None:
        """One step, or None if nothing is to do.

        Raises:
            EngineBroken: FAILED_STEPS_MAX steps in a row have raised.
        """
        if not self.has_work():
            return None
        began = self._clock()
        plan = self._scheduler.plan(began)
        try:
            chosen = self._compute(plan)
        except Exception as fault:
            return self._abandon(plan, fault, began)
        self._failed_steps = 0
        now = self._clock()
        committed = self._scheduler.commit(plan, {name: one.token for name, one in chosen.items()}, now)
        report = self._report(plan, now - began)
        for name, outcome in committed.outcomes.items():
            live = self._live.get(name)
            assert live is not None, "the scheduler has a request that is not live"
            output = self._book(live, outcome, chosen.get(name), report, now)
            if output is not None:
                report.outputs[name] = [output]
        return report

    def check(self) -> None:
        """Proves the scheduler's sums and that both sides know the same requests."""
        self._scheduler.check()
        stats = self._scheduler.stats()
        assert len(self._live) == stats.running + stats.waiting

    def _start(self, sample: Sample, index: int) -> _Live:
        return _Live(
            sample=sample,
            index=index,
            transcript=Transcript(
                self._vocabulary,
                stop=sample.stop,
                text_start=sample.text_start,
                scored=sample.sampling.logprobs is not None,
            ),
            scores=self._prompt_scores(sample),
            sampling=SamplingState(sample.sampling, sample.request.tokens, self._rng.getrandbits(63)),
        )

    def _prompt_scores(self, sample: Sample) -> PromptScores | None:
        if sample.prompt_logprobs is None:
            return None
        return PromptScores(self._vocabulary, sample.request.tokens, hidden_chars=sample.hidden_chars)

    def _compute(self, plan: Plan) -> Mapping[str, Sampled]:
        """Runs the model and samples; what was chosen for each work that samples."""
        scored = frozenset(work.id for work in plan.work if self._scores(work.id) is not None)
        logits = self._runner.step(plan.work, scored)
        for work in plan.work:
            scores = self._scores(work.id)
            if scores is not None:
                top = self._live[work.id].sample.prompt_logprobs or 0
                targets = scores.targets(work)
                scores.take(work, token_logprobs(logits.every[work.id][: len(targets), : self._size], targets, top))
        if not logits.ids:
            return {}
        states = [self._live[name].sampling for name in logits.ids]
        return dict(zip(logits.ids, self._sampler.sample(logits.rows[:, : self._size], states), strict=True))

    def _scores(self, name: str) -> PromptScores | None:
        scores = self._live[name].scores
        return None if scores is None or scores.complete else scores

    def _abandon(self, plan: Plan, fault: Exception, began: float) -> StepReport:
        log.error("a step of %d requests failed", len(plan.work), exc_info=fault)
        self._failed_steps += 1
        if self._failed_steps >= FAILED_STEPS_MAX:
            raise EngineBroken(
                f"{FAILED_STEPS_MAX} steps in a row failed; the last with {type(fault).__name__}"
            ) from fault
        now = self._clock()
        failed = self._scheduler.abandon(plan, now)
        for name in failed:
            del self._live[name]
        report = self._report(plan, now - began)
        report.failed = failed
        return report

    def _book(
        self, live: _Live, outcome: Outcome, chosen: Sampled | None, report: StepReport, now: float
    ) -> Output | None:
        """Books one request's outcome: its text, its end, its times."""
        transcript, finish = live.transcript, outcome.finish
        if outcome.token is not None:
            assert chosen is not None
            self._note_times(live, outcome.first, report, now)
            if transcript.append(chosen, ends=finish == "stop"):
                if finish is None:
                    self._scheduler.finish(outcome.id, now)
                finish = "stop"
        if finish is not None:
            del self._live[outcome.id]
        text, tokens = transcript.take(last=finish is not None)
        if outcome.first is None and finish is None and not text and not tokens:
            return None
        return Output(
            sample=live.index,
            text=text,
            tokens=tokens,
            begun=_begun(outcome.first),
            prompt=live.scores.all() if live.scores is not None and outcome.first is not None else None,
            finish=finish,
            generated=transcript.generated,
            path=transcript.path if finish is not None else (),
            at=now,
        )

    def _note_times(self, live: _Live, first: FirstToken | None, report: StepReport, now: float) -> None:
        if first is not None:
            report.ttft_s.append(now - live.sample.request.arrived)
            report.queue_s.append(first.queue_ms / 1000)
        elif live.last_token_at:
            report.gap_s.append(now - live.last_token_at)
        live.last_token_at = now

    def _report(self, plan: Plan, seconds: float) -> StepReport:
        return StepReport(seconds=seconds, batch_tokens=sum(len(work.tokens) for work in plan.work))


def _begun(first: FirstToken | None) -> Begun | None:
    if first is None:
        return None
    return Begun(
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        queue_ms=first.queue_ms,
        prefill_ms=first.prefill_ms,
    )
