"""The page pool: states, sums, and refusals of every double use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.worker.core.pool import CACHED, FREE, RUNNING, PagePool


def test_a_new_pool_is_all_free() -> None:
    pool = PagePool(5, 16)
    assert (pool.free, pool.running, pool.cached) == (5, 0, 0)
    pool.check()


def test_pages_move_from_free_to_running_to_cached_to_free() -> None:
    pool = PagePool(4, 1)
    pages = pool.allocate(3)
    assert len(set(pages)) == 3
    assert [pool.owner(page) for page in pages] == [RUNNING] * 3
    pool.adopt(pages[:2])
    assert (pool.free, pool.running, pool.cached) == (1, 1, 2)
    assert pool.owner(pages[0]) == CACHED
    pool.free_cached(pages[:2])
    pool.free_running(pages[2:])
    assert pool.free == 4
    assert pool.owner(pages[0]) == FREE
    pool.check()


def test_nothing_is_a_fine_amount() -> None:
    pool = PagePool(1, 1)
    assert pool.allocate(0) == []
    pool.free_running([])
    pool.check()


def test_allocating_more_than_is_free_asserts() -> None:
    pool = PagePool(2, 1)
    with pytest.raises(AssertionError):
        pool.allocate(3)
    pool.check()


def test_double_free_asserts() -> None:
    pool = PagePool(2, 1)
    pages = pool.allocate(1)
    pool.free_running(pages)
    with pytest.raises(AssertionError):
        pool.free_running(pages)


def test_freeing_one_page_twice_in_one_release_asserts() -> None:
    """C7: two ranges that share a page, freed together, are one page, not two."""
    pool = PagePool(4, 512)
    pages = pool.allocate(2)
    with pytest.raises(AssertionError):
        pool.free_running([pages[0], pages[1], pages[1]])


@pytest.mark.parametrize("wrong", ["free_cached", "adopt"])
def test_the_wrong_owner_asserts(wrong: str) -> None:
    pool = PagePool(2, 1)
    pages = pool.allocate(1)
    pool.adopt(pages)
    if wrong == "adopt":
        with pytest.raises(AssertionError):
            pool.adopt(pages)
    else:
        pool.free_cached(pages)
        with pytest.raises(AssertionError):
            pool.free_cached(pages)


def test_a_cached_page_is_not_freed_as_a_running_one() -> None:
    pool = PagePool(2, 1)
    pages = pool.allocate(1)
    pool.adopt(pages)
    with pytest.raises(AssertionError):
        pool.free_running(pages)


@given(st.lists(st.tuples(st.sampled_from(["take", "adopt", "drop", "evict"]), st.integers(0, 4)), max_size=40))
def test_the_sums_hold_whatever_happens(moves: list[tuple[str, int]]) -> None:
    pool = PagePool(9, 4)
    running: list[int] = []
    cached: list[int] = []
    for move, count in moves:
        if move == "take":
            count = min(count, pool.free)
            running += pool.allocate(count)
        elif move == "adopt":
            moved, running = running[:count], running[count:]
            pool.adopt(moved)
            cached += moved
        elif move == "drop":
            moved, running = running[:count], running[count:]
            pool.free_running(moved)
        else:
            moved, cached = cached[:count], cached[count:]
            pool.free_cached(moved)
        pool.check()
        assert pool.running == len(running)
        assert pool.cached == len(cached)
        assert not set(running) & set(cached)
