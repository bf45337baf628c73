"""Policies by key, load and chance: agreement between routers, few moved keys, bounded loads."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router_core.test_policies import row
from trieway.router.core.config import CoreConfig
from trieway.router.core.keyed import KEY_BLOCKS, LOAD_MAX
from trieway.router.core.policies import make_policy, most_likely
from trieway.router.core.values import CostRow, Query


def chances(policy: str, rows: list[CostRow], **more: object) -> list[float]:
    made = make_policy(CoreConfig(seed_id="0" * 16, policy=policy))
    return made.chances(rows, Query(model="m", **more))  # type: ignore[arg-type]


def place(policy: str, rows: list[CostRow], **more: object) -> str:
    got = chances(policy, rows, **more)
    assert sorted(got) == [0.0] * (len(rows) - 1) + [1.0], "a key has one place"
    return rows[most_likely(got)].worker


def fleet(count: int, booked: int = 0) -> list[CostRow]:
    return [row(f"http://10.0.0.{number}:8100", booked=booked) for number in range(count)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_power_of_two_is_the_share_of_pairs_won(loads: list[int]) -> None:
    got = chances("power_of_two", [row(f"w{at}", booked=load) for at, load in enumerate(loads)])
    won: Counter[int] = Counter()
    pairs = list(itertools.permutations(range(len(loads)), 2)) or [(0, 0)]
    for first, second in pairs:  # of equals the first drawn; both orders are among the pairs
        won[first if loads[first] <= loads[second] else second] += 1
    assert got == pytest.approx([won[at] / len(pairs) for at in range(len(loads))])


def test_power_of_two_never_takes_the_one_with_most() -> None:
    assert chances("power_of_two", [row("a", booked=9), row("b"), row("c", booked=1)])[0] == 0.0


@pytest.mark.parametrize("policy", ["consistent_hash", "session"])
def test_routers_agree_whatever_order_they_know_workers_in(policy: str) -> None:
    rows = fleet(9)
    for number in range(50):
        shuffled = random.Random(number).sample(rows, len(rows))
        name = f"user {number}"
        assert place(policy, rows, session=name) == place(policy, shuffled, session=name)


@pytest.mark.parametrize("policy", ["consistent_hash", "session"])
def test_only_the_sessions_of_the_one_that_leaves_move(policy: str) -> None:
    rows = fleet(8)
    before = {number: place(policy, rows, session=f"s{number}") for number in range(400)}
    gone = rows[3].worker
    rest = [one for one in rows if one.worker != gone]
    after = {number: place(policy, rest, session=f"s{number}") for number in range(400)}
    assert {number for number in before if before[number] != after[number]} == {
        number for number in before if before[number] == gone
    }
    counts = Counter(before.values())
    assert len(counts) == 8
    assert max(counts.values()) < 2 * 400 / 8


def test_prompts_with_one_head_have_one_place() -> None:
    rows = fleet(8)
    head = tuple(range(100, 100 + KEY_BLOCKS))
    assert len({place("consistent_hash", rows, hashes=(*head, tail, tail + 1)) for tail in range(20)}) == 1
    heads = {place("consistent_hash", rows, hashes=tuple(range(n, n + KEY_BLOCKS))) for n in range(60)}
    assert len(heads) == 8


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 99))
def test_a_full_worker_passes_its_keys_on(loads: list[int], number: int) -> None:
    rows = [row(f"w{at}", booked=load) for at, load in enumerate(loads)]
    chosen = loads[[one.worker for one in rows].index(place("consistent_hash", rows, session=f"s{number}"))]  # type: ignore[arg-type]
    assert chosen + 1 <= LOAD_MAX * (sum(loads) + 1) / len(loads) + 1


def test_a_session_stays_under_load() -> None:
    rows = fleet(4)
    at = [one.worker for one in rows].index(place("session", rows, session="chat"))  # type: ignore[arg-type]
    rows[at] = row(rows[at].worker, booked=500)
    assert place("session", rows, session="chat") == rows[at].worker
    assert place("session", rows) != rows[at].worker, "without a session it goes by load"


def test_no_session_rotates_among_equals() -> None:
    assert place("session", [row("a", last_booked=2), row("b", last_booked=1)]) == "b"
