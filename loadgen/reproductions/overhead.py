"""What the cache costs where it gives nothing: processor time of the production core on prompts that share nothing.

The worker core runs as in a worker, step by step, with a cost model in the engine's place: the engine's seconds are
simulated, those of the core are this machine's. Counted as managing is all that is done because there is a cache:
matches, locks, recency, storing with its text blocks, eviction, announcements. Keeps true: what is served depends on
the seed alone; times are the least of several passes, for anything else that runs can only add to them. Does not know
what the paper measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trieway.loadgen.sim.config import WorkerSetup
from trieway.loadgen.sim.jumps import plan_cost
from trieway.loadgen.sim.texts import tokenizer
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.ids import Namespace
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import Request

PROMPT_TOKENS_MEAN = 161
OUTPUT_TOKENS_MEAN = 338
"""Of ShareGPT, by the paper of vLLM (arXiv 2309.06180, figure 11)."""
TOKENS_MAX = 1024
TOKENS_MIN = 4
PASSES = 3
_OF_CACHE = ("match", "pages_of", "lock", "relock", "unlock", "touch", "store", "evict")
_OF_KV = ("hit", "match", "store", "release")


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """Of one run. `run_s` is simulated; the `_cpu_s` are this machine's and differ from run to run."""

    requests: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    evicted_tokens: int
    operations: int
    """Calls that manage the cache."""
    run_s: float
    managing_cpu_s: float
    core_cpu_s: float
    """All of the scheduler: admission, pages, plans, commits, and the above."""

    @property
    def share(self) -> float:
        """Of managing, in the run."""
        return self.managing_cpu_s / self.run_s

    @property
    def core_share(self) -> float:
        """Of the whole scheduler, in the run."""
        return self.core_cpu_s / self.run_s


def measure_overhead(setup: WorkerSetup, requests: int, seed: int, *, passes: int = PASSES) -> Overhead:
    """All requests are there from the start."""
    asked = _requests(requests, seed)
    watched = [_serve(setup, asked, _Watch()) for _ in range(passes)]
    alone = [_serve(setup, asked, None) for _ in range(passes)]
    first, stats = watched[0], watched[0].scheduler.stats()
    assert stats.finished_total == requests, "some request did not end"
    return Overhead(
        requests=requests,
        steps=first.steps,
        prompt_tokens=stats.prompt_tokens_total,
        output_tokens=stats.generated_tokens_total,
        cached_tokens=stats.cached_tokens_total,
        evicted_tokens=stats.evicted_tokens_total,
        operations=first.operations,
        run_s=first.run_s,
        managing_cpu_s=min(one.managing_s for one in watched),
        core_cpu_s=min(one.core_s for one in alone),
    )


def _requests(count: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    chain = FleetKey.from_secret(b"reproduction").chain(Namespace())
    vocabulary = len(tokenizer().table)
    found = []
    for number in range(count):
        prompt = [rng.randrange(vocabulary) for _ in range(_length(rng, PROMPT_TOKENS_MEAN))]
        output = _length(rng, OUTPUT_TOKENS_MEAN)
        found.append(Request(id=f"q{number}", chain=chain, tokens=prompt, canonical=len(prompt), max_new_tokens=output))
    return found


def _length(rng: random.Random, mean: int) -> int:
    return min(max(TOKENS_MIN, round(rng.expovariate(1.0 / mean))), TOKENS_MAX)


@dataclass(slots=True)
class _Served:
    scheduler: Scheduler
    steps: int
    run_s: float
    core_s: float
    operations: int
    managing_s: float


def _serve(setup: WorkerSetup, requests: Sequence[Request], watch: _Watch | None) -> _Served:
    """To the end. `watch`: times what manages the cache, which makes the rest a little slower."""
    scheduler = setup.build(tokenizer().table, random.Random(0))
    if watch is not None:
        watch.follow(scheduler)
    now, core_s, steps = 0.0, 0.0, 0
    began = time.thread_time()
    for request in requests:
        refused = scheduler.add(request, now)
        assert refused is None, f"{request.id}: {refused}"
    core_s += time.thread_time() - began
    while scheduler.has_work():
        began = time.thread_time()
        plan = scheduler.plan(now)
        scheduler.drain_events()
        core_s += time.thread_time() - began
        now += plan_cost(plan, setup.cost)
        sampled = {work.id: steps % 256 for work in plan.work if work.samples}
        began = time.thread_time()
        scheduler.commit(plan, sampled, now)
        scheduler.drain_events()
        core_s += time.thread_time() - began
        steps += 1
    operations, managing_s = (0, 0.0) if watch is None else (watch.operations, watch.spent_s)
    return _Served(scheduler, steps, now, core_s, operations, managing_s)


class _Watch:
    """Sums the time of the calls that manage a cache, each once, however they call each other."""

    def __init__(self) -> None:
        self.operations = 0
        self.spent_s = 0.0
        self._inside = False

    def follow(self, scheduler: Scheduler) -> None:
        """From now on this scheduler's."""
        for owner, names in ((scheduler.kv.cache, _OF_CACHE), (scheduler.kv, _OF_KV), (scheduler, ("drain_events",))):
            for name in names:
                setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return call(*arguments, **named)
            self._inside = True
            self.operations += 1
            began = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.spent_s += time.thread_time() - began
                self._inside = False

        return timed
