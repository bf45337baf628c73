"""Routing policies behind one interface: cost rows in, a chance per row out.

Keeps true: chances are at least 0 and sum to 1, and nothing is remembered (round robin reads each worker's latest
booking), so a decision that is not booked leaves no trace. Does not know prompts, feeds or health: every row given may
be picked. Those that know neither costs nor caches are in keyed.py.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import erfc, sqrt
from typing import Protocol

from trieway.router.core.config import CoreConfig
from trieway.router.core.keyed import ConsistentHash, PowerOfTwo, Session
from trieway.router.core.values import CostRow, Query, Rng

EMPTIER_MAX = 1.25
"""An emptier cache draws at most this many times its share: a returned worker gets its part of the new, not all."""
INFLOW_MAX = 1.25
"""The same for less new work lately. Both are mild, so that a long past never decides where everything new goes."""
LIKENESS = 0.15
"""Share by which the measured speed of one worker is doubted when it is compared with a peer on equal work."""
RESTED_MAX = 12.0
"""Of equals the one used longest ago draws this many times as much as the one used last: chance alone would run in
streaks, and one worker could get under a third of forty."""


class Policy(Protocol):
    """One way to choose."""

    name: str
    weighs_all: bool
    """Whether every worker must be among the rows; else those that could win by prefix, load or rest are enough."""

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        """The chance of each row (at least one is given); they sum to 1."""
        ...


class CacheAware:
    """Least predicted cost; costs within the estimates' error are a tie, sampled by the chance of being best."""

    name = "cache_aware"
    weighs_all = False

    def __init__(self, config: CoreConfig) -> None:
        self._chance_min = config.tie_chance_min
        self._softness = config.inflow_softness_tokens

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        best = min(rows, key=_cost)
        weights = [self._chance_against(row, best) for row in rows]
        tied = [row for row, weight in zip(rows, weights, strict=True) if weight]
        if len(tied) > 1:
            held = sum(row.held_tokens for row in tied) / len(tied)
            inflow = sum(row.inflow_tokens for row in tied) / len(tied)
            bookings = sorted(row.last_booked for row in tied)
            alike = len({row.cached_tokens for row in tied}) == 1
            for index, row in enumerate(rows):
                if weights[index]:
                    weights[index] *= _pull(held, row.held_tokens, self._softness, EMPTIER_MAX)
                    weights[index] *= _pull(inflow, row.inflow_tokens, self._softness, INFLOW_MAX)
                    if not alike:
                        continue
                    later = len(tied) - bisect_right(bookings, row.last_booked)
                    weights[index] *= RESTED_MAX ** (later / (len(tied) - 1))
        return _normalised(weights)

    def _chance_against(self, row: CostRow, best: CostRow) -> float:
        """Chance that `row` is in truth no dearer than the one that looks cheapest; 0 if too small to be a tie."""
        if row is best:
            return 0.5  # of a distance of nothing, whatever the errors
        # Where nobody holds anything a wrong guess costs only the difference, and a worker that is never asked is never
        # measured again; elsewhere a wrong guess is work done twice.
        alike = not row.cached_tokens and not best.cached_tokens
        doubt = LIKENESS * (row.prefill_ms**2 + best.prefill_ms**2) ** 0.5 if alike else 0.0
        distance = row.cost_ms - best.cost_ms
        chance = 0.5 * erfc(distance / sqrt(2.0 * (row.error_ms**2 + best.error_ms**2 + doubt**2)))
        return chance if chance >= (0.1 * self._chance_min if alike else self._chance_min) else 0.0


class LongestPrefix:
    """Most reusable tokens; equals go to the one with the fewest open requests, then the one used longest ago."""

    name = "longest_prefix"
    weighs_all = False

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        return _only(rows, lambda row: (-row.cached_tokens, row.booked, row.last_booked))


class LeastLoaded:
    """Fewest open requests; equals go to the one used longest ago."""

    name = "least_loaded"
    weighs_all = False

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        return _only(rows, lambda row: (row.booked, row.last_booked))


class RoundRobin:
    """The one used longest ago, which visits all in turn whoever joins or leaves."""

    name = "round_robin"
    weighs_all = False

    def chances(self, rows: Sequence[CostRow], query: Query) -> list[float]:
        return _only(rows, lambda row: (row.last_booked,))


_MAKERS: Mapping[str, Callable[[CoreConfig], Policy]] = {
    "cache_aware": CacheAware,
    "longest_prefix": lambda config: LongestPrefix(),
    "least_loaded": lambda config: LeastLoaded(),
    "round_robin": lambda config: RoundRobin(),
    "power_of_two": lambda config: PowerOfTwo(),
    "consistent_hash": lambda config: ConsistentHash(),
    "session": lambda config: Session(),
}
POLICIES = tuple(_MAKERS)


def make_policy(config: CoreConfig) -> Policy:
    """The configured policy. ValueError: no policy of that name."""
    maker = _MAKERS.get(config.policy)
    if maker is None:
        raise ValueError(f"no policy named {config.policy!r}; choose one of {', '.join(POLICIES)}")
    return maker(config)


def draw(chances: Sequence[float], rng: Rng) -> int:
    """Index of a row drawn by its chance; the rng is asked only if there is more than one to draw from."""
    likely = [index for index, chance in enumerate(chances) if chance > 0.0]
    if len(likely) == 1:
        return likely[0]
    point = rng.random()
    for index in likely:
        point -= chances[index]
        if point < 0.0:
            return index
    return likely[-1]


def most_likely(chances: Sequence[float]) -> int:
    """Index of the greatest chance, the first of equals."""
    return max(range(len(chances)), key=lambda index: (chances[index], -index))


def _cost(row: CostRow) -> float:
    return row.cost_ms


def _pull(mean: float, value: float, softness: float, most: float) -> float:
    return min(max((mean + softness) / (value + softness), 1.0 / most), most)


def _normalised(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


def _only(rows: Sequence[CostRow], key: Callable[[CostRow], tuple[int, ...]]) -> list[float]:
    first = min(range(len(rows)), key=lambda index: (*key(rows[index]), index))
    return [1.0 if index == first else 0.0 for index in range(len(rows))]
