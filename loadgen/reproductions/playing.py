"""One benchmark on one variant of the worker, played in simulation, and the figures that the paper gives of such a run.

Keeps true: hints fill caches and take time but count as no prompt; no run reuses more than the optimum; a run is whole
or raises Interrupted. Does not know which figures are compared with what.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from trieway.loadgen.arrivals import ClosedLoop, schedule
from trieway.loadgen.errors import RunFailed
from trieway.loadgen.oracle import Use, reuse_bound
from trieway.loadgen.prompts import prompt_bytes
from trieway.loadgen.records import Record
from trieway.loadgen.reproductions.benchmarks import Benchmark, is_hint
from trieway.loadgen.reproductions.variants import Variant
from trieway.loadgen.sim.clients import answer_text
from trieway.loadgen.sim.config import FleetSetup, RouterSetup
from trieway.loadgen.sim.texts import tokenizer
from trieway.loadgen.simulations.playing import Stop, simulate
from trieway.loadgen.vocabulary import Workload

PATIENCE_S = 1e6
"""A batch is served to its end: nobody gives up, though the longest hits always go first."""


class Interrupted(Exception):
    """The user wants no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Of one run, or of several added up. Times are simulated seconds."""

    programs: int
    calls: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    optimal_tokens: int
    """See `optimal_tokens`."""
    run_s: float
    ttft_sum_s: float
    decoding_s: float
    """Over all calls, from the first token to the last."""
    busiest: float
    """Requests of the busiest worker over the mean."""
    cpu_s: float
    """Of the simulator. Not for reports: it differs from run to run."""

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def optimum(self) -> float:
        return self.optimal_tokens / self.prompt_tokens

    @property
    def share(self) -> float:
        """Of the optimum."""
        return self.hit_rate / self.optimum if self.optimum else 1.0

    @property
    def programs_per_s(self) -> float:
        return self.programs / self.run_s

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.run_s

    @property
    def batch(self) -> float:
        """Requests that were decoding, in the mean over time."""
        return self.decoding_s / self.run_s

    @property
    def ttft_s(self) -> float:
        """Mean, from the moment a call could be sent."""
        return self.ttft_sum_s / self.calls


def measure(
    what: Benchmark,
    variant: Variant,
    seed: int,
    stop: Stop,
    *,
    quick: bool = False,
    workers: int = 1,
    policy: str = "cache_aware",
) -> Figures:
    """All repeats of a benchmark. `workers`: each with as many programs at a time as one would have."""
    found = [
        _once(what, variant, seed + repeat, stop, quick=quick, workers=workers, policy=policy)
        for repeat in range(1 if quick else what.repeats)
    ]
    return added_up(found)


def _once(
    what: Benchmark, variant: Variant, seed: int, stop: Stop, *, quick: bool, workers: int, policy: str
) -> Figures:
    users = what.users * workers
    workload = variant.workload(schedule(what.workload(seed, quick=quick), ClosedLoop(users=users), seed=seed))
    router = RouterSetup(policy=policy, first_byte_timeout_s=PATIENCE_S)
    setup = FleetSetup(seed=seed, workers=(variant.worker,) * workers, router=router)
    played = simulate(setup, workload, stop=stop, users_max=users)
    if stop.asked:
        raise Interrupted
    failed = [record for record in played.records if not record.ok]
    if failed:
        raise RunFailed(f"{what.name}, {variant.name}: {len(failed)} calls failed, the first with {failed[0].status}")
    return figures_of(workload, played.records, seed, cpu_s=played.cpu_s)


def optimal_tokens(workload: Workload, seed: int) -> int:
    """How many prompt tokens need not be computed if each distinct prefix is computed once, which a cache without end
    reaches in any order and, by the paper's theorem 3.1, a small one in the order of the tree. Exact: of the tokens
    that the simulated fleet sees."""
    encode = tokenizer().encode
    answers = {call.id: answer_text(seed, call.id, call.output_tokens) for call in workload.calls}
    uses = [_use(encode(prompt_bytes(hint, answers)), counted=False) for hint in workload.hint_prefixes]
    for call in workload.calls:
        prompt = encode(prompt_bytes(call, answers))
        uses.append(_use(prompt, encode(answers[call.id].encode()), counted=not is_hint(call.id)))
    return round(reuse_bound(uses, None).endless_tokens)


def _use(prompt: list[int], answer: Sequence[int] = (), *, counted: bool) -> Use:
    """Without times, for only what is shared counts. A prompt's last token is computed anyway."""
    tokens = len(prompt) if counted else 0
    units = array("i", [*prompt, *answer])
    return Use(units=units, prompt_units=tokens, start=0.0, end=0.0, reusable_units=max(tokens - 1, 0))


def figures_of(workload: Workload, records: Sequence[Record], seed: int, *, cpu_s: float = 0.0) -> Figures:
    """The sums over the calls that are no hints; all of them ended well."""
    counted = [record for record in records if not is_hint(record.call)]
    by_worker: dict[str | None, int] = {}
    for record in counted:
        by_worker[record.worker] = by_worker.get(record.worker, 0) + 1
    return Figures(
        programs=len({record.session for record in counted}),
        calls=len(counted),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in counted),
        cached_tokens=sum(record.cached_tokens or 0 for record in counted),
        output_tokens=sum(record.output_tokens for record in counted),
        optimal_tokens=optimal_tokens(workload, seed),
        run_s=max(record.last_s or 0.0 for record in records),
        ttft_sum_s=sum(record.ttft_s or 0.0 for record in counted),
        decoding_s=sum((record.last_s or 0.0) - (record.first_s or 0.0) for record in counted),
        busiest=max(by_worker.values()) * len(by_worker) / len(counted),
        cpu_s=cpu_s,
    )


def added_up(parts: Sequence[Figures]) -> Figures:
    """One run after the other."""
    assert parts, "nothing was played"
    first = parts[0]
    if len(parts) == 1:
        return first
    sums = {
        name: sum(getattr(part, name) for part in parts) for name in Figures.__dataclass_fields__ if name != "busiest"
    }
    return Figures(**sums, busiest=max(part.busiest for part in parts))
