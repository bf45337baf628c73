"""Hits of a trace under plain rules: one request at a time, caches of whole blocks, routers that know every cache.

The yardstick for routers and simulators; the rules, and their reasons, are those of docs/traces.md:
a request looks up, then inserts its whole prompt; its hit is its leading cached blocks; caches are LRU over blocks, a
request touches its blocks deepest first, nothing is pinned, eviction runs after the insert. Outputs are not inserted.

Keeps true: a cache is closed under prefixes (a block is never newer than its parent). Blocks that always come together
are counted together: touched as one they stay neighbours in the LRU, so this changes no number, only the time taken.
`python -m trieway.loadgen.reference DIR` prints the tables. Knows no time but a trace's own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from trieway.loadgen.segments import Segments
from trieway.loadgen.traces import Trace

WINDOW_MS = 60_000
RANDOM_SEEDS = (1, 2, 3)
RULES = ("random", "rr", "sticky", "longest", "half", "cost")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a rule reached. `imbalance`: busiest worker's work / mean; `win60`: its mean over windows of 60 s."""

    hit_share: float
    imbalance: float
    win60: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row: stretches of blocks as (number, blocks), in order."""

    stretches: tuple[tuple[int, int], ...]
    tokens: int
    session: int
    window: int


class Cache:
    """Blocks under LRU, at most `slots` of them (None: endless)."""

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self._held: OrderedDict[int, int] = OrderedDict()
        self.blocks = 0

    def depth(self, prompt: Prompt) -> int:
        """How many leading blocks are cached. Reads only."""
        held, depth = self._held, 0
        for stretch, blocks in prompt.stretches:
            found = held.get(stretch, 0)
            depth += found
            if found < blocks:
                break
        return depth

    def insert(self, prompt: Prompt) -> None:
        """Touch all blocks, deepest first, then evict the oldest of what is too much."""
        held = self._held
        for stretch, blocks in reversed(prompt.stretches):
            self.blocks += blocks - held.get(stretch, 0)
            held[stretch] = blocks
            held.move_to_end(stretch)
        while self._slots is not None and self.blocks > self._slots:
            stretch, blocks = held.popitem(last=False)
            left = max(0, blocks - (self.blocks - self._slots))
            self.blocks -= blocks - left
            if left:  # its deepest blocks are its oldest
                held[stretch] = left
                held.move_to_end(stretch, last=False)


class Fleet:
    """Workers with a cache each, and the uncached tokens given to them so far."""

    def __init__(self, workers: int, slots: int | None, block_tokens: int) -> None:
        self.caches = [Cache(slots) for _ in range(workers)]
        self.work = [0] * workers
        self.block_tokens = block_tokens

    def depths(self, prompt: Prompt) -> list[int]:
        """Leading cached blocks on each worker."""
        return [cache.depth(prompt) for cache in self.caches]

    def hit_tokens(self, prompt: Prompt, depth: int) -> int:
        """Tokens that so many leading blocks save."""
        return min(depth * self.block_tokens, prompt.tokens)

    def least(self) -> int:
        """The worker with the least work so far, the lowest index of equals."""
        return self.work.index(min(self.work))


Rule = Callable[[Fleet, int, Prompt], int]
"""(fleet, index of the request, request) -> worker."""


def _round_robin(fleet: Fleet, index: int, prompt: Prompt) -> int:
    return index % len(fleet.caches)


def _sticky(fleet: Fleet, index: int, prompt: Prompt) -> int:
    return prompt.session % len(fleet.caches)


def _longest(fleet: Fleet, index: int, prompt: Prompt) -> int:
    depths = fleet.depths(prompt)
    return _deepest(fleet, depths)


def _half(fleet: Fleet, index: int, prompt: Prompt) -> int:
    depths = fleet.depths(prompt)
    worker = _deepest(fleet, depths)
    return worker if 2 * fleet.hit_tokens(prompt, depths[worker]) >= prompt.tokens else fleet.least()


def _cost(fleet: Fleet, index: int, prompt: Prompt) -> int:
    uncached = [prompt.tokens - fleet.hit_tokens(prompt, depth) for depth in fleet.depths(prompt)]
    costs = [work + more for work, more in zip(fleet.work, uncached, strict=True)]
    return costs.index(min(costs))


def _deepest(fleet: Fleet, depths: list[int]) -> int:
    return min(range(len(depths)), key=lambda worker: (-depths[worker], fleet.work[worker], worker))


_RULES: dict[str, Rule] = {
    "rr": _round_robin,
    "sticky": _sticky,
    "longest": _longest,
    "half": _half,
    "cost": _cost,
}


def _random(seed: int) -> Rule:
    rng = Random(seed)
    return lambda fleet, index, prompt: rng.randrange(len(fleet.caches))


class Reference:
    """A trace, ready to be counted under any rule."""

    def __init__(self, trace: Trace) -> None:
        self.name = trace.name
        self.block_tokens = trace.block_tokens
        self.span_s = round((trace.rows[-1].timestamp_ms - trace.rows[0].timestamp_ms) / 1000)
        tree = Segments()
        for row in trace.rows:
            tree.insert(row.block_ids)
        self.prompts = [
            Prompt(
                tuple([(one.number, one.length) for one in tree.read(row.block_ids)]),
                row.input_tokens,
                session,
                int(row.timestamp_ms // WINDOW_MS),
            )
            for row, session in zip(trace.rows, trace.sessions(), strict=True)
        ]
        self.prompt_tokens = sum(prompt.tokens for prompt in self.prompts)

    @property
    def sessions(self) -> tuple[int, int]:
        """How many sessions there are, and how many of them have more than one request."""
        counts: dict[int, int] = {}
        for prompt in self.prompts:
            counts[prompt.session] = counts.get(prompt.session, 0) + 1
        return len(counts), sum(count > 1 for count in counts.values())

    def one_cache(self, cache_tokens: int | None) -> float:
        """Hit share with one cache of that size (None: endless)."""
        return self._run(_round_robin, 1, cache_tokens).hit_share

    def run(self, rule: str, workers: int, cache_tokens: int | None) -> Outcome:
        """The outcome of a rule of RULES, each worker with a cache of that size; 'random' is a mean over seeds."""
        if rule != "random":
            return self._run(_RULES[rule], workers, cache_tokens)
        runs = [self._run(_random(seed), workers, cache_tokens) for seed in RANDOM_SEEDS]
        return Outcome(
            hit_share=_mean([run.hit_share for run in runs]),
            imbalance=_mean([run.imbalance for run in runs]),
            win60=_mean([run.win60 for run in runs]),
        )

    def _run(self, rule: Rule, workers: int, cache_tokens: int | None) -> Outcome:
        slots = None if cache_tokens is None else cache_tokens // self.block_tokens
        fleet = Fleet(workers, slots, self.block_tokens)
        windows: dict[int, list[int]] = {}
        hits = 0
        for index, prompt in enumerate(self.prompts):
            worker = rule(fleet, index, prompt)
            cache = fleet.caches[worker]
            hit = fleet.hit_tokens(prompt, cache.depth(prompt))
            cache.insert(prompt)
            hits += hit
            fleet.work[worker] += prompt.tokens - hit
            windows.setdefault(prompt.window, [0] * workers)[worker] += prompt.tokens - hit
        shares = [imbalance(work) for work in windows.values() if any(work)]
        return Outcome(
            hit_share=hits / self.prompt_tokens, imbalance=imbalance(fleet.work), win60=_mean(shares) if shares else 1.0
        )


def imbalance(work: Sequence[float]) -> float:
    """Busiest / mean; 1 if nothing was done."""
    total = sum(work)
    return max(work) * len(work) / total if total else 1.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


if __name__ == "__main__":
    import sys

    from trieway.loadgen.reference_tables import main

    sys.exit(main(sys.argv[1:]))
