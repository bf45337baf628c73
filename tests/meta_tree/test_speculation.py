"""Speculation: dispatched requests lead their siblings until they are retired."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.meta_tree.oracle import chain_hashes
from tests.meta_tree.strategies import PATHS
from trieway.meta_tree.events import Stored
from trieway.meta_tree.ids import GroupId, WorkerId
from trieway.meta_tree.speculation import Reach, Speculations
from trieway.meta_tree.view import Held, View

G = GroupId("g")
A, B = WorkerId("a"), WorkerId("b")
PATH = chain_hashes([0, 1, 2, 0, 1])
SIBLING = chain_hashes([0, 1, 2, 2, 2])
USABLE = [14, 28, 42, 56, 70]


def view_of(*workers: WorkerId) -> View:
    view = View()
    for worker in workers:
        view.add_worker(worker, G)
    return view


def test_a_sibling_follows_the_leader_before_any_event() -> None:
    view = view_of(A, B)
    view.speculate(7, A, PATH, USABLE)
    assert view.match(G, SIBLING) == {A: Held((0, 0, 0), 0, 42, 7)}
    view.retire(7)
    assert view.match(G, SIBLING) == {}
    view.retire(7)
    view.check()


def test_speculation_is_outside_the_digest_and_the_block_counts() -> None:
    view = view_of(A)
    view.speculate(1, A, PATH, USABLE)
    assert view.digest(A).total() == 0
    assert view.blocks(A) == 0


def test_what_is_held_already_is_not_speculation() -> None:
    view = view_of(A)
    view.speculate(1, A, PATH[:3], USABLE[:3])
    view.apply(A, Stored(namespace_id=5, parent=5, hashes=tuple(PATH), usable=(16, 32, 48, 64, 80)))
    assert view.match(G, PATH) == {A: Held((80, 80, 80), 5)}
    view.speculate(2, A, chain_hashes([0, 1, 2, 0, 1, 1]), [*USABLE, 84])
    deeper = chain_hashes([0, 1, 2, 0, 1, 1])
    assert view.match(G, deeper) == {A: Held((80, 80, 80), 5, 84, 2)}


def test_the_deepest_ticket_of_each_worker_counts_and_of_equals_the_newest() -> None:
    view = view_of(A, B)
    view.speculate(1, A, PATH[:2], USABLE[:2])
    view.speculate(2, A, PATH, USABLE)
    view.speculate(3, B, PATH[:4], USABLE[:4])
    view.speculate(4, A, PATH, USABLE)
    found = view.match(G, PATH)
    assert (found[A].ticket, found[B].ticket) == (4, 3)
    assert (found[A].speculative_usable, found[B].speculative_usable) == (70, 56)
    view.retire(4)
    assert view.match(G, PATH)[A].ticket == 2


def test_a_worker_that_goes_takes_its_tickets_along() -> None:
    view = view_of(A, B)
    view.speculate(1, A, PATH, USABLE)
    view.speculate(2, B, PATH, USABLE)
    view.drop_worker(A)
    assert set(view.match(G, PATH)) == {B}
    view.retire(1)
    view.check()


def test_a_ticket_is_used_once() -> None:
    view = view_of(A)
    view.speculate(1, A, PATH, USABLE)
    with pytest.raises(AssertionError):
        view.speculate(1, A, PATH, USABLE)


def test_any_sequence_of_counts_will_do() -> None:
    view = view_of(A)
    view.speculate(1, A, PATH, range(14, 84, 14))
    assert view.match(G, SIBLING)[A].speculative_usable == 42


def test_bounds_forget_the_oldest() -> None:
    guesses = Speculations(tickets_max=3, hashes_max=12)
    for ticket in range(5):
        guesses.add(ticket, A, PATH[:2], USABLE[:2])
        guesses.check()
    assert [ticket for ticket in range(5) if ticket in guesses] == [2, 3, 4]
    guesses.add(9, A, PATH * 2, USABLE * 2)
    guesses.check()
    assert 9 in guesses
    assert len(guesses) == 2
    assert guesses.retire(9)
    assert not guesses.retire(9)
    guesses.add(10, A, [], [])
    assert 10 not in guesses


@given(
    tickets=st.lists(st.tuples(st.sampled_from([A, B]), PATHS), max_size=12),
    retired=st.sets(st.integers(0, 11)),
    query=PATHS,
)
def test_against_comparing_everything(
    tickets: list[tuple[WorkerId, tuple[int, ...]]], retired: set[int], query: tuple[int, ...]
) -> None:
    guesses = Speculations()
    hashes = chain_hashes(query)
    for ticket, (worker, path) in enumerate(tickets):
        guesses.add(ticket, worker, chain_hashes(path), [10 * (at + 1) for at in range(len(path))])
    for ticket in retired:
        guesses.retire(ticket)
    guesses.check()
    expected: dict[str, Reach] = {}
    for ticket, (worker, path) in enumerate(tickets):
        shared = sum(one == other for one, other in zip(chain_hashes(path), hashes, strict=False))
        best = expected.get(worker, Reach(0, 0, 0))
        if ticket not in retired and shared and shared >= best.blocks:
            expected[worker] = Reach(shared, 10 * shared, ticket)
    assert guesses.reach(hashes) == expected


def test_many_tickets_on_one_hot_prefix_stay_cheap() -> None:
    view = view_of(A, B)
    trunk = [(at << 40) + 1 for at in range(1000)]
    for ticket in range(1000):
        own = [(ticket << 20) + (at << 50) + 2 for at in range(20)]
        view.speculate(ticket, (A, B)[ticket % 2], trunk + own, range(1020))
    query = trunk + [(999 << 20) + 2]
    best = 1.0
    for _ in range(10):
        began = time.process_time()
        found = view.match(G, query)
        best = min(best, time.process_time() - began)
    assert found[B] == Held((0, 0, 0), 0, 1000, 999)
    assert found[A].speculative_usable == 999
    assert best < 0.002
