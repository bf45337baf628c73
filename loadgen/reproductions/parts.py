"""The five experiments: hit rates, ablations, the curve over hit rates, scaling, overhead. Each gives rows one by one.

Keeps true: a combination of benchmark and variant is played once, however many experiments ask for it. Does not know
how rows are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from trieway.loadgen.reproductions import published
from trieway.loadgen.reproductions.benchmarks import BENCHMARKS, Benchmark, benchmark
from trieway.loadgen.reproductions.overhead import Overhead, measure_overhead
from trieway.loadgen.reproductions.playing import Figures, measure
from trieway.loadgen.reproductions.results import AblationRow, CurveRow, HitRateRow, OverheadRow, ScalingRow, Times
from trieway.loadgen.reproductions.variants import LATE, MACHINE, SHIPPED, VARIANTS, Variant
from trieway.loadgen.sim.ablations import AblatedWorker
from trieway.loadgen.sim.cost import roofline
from trieway.loadgen.simulations.playing import Stop
from trieway.loadgen.vocabulary import Setting

ABLATED = ("Tree of thought", "MMLU", "HellaSwag", "Multi-turn chat (short)")
CURVE_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CURVE_SHARES_QUICK = (0.0, 0.5, 1.0)
CURVE_QUESTIONS = 32
"""As many trees as give about the tokens that figures 8(a) and 8(b) multiply to."""
SCALING_SETTINGS: Mapping[str, Setting] = {"subjects": 57, "questions": 14_042}
"""MMLU's."""
SCALING_QUICK: Mapping[str, Setting] = {"subjects": 4, "questions": 400}
SCALED = (
    ("by subject", 1, "cache_aware"),
    ("by subject", 2, "cache_aware"),
    ("by subject", 4, "cache_aware"),
    ("by subject", 4, "round_robin"),
    ("shuffled", 1, "cache_aware"),
    ("shuffled", 4, "cache_aware"),
    ("shuffled", 4, "round_robin"),
)
OVERHEAD_MACHINES = ("A10G, Llama-7B", "H100, Llama-3.1-8B")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What all parts need to know. `say`: takes a line of progress."""

    seed: int
    quick: bool
    stop: Stop
    say: Callable[[str], None]
    _known: dict[tuple[str, str], Figures] = field(default_factory=dict)

    def figures(self, what: Benchmark, variant: str) -> Figures:
        """Played now, or known."""
        key = (what.name, variant)
        found = self._known.get(key)
        if found is None:
            self.say(f"{what.name}: {variant}")
            found = self._known[key] = measure(what, VARIANTS[variant], self.seed, self.stop, quick=self.quick)
        return found


def hit_rates(asked: Asked) -> Iterator[HitRateRow]:
    """Every benchmark: with everything on, as shipped, with nothing kept."""
    for what in BENCHMARKS:
        full, shipped, none = (asked.figures(what, name) for name in ("full", "shipped", "no-cache"))
        known = published.HIT_RATES.get(what.name)
        yield HitRateRow(
            benchmark=what.name,
            workload=what.recipe,
            settings={**what.settings, **(what.quick if asked.quick else {})},
            programs=full.programs,
            calls=full.calls,
            hit_rate=full.hit_rate,
            optimum=full.optimum,
            share=full.share,
            shipped_hit_rate=shipped.hit_rate,
            programs_per_s=full.programs_per_s,
            over_no_cache=full.programs_per_s / none.programs_per_s,
            published_hit_rate=None if known is None else known.achieved,
            published_optimum=None if known is None else known.optimal,
            published_error=None if known is None else known.error,
        )


def ablations(asked: Asked) -> Iterator[AblationRow]:
    """Each variant against everything on. What a benchmark does not have (hints, parallelism) changes nothing there
    and is left out."""
    for name in ABLATED:
        what = benchmark(name)
        full = asked.figures(what, "full")
        for variant in VARIANTS.values():
            if variant.name != "full" and _applies(what, variant):
                found = asked.figures(what, variant.name)
                known = published.ABLATIONS.get(name, {}).get(variant.name)
                yield AblationRow(
                    benchmark=name,
                    variant=variant.name,
                    about=variant.about,
                    throughput=found.programs_per_s / full.programs_per_s,
                    hit_rate=found.hit_rate,
                    published=None if known is None else known.value,
                    published_error=None if known is None else known.error,
                )


def _applies(what: Benchmark, variant: Variant) -> bool:
    workload = what.workload(0, quick=True)
    return variant.workload is VARIANTS["full"].workload or variant.workload(workload) != workload


def curve(asked: Asked) -> Iterator[CurveRow]:
    """Trees of thought on the published runtime, of which a share of every prompt at most comes from the cache."""
    trees = benchmark("Tree of thought")
    questions = trees.quick["questions"] if asked.quick else CURVE_QUESTIONS
    what = replace(trees, settings={**trees.settings, "questions": questions})
    for share in CURVE_SHARES_QUICK if asked.quick else CURVE_SHARES:
        asked.say(f"{what.name}: hits of {share:.0%} of a prompt at most")
        variant = replace(VARIANTS["late"], worker=replace(LATE, reuse_share=share))
        found = measure(what, variant, asked.seed, asked.stop)
        yield CurveRow(
            reuse_share=share,
            hit_rate=found.hit_rate,
            batch=found.batch,
            output_tokens_per_s=found.output_tokens_per_s,
            run_s=found.run_s,
            ttft_s=found.ttft_s,
        )


def scaling(asked: Asked) -> Iterator[ScalingRow]:
    """MMLU on more and more workers behind a router: subject by subject, when all ask for one subject's examples at a
    time, and in an order of chance, when they are more than a worker can keep. Round robin for comparison."""
    mmlu = benchmark("MMLU")
    settings = {**mmlu.settings, **(SCALING_QUICK if asked.quick else SCALING_SETTINGS)}
    orders = {
        "by subject": replace(mmlu, settings=settings),
        "shuffled": replace(mmlu, settings={**settings, "hints": False}, by_group=False),
    }
    alone: dict[str, float] = {}
    for order, workers, policy in SCALED:
        asked.say(f"MMLU {order}: {workers} workers, {policy}")
        found = measure(orders[order], VARIANTS["full"], asked.seed, asked.stop, workers=workers, policy=policy)
        one = alone.setdefault(order, found.programs_per_s)
        yield ScalingRow(
            order=order,
            workers=workers,
            policy=policy,
            programs_per_s=found.programs_per_s,
            speedup=found.programs_per_s / one,
            hit_rate=found.hit_rate,
            optimum=found.optimum,
            share=found.share,
            busiest=found.busiest,
        )


def overhead(asked: Asked) -> Iterator[tuple[OverheadRow, Times]]:
    """A worker as it is shipped, on the paper's machine and on one that is ten times as fast."""
    fast = roofline("h100", "llama-3.1-8b")
    setups = (SHIPPED, AblatedWorker(kv_tokens=fast.kv_tokens, waiting_max=SHIPPED.waiting_max, cost=fast))
    requests = 20 if asked.quick else published.OVERHEAD_REQUESTS
    for machine, setup in zip(OVERHEAD_MACHINES, setups, strict=True):
        asked.say(f"overhead: {requests} requests that share nothing, {machine}")
        found = measure_overhead(setup, requests, asked.seed)
        yield _overhead_row(machine, found), _times(machine, found, same=setup.cost is MACHINE and not asked.quick)


def _overhead_row(machine: str, found: Overhead) -> OverheadRow:
    return OverheadRow(
        machine=machine,
        requests=found.requests,
        steps=found.steps,
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
        cached_tokens=found.cached_tokens,
        evicted_tokens=found.evicted_tokens,
        operations=found.operations,
        run_s=found.run_s,
    )


def _times(machine: str, found: Overhead, *, same: bool) -> Times:
    return Times(
        machine=machine,
        managing_cpu_s=found.managing_cpu_s,
        core_cpu_s=found.core_cpu_s,
        share_of_run=found.share,
        core_share_of_run=found.core_share,
        share_of_published_run=found.managing_cpu_s / published.OVERHEAD_RUN_S.value if same else None,
    )
