"""One worker's parts, wired together: what the HTTP routes call.

Keeps true: after `drain` no new request is taken and running ones go on; a prefix hint is computed without an answer;
the latest state of the engine is at hand without asking its thread. Lives on the event loop's thread. Does not know
HTTP.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trieway.meta_tree.events import CacheEvent
from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.publisher import Publisher
from trieway.serving.errors import Unavailable
from trieway.serving.handshake import ModelCard
from trieway.worker.core.memory import GeneratedMemory
from trieway.worker.core.sequence import Request
from trieway.worker.engine import Engine
from trieway.worker.feed import HEARTBEAT_S, Feed
from trieway.worker.generation import Generation
from trieway.worker.intake import Intake
from trieway.worker.jobs import Job
from trieway.worker.metrics import Metrics
from trieway.worker.prompts import Prompt, Prompts
from trieway.worker.sampling import SamplingParams
from trieway.worker.stepper import Sample, State, StepReport
from trieway.worker.streaming import Responder


@dataclass(frozen=True, kw_only=True, slots=True)
class Hinted:
    """What a prefix hint found and left."""

    prompt_tokens: int
    cached_tokens: int


class Service:
    """Built once by assembly.py; `start` it on the running loop."""

    def __init__(
        self,
        *,
        card: ModelCard,
        engine: Engine,
        state: State,
        publisher: Publisher,
        prompts: Prompts,
        intake: Intake,
        memory: GeneratedMemory | None,
        eos_ids: frozenset[int],
        clock: Callable[[], float],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.card = card
        self.engine = engine
        self.intake = intake
        self.memory = memory
        self.state = state
        self.draining = False
        self.fatal: asyncio.Event = asyncio.Event()
        self.fatal_reason = ""
        self.feed = Feed(publisher, self.load, heartbeat_s=heartbeat_s)
        self.metrics = Metrics(lambda: self.state.stats, lambda: self.feed.subscribers)
        self.responder = Responder(self.feed, prompts, lambda: self.state.stats.waiting)
        self._eos_ids = eos_ids
        self._clock = clock
        self._idle = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return self.engine.alive and not self.draining

    def start(self) -> None:
        """Begins to step and to beat."""
        self.engine.start(self)
        self.feed.start()

    def turn_away(self) -> None:
        """Takes nothing new from now on, and tells the routers so. What runs goes on."""
        self.draining = True
        self.feed.beat()

    async def drain(self, timeout_s: float) -> None:
        """Takes nothing new, tells the routers so, and waits for running requests at most `timeout_s`."""
        self.turn_away()
        deadline = self._clock() + timeout_s
        while self.engine.alive and self.engine.open_samples and self._clock() < deadline:
            self._idle.clear()
            try:
                async with asyncio.timeout(deadline - self._clock()):
                    await self._idle.wait()
            except TimeoutError:
                break

    async def stop(self) -> None:
        """Ends the feeds and the engine; generations that still run fail."""
        self.draining = True
        self.feed.close()
        await self.engine.stop()

    def load(self) -> WorkerLoad:
        """The engine's load as of its last step, with the shell's own word on draining."""
        return replace(self.state.load, draining=True) if self.draining else self.state.load

    def begin(self, job: Job) -> Generation:
        """Hands a job to the engine.

        Raises:
            Busy, Unavailable: it cannot be queued.
        """
        self._refuse_if_draining()
        arrived = self._clock()
        return self.engine.submit(
            [self._sample(job, index, arrived) for index in range(len(job.prompts) * job.sampling.n)]
        )

    async def hint(self, prompts: Sequence[Prompt], priority: int) -> list[Hinted]:
        """Makes these prompts resident; ends with them cached (as far as there is room).

        Raises:
            ApiError: the engine refused or failed.
        """
        self._refuse_if_draining()
        name, arrived = "hint-" + uuid.uuid4().hex, self._clock()
        samples = [
            Sample(
                request=self._request(f"{name}-{index}", prompt, max_new_tokens=0, priority=priority, arrived=arrived)
            )
            for index, prompt in enumerate(prompts)
        ]
        generation = self.engine.submit(samples)
        found = [Hinted(prompt_tokens=len(prompt.tokens), cached_tokens=0) for prompt in prompts]
        try:
            async for outputs in generation.batches():
                for output in outputs:
                    if output.begun is not None:
                        found[output.sample] = Hinted(
                            prompt_tokens=output.begun.prompt_tokens, cached_tokens=output.begun.cached_tokens
                        )
        finally:
            generation.cancel()
        await self.feed.settle()
        return found

    def on_step(self, events: Sequence[CacheEvent], state: State, report: StepReport | None) -> None:
        """The engine's word, before its outputs are handed out."""
        self.state = state
        self.feed.publish(events)
        if report is not None:
            self.metrics.observe(report)
        if not state.stats.running + state.stats.waiting:
            self._idle.set()

    def on_fatal(self, reason: str) -> None:
        """The engine has ended."""
        self.fatal_reason = reason
        self.fatal.set()
        self._idle.set()

    def _refuse_if_draining(self) -> None:
        if self.draining:
            raise Unavailable("this worker is stopping; try another", code="draining", retry_after_s=1.0)

    def _sample(self, job: Job, index: int, arrived: float) -> Sample:
        sampling, prompt = job.sampling, job.prompt_of(index)
        scored = job.prompt_logprobs is not None
        return Sample(
            request=self._request(
                f"{job.id}-{index}",
                prompt,
                max_new_tokens=job.max_tokens[index // sampling.n],
                priority=job.priority,
                arrived=arrived,
                reuse_max=0 if scored else None,
                stop_token_ids=frozenset() if sampling.ignore_eos else self._eos_ids,
            ),
            sampling=SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                # Samples of one prompt differ, and each can be had again.
                seed=None if sampling.seed is None else sampling.seed + index % sampling.n,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                repetition_penalty=sampling.repetition_penalty,
                logprobs=sampling.logprobs,
            ),
            stop=sampling.stop,
            prompt_logprobs=job.prompt_logprobs,
            text_start=len(prompt.shown) if job.echo else 0,
            hidden_chars=len(prompt.text.decode(errors="replace")) - len(prompt.shown) if scored else 0,
        )

    def _request(
        self,
        name: str,
        prompt: Prompt,
        *,
        max_new_tokens: int,
        priority: int,
        arrived: float,
        reuse_max: int | None = None,
        stop_token_ids: frozenset[int] = frozenset(),
    ) -> Request:
        return Request(
            id=name,
            chain=prompt.chain,
            tokens=prompt.tokens,
            canonical=prompt.canonical,
            max_new_tokens=max_new_tokens,
            priority=priority,
            reuse_max=reuse_max,
            stop_token_ids=stop_token_ids,
            arrived=arrived,
        )
