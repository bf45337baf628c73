"""Speculations end with the truth, in bounds; their estimates run evenly to the prompt's end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router_core.clockwork import GROUP, chain
from trieway.meta_tree.ids import WorkerId
from trieway.meta_tree.view import View
from trieway.router.core.speculation import EvenTokens, Speculations

A, B = WorkerId("a"), WorkerId("b")
PATH = chain(range(1, 9))


def made(alive_max: int = 100) -> tuple[Speculations, View]:
    view = View()
    view.add_worker(A, GROUP)
    view.add_worker(B, GROUP, approximate=True)
    return Speculations(view, alive_max=alive_max, age_max_s=10.0), view


def begin(speculations: Speculations, ticket: int, worker: WorkerId = A, now: float = 0.0) -> None:
    speculations.begin(ticket, worker, PATH, EvenTokens(len(PATH), (0, 0), 128, 512), now)
    speculations.check()


def expected(view: View, worker: WorkerId = A) -> int:
    held = view.match(GROUP, PATH).get(worker)
    return 0 if held is None else held.speculative_usable


def test_a_speculation_is_seen_until_its_event_is_applied() -> None:
    speculations, view = made()
    begin(speculations, 1)
    assert expected(view) == 128
    speculations.computed(1, number=5, applied=3)
    speculations.applied(A, 4)
    assert expected(view) == 128
    speculations.applied(A, 5)
    speculations.check()
    assert expected(view) == 0
    assert len(speculations) == 0


def test_several_end_in_the_order_of_their_events() -> None:
    speculations, _ = made()
    for ticket in (1, 2, 3):
        begin(speculations, ticket)
        speculations.computed(ticket, number=ticket * 10, applied=0)
    speculations.applied(A, 20)
    assert len(speculations) == 1
    speculations.applied(B, 99)
    speculations.applied(A, None)
    assert len(speculations) == 1


def test_a_failed_request_ends_it_at_once_and_a_computed_one_with_the_heartbeat() -> None:
    speculations, view = made()
    begin(speculations, 1)
    begin(speculations, 2)
    speculations.released(1, computed=False, fed=True)
    assert len(speculations) == 1
    speculations.released(2, computed=True, fed=True)
    assert expected(view) == 128
    speculations.heartbeat(B)
    assert len(speculations) == 1
    speculations.heartbeat(A)
    assert len(speculations) == 0


def test_without_a_feed_it_is_learnt() -> None:
    speculations, view = made()
    begin(speculations, 1, B)
    speculations.learn(1)
    speculations.check()
    assert len(speculations) == 0
    assert view.blocks(B) == len(PATH)
    speculations.learn(1)


def test_a_worker_takes_its_speculations_along() -> None:
    speculations, view = made()
    begin(speculations, 1, A)
    begin(speculations, 2, B)
    speculations.drop_worker(A)
    speculations.check()
    assert (expected(view, A), expected(view, B)) == (0, 128)


def test_bounds_of_number_and_age() -> None:
    speculations, _ = made(alive_max=2)
    for ticket in (1, 2, 3):
        begin(speculations, ticket, now=float(ticket))
    assert len(speculations) == 2
    speculations.computed(3, number=1, applied=0)
    speculations.released(3, computed=False, fed=True)
    speculations.expire(11.5)
    assert len(speculations) == 1
    speculations.expire(100.0)
    assert len(speculations) == 0
    speculations.check()


@given(
    blocks=st.integers(1, 200),
    known_blocks=st.integers(0, 200),
    per_block=st.integers(1, 64),
    more_tokens=st.integers(0, 5000),
    more_bytes=st.integers(0, 63),
)
def test_estimates_never_fall_and_meet_what_is_known(
    blocks: int, known_blocks: int, per_block: int, more_tokens: int, more_bytes: int
) -> None:
    known_blocks = min(known_blocks, blocks)
    known = known_blocks * per_block
    prompt_tokens = known + more_tokens
    usable = EvenTokens(blocks, (known_blocks, known), prompt_tokens, blocks * 64 + more_bytes)
    counts = list(usable)
    assert len(counts) == len(usable) == blocks
    assert counts == sorted(counts)
    assert counts[-1] <= max(prompt_tokens, known)
    if known_blocks:
        assert usable[known_blocks - 1] == known
    assert usable[-1] == counts[-1]
    assert usable[1:3] == counts[1:3]
    with pytest.raises(IndexError):
        usable[blocks]
