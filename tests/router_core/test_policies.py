"""Policies: chances that sum to one, and each policy's own order."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.meta_tree.ids import WorkerId
from trieway.router.core.config import CoreConfig
from trieway.router.core.policies import POLICIES, draw, make_policy, most_likely
from trieway.router.core.values import CostRow, Query


def row(name: str, **more: Any) -> CostRow:
    given: dict[str, Any] = {
        "worker": WorkerId(name), "usable": (0, 0, 0), "speculative_tokens": 0, "cached_tokens": 0,
        "uncached_tokens": 100, "queue_ms": 0.0, "prefill_ms": 100.0, "reload_ms": 0.0, "interference_ms": 0.0,
        "decode_ms": 0.0, "spread_ms": 0.0, "work_ms": 0.0, "copied_ms": 0.0, "displaced_ms": 0.0,
        "ttft_ms": 100.0, "cost_ms": 100.0,
        "error_ms": 5.0, "booked": 0, "last_booked": 0, "held_tokens": 0, "inflow_tokens": 0.0,
    }  # fmt: skip
    return CostRow(**(given | more))


def chances(policy: str, *rows: CostRow) -> list[float]:
    return make_policy(CoreConfig(seed_id="0" * 16, policy=policy)).chances(rows, Query(model="m"))


def test_all_policies_of_the_contract_are_there() -> None:
    assert set(POLICIES) >= {
        "cache_aware", "round_robin", "least_loaded", "longest_prefix", "power_of_two", "consistent_hash", "session"
    }  # fmt: skip
    with pytest.raises(ValueError, match="cache_aware"):
        make_policy(CoreConfig(seed_id="0" * 16, policy="fastest"))


def test_a_clear_difference_is_no_tie() -> None:
    assert chances("cache_aware", row("a", cost_ms=100.0), row("b", cost_ms=200.0)) == [1.0, 0.0]


def test_two_percent_are_a_tie() -> None:
    fast, slow = chances("cache_aware", row("a", cost_ms=98.0), row("b", cost_ms=100.0))
    assert 0.5 < fast < 0.7
    assert fast + slow == pytest.approx(1.0)


def test_ties_go_to_the_emptier_cache_within_bounds() -> None:
    empty, _ = chances("cache_aware", row("a"), row("b", held_tokens=100_000))
    assert 0.55 < empty < 0.62
    calm, flooded = chances("cache_aware", row("a"), row("b", inflow_tokens=100_000.0))
    assert 0.55 < calm < 0.62, "a long past never decides where everything new goes"
    assert flooded > 0.0


def test_of_equals_the_rested_one_is_likelier() -> None:
    used, rested = chances("cache_aware", row("a", last_booked=9), row("b", last_booked=8))
    assert rested == pytest.approx(12 / 13)
    assert used == pytest.approx(1 / 13)
    assert chances("cache_aware", row("a"), row("b")) == [0.5, 0.5]


def test_longest_prefix_ignores_load() -> None:
    held = row("b", cached_tokens=50, booked=90, cost_ms=1e6)
    assert chances("longest_prefix", row("a"), held) == [0.0, 1.0]
    assert chances("longest_prefix", row("a", booked=2), row("b", booked=1)) == [0.0, 1.0]


def test_least_loaded_ignores_prefixes() -> None:
    assert chances("least_loaded", row("a", cached_tokens=50, booked=1), row("b")) == [0.0, 1.0]
    assert chances("least_loaded", row("a", last_booked=4), row("b", last_booked=3)) == [0.0, 1.0]


def test_round_robin_visits_all_in_turn() -> None:
    last = {"a": 0, "b": 0, "c": 0}
    order = []
    for number in range(1, 10):
        rows = [row(name, last_booked=last[name], booked=number) for name in last]
        index = most_likely(chances("round_robin", *rows))
        order.append(rows[index].worker)
        last[rows[index].worker] = number
    assert order == ["a", "b", "c"] * 3


def test_draw_asks_the_rng_only_for_ties() -> None:
    class Unasked:
        def random(self) -> float:
            raise AssertionError("nothing to draw")

    assert draw([0.0, 1.0, 0.0], Unasked()) == 1
    rng = random.Random(1)
    seen = Counter(draw([0.2, 0.0, 0.8], rng) for _ in range(2000))
    assert seen[1] == 0
    assert seen[0] == pytest.approx(400, abs=80)


def test_draw_survives_rounding() -> None:
    class Last:
        def random(self) -> float:
            return 0.9999999999999999

    assert draw([1 / 3, 1 / 3, 1 / 3 - 1e-12, 0.0], Last()) == 2


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e7), st.floats(0.001, 1e6), st.integers(0, 10**7), st.floats(0, 1e9), st.integers(0, 100)
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(POLICIES),
)
def test_chances_sum_to_one(given_rows: list[tuple[float, float, int, float, int]], policy: str) -> None:
    rows = [
        row(f"w{at}", cost_ms=cost, error_ms=error, held_tokens=held, inflow_tokens=inflow, booked=booked)
        for at, (cost, error, held, inflow, booked) in enumerate(given_rows)
    ]
    got = chances(policy, *rows)
    assert len(got) == len(rows)
    assert min(got) >= 0.0
    assert sum(got) == pytest.approx(1.0)
    if policy == "cache_aware":
        cheapest = min(rows, key=lambda made: made.cost_ms)
        assert got[rows.index(cheapest)] > 0.0
