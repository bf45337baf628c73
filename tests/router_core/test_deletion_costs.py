"""Worths of caches as pod deletion costs: true, few, bounded, and settled once nothing changes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trieway.router.core.deletion_costs import SCALE, STEP, WORTH_LEAST_TOKENS, Cache, changes, wanted

INT32_MAX = 2**31 - 1
worths = st.none() | st.floats(0, 1e9) | st.floats(0, 4096)
costs = st.none() | st.integers(-(2**31), INT32_MAX) | st.integers(0, SCALE)


@st.composite
def fleets(draw: st.DrawFn) -> list[Cache]:
    count = draw(st.integers(0, 12))
    return [
        Cache(pod=f"p{n}", model=draw(st.sampled_from("ab")), worth_tokens=draw(worths), cost=draw(costs))
        for n in range(count)
    ]


def written(caches: list[Cache], costs: dict[str, int]) -> list[Cache]:
    return [replace(cache, cost=costs.get(cache.pod, cache.cost)) for cache in caches]


def settled(caches: list[Cache], writes_max: int) -> tuple[list[Cache], int]:
    """Rounds until nothing is written; how many there were."""
    for rounds in range(len(caches) + 2):
        found = changes(caches, writes_max=writes_max)
        if not found:
            return caches, rounds
        caches = written(caches, found)
    raise AssertionError("it never settles")


def test_the_dearest_cache_of_each_model_has_the_whole_scale() -> None:
    caches = [
        Cache(pod="a", model="x", worth_tokens=20_000.0, cost=None),
        Cache(pod="b", model="x", worth_tokens=5_000.0, cost=None),
        Cache(pod="c", model="y", worth_tokens=2_000.0, cost=None),
        Cache(pod="d", model="y", worth_tokens=None, cost=None),
    ]
    assert wanted(caches) == {"a": 1000, "b": 250, "c": 1000}


def test_nearly_empty_caches_are_all_cheap() -> None:
    caches = [Cache(pod=str(n), model="x", worth_tokens=float(n), cost=None) for n in range(40)]
    assert max(wanted(caches).values()) < STEP
    assert changes(caches, writes_max=100) == {}


def test_an_absent_cost_is_zero() -> None:
    empty = Cache(pod="a", model="x", worth_tokens=0.0, cost=None)
    full = Cache(pod="b", model="x", worth_tokens=WORTH_LEAST_TOKENS, cost=None)
    assert changes([empty, full], writes_max=9) == {"b": SCALE}


@given(fleets(), st.integers(1, 5))
def test_costs_are_what_kubernetes_takes_and_writes_are_bounded(caches: list[Cache], writes_max: int) -> None:
    found = changes(caches, writes_max=writes_max)
    assert len(found) <= writes_max
    assert all(0 <= cost <= SCALE for cost in found.values())
    by_name = {cache.pod: cache for cache in caches}
    for pod, cost in found.items():
        assert abs((by_name[pod].cost or 0) - cost) >= STEP


@given(fleets(), st.integers(1, 5))
def test_worths_that_stay_are_soon_told_and_then_nothing_is_written(caches: list[Cache], writes_max: int) -> None:
    after, rounds = settled(caches, writes_max)
    wrong = len(changes(caches, writes_max=len(caches)))
    assert rounds == -(-wrong // writes_max), "no round is wasted, and no pod is written twice"
    truth = wanted(caches)
    for cache in after:
        if cache.pod in truth and (cache.cost or 0) >= 0:
            assert abs((cache.cost or 0) - truth[cache.pod]) < STEP


@given(fleets())
def test_the_cheapest_cache_goes_first(caches: list[Cache]) -> None:
    """Against the definition: of two caches of a model, the one worth clearly less has the lower cost."""
    after, _ = settled(caches, 100)
    for one in after:
        for other in after:
            if one.model != other.model or one.worth_tokens is None or other.worth_tokens is None:
                continue
            if min(one.cost or 0, other.cost or 0) < 0:
                continue
            peers = [cache.worth_tokens or 0.0 for cache in after if cache.model == one.model]
            clearly = (2 * STEP + 1) / SCALE * max(WORTH_LEAST_TOKENS, *peers)
            if one.worth_tokens + clearly < other.worth_tokens:
                assert (one.cost or 0) < (other.cost or 0)


@given(fleets())
def test_what_somebody_put_below_zero_and_what_is_unknown_stays(caches: list[Cache]) -> None:
    after, _ = settled(caches, 100)
    for before, now in zip(caches, after, strict=True):
        if before.worth_tokens is None or (before.cost or 0) < 0:
            assert now.cost == before.cost


@given(fleets(), st.floats(0.01, 100))
def test_caches_that_grow_or_cool_alike_cause_no_writes(caches: list[Cache], factor: float) -> None:
    # Far above the least worth, so that only shares matter.
    big = [
        replace(cache, worth_tokens=None if cache.worth_tokens is None else 2e5 + cache.worth_tokens)
        for cache in caches
    ]
    after, _ = settled(big, 100)
    cooled = [
        replace(cache, worth_tokens=None if cache.worth_tokens is None else cache.worth_tokens * factor)
        for cache in after
    ]
    costs, truth = {cache.pod: cache.cost or 0 for cache in after}, wanted(after)
    for pod in changes(cooled, writes_max=100):
        assert abs(costs[pod] - truth[pod]) == STEP - 1, "but where rounding falls on the last number before a step"
