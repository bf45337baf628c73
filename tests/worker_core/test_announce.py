"""Copies, revaluing and coalescing of announced blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_core.support import replay
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.worker.core.announce import Announcer

ROOT = 900


def stored(hashes: tuple[int, ...], usable: tuple[int, ...], parent: int = ROOT) -> Stored:
    return Stored(namespace_id=ROOT, parent=parent, hashes=hashes, usable=usable)


def removed(*hashes: int) -> Removed:
    return Removed(namespace_id=ROOT, hashes=hashes)


def test_runs_that_follow_each_other_are_one_event() -> None:
    announcer = Announcer()
    announcer.attach(ROOT, ROOT, [1, 2], [10, 20])
    announcer.attach(ROOT, 2, [3], [30])
    assert announcer.drain() == [stored((1, 2, 3), (10, 20, 30))]
    assert announcer.drain() == []


def test_a_fork_is_another_event() -> None:
    announcer = Announcer()
    announcer.attach(ROOT, ROOT, [1, 2], [10, 20])
    announcer.attach(ROOT, 1, [3], [25])
    assert announcer.drain() == [stored((1, 2), (10, 20)), stored((3,), (25,), parent=1)]


def test_dropping_one_of_two_copies_removes_nothing() -> None:
    """C43: a removal is said when the last copy goes."""
    announcer = Announcer()
    announcer.attach(ROOT, ROOT, [1, 2], [10, 20])
    announcer.attach(ROOT, ROOT, [1, 2], [10, 20])
    assert announcer.drain() == [stored((1, 2), (10, 20))]
    announcer.detach(ROOT, ROOT, [1, 2], [10, 20])
    assert announcer.drain() == []
    announcer.detach(ROOT, ROOT, [1, 2], [10, 20])
    assert announcer.drain() == [removed(2, 1)]
    assert not announcer.announced


def test_the_least_usable_of_the_copies_is_announced() -> None:
    announcer = Announcer()
    announcer.attach(ROOT, ROOT, [1, 2], [10, 20])
    announcer.attach(ROOT, ROOT, [1, 2], [9, 22])
    assert announcer.drain() == [stored((1, 2), (10, 20)), stored((1,), (9,))]
    announcer.detach(ROOT, 1, [2], [20])
    assert announcer.drain() == [stored((2,), (22,), parent=1)]
    announcer.detach(ROOT, ROOT, [1], [9])
    assert announcer.drain() == [stored((1,), (10,))]
    assert announcer.announced == {1: 10, 2: 22}
    announcer.check()


def test_removals_of_neighbours_are_one_event_per_namespace() -> None:
    announcer = Announcer()
    announcer.attach(ROOT, ROOT, [1, 2], [1, 2])
    announcer.attach(77, 77, [5], [1])
    announcer.drain()
    announcer.detach(ROOT, 1, [2], [2])
    announcer.detach(ROOT, ROOT, [1], [1])
    announcer.detach(77, 77, [5], [1])
    assert announcer.drain() == [removed(2, 1), Removed(namespace_id=77, hashes=(5,))]


def test_clear_makes_what_was_pending_void_and_says_what_remains() -> None:
    announcer = Announcer()
    announcer.attach(ROOT, ROOT, [1, 2, 3], [1, 2, 3])
    announcer.detach(ROOT, 1, [2, 3], [2, 3])
    announcer.clear([(ROOT, ROOT, [1])])
    assert announcer.drain() == [Cleared(), stored((1,), (1,))]


def test_detaching_what_was_never_attached_asserts() -> None:
    announcer = Announcer()
    announcer.attach(ROOT, ROOT, [1], [1])
    with pytest.raises(AssertionError):
        announcer.detach(ROOT, ROOT, [1], [2])


PATHS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=12)


@given(PATHS, st.integers(0, 12))
def test_a_replay_always_gives_the_announced_set(paths: list[tuple[int, int]], drained_at: int) -> None:
    """Copies of one chain of blocks, each with a length and an own alignment, come and go."""
    announcer = Announcer()
    told: dict[int, int] = {}
    live: list[list[int]] = []
    for number, (length, shift) in enumerate(paths):
        usable = [10 * at + shift for at in range(1, length + 1)]
        announcer.attach(ROOT, ROOT, list(range(1, length + 1)), usable)
        live.append(usable)
        if number % 3 == 2:
            gone = live.pop(0)
            announcer.detach(ROOT, ROOT, list(range(1, len(gone) + 1)), gone)
        if number >= drained_at:
            replay(announcer.drain(), told)
        announcer.check()
        expected = {
            block: min(one[block - 1] for one in live if len(one) >= block)
            for block in range(1, max(map(len, live), default=0) + 1)
        }
        assert announcer.announced == expected
        assert list(expected.values()) == sorted(expected.values())
    replay(announcer.drain(), told)
    assert told == announcer.announced
