"""Known behaviours and faults of radix caches, each as a small input."""

from __future__ import annotations

import sys

import pytest

from tests.worker_core.support import KEY, TABLE, Holder, chain, hit, ids, keep, naive_blocks, new_cache, replay
from trieway.kernels.block_hash import hash_chain
from trieway.meta_tree.events import CacheEvent, Cleared, Removed, Stored
from trieway.meta_tree.ids import Namespace
from trieway.worker.core.cover import Cover
from trieway.worker.core.node import agreeing
from trieway.worker.core.radix import RadixCache
from trieway.worker.core.radix_check import check_cache


def rows(cache: RadixCache, salt: str, tokens: list[int]) -> list[int]:
    return cache.pages_of(cache.match(chain(salt), ids(*tokens), len(tokens)))


# Keys


@pytest.mark.parametrize("most", [0, 1, 2, 31, 32, 33, 64, 100, 200])
@pytest.mark.parametrize("differs", [0, 1, 31, 32, 33, 95, 96, 97, 150, 199, None])
def test_agreeing_counts_the_common_head_wherever_it_ends(most: int, differs: int | None) -> None:
    edge = ids(*range(200))
    tokens = ids(9, 9, 9, *range(200))
    if differs is not None:
        tokens[3 + differs] = 9999
    assert agreeing(edge, tokens, 3, most) == min(most, 200 if differs is None else differs)


def test_a_limit_acts_like_a_slice() -> None:
    cache = new_cache(64, 2)
    keep(cache, "", list(range(10, 30)))
    for limit in range(22):
        whole = cache.match(chain(), ids(*range(10, 30)), limit)
        cut = cache.match(chain(), ids(*range(10, 30))[:limit], 99)
        assert (whole.node, whole.inner, whole.length) == (cut.node, cut.inner, cut.length)


def test_joined_names_do_not_collide() -> None:
    """C37, B6: ("a", "bc") is not ("ab", "c"), and a tenant is not a salt."""
    names = [
        Namespace(tenant="a", salt="bc"), Namespace(tenant="ab", salt="c"), Namespace(tenant="abc"),
        Namespace(salt="abc"), Namespace(adapter="abc"), Namespace(),
    ]  # fmt: skip
    chains = [KEY.chain(name) for name in names]
    assert len(set(chains)) == len({one.root for one in chains}) == len(names)
    assert KEY.chain(Namespace(salt="")) == KEY.chain(Namespace())


# Trees


@pytest.mark.parametrize("page", [1, 2, 4, 16])
def test_equal_shorter_and_longer_queries_hit(page: int) -> None:
    cache = new_cache(128, page)
    tokens = [40 + at % 90 for at in range(64)]
    row = keep(cache, "", tokens)
    for length in (64, 63, 33, 16, 1):
        assert hit(cache, "", tokens[:length]) == length // page * page
        assert rows(cache, "", tokens[:length]) == row[: length // page]
    assert hit(cache, "", [*tokens, 1, 2]) == 64
    assert hit(cache, "", [1, *tokens]) == 0
    check_cache(cache)


def test_a_disabled_cache_stores_nothing_matches_nothing_and_says_nothing() -> None:
    cache = new_cache(enabled=False)
    keep(cache, "", [2, 2, 2])
    assert hit(cache, "", [2, 2, 2]) == 0
    assert cache.cached == cache.nodes == 0
    assert cache.flush() == 0
    assert cache.announcer.drain() == []
    assert cache.pool.free == 64
    check_cache(cache)


def test_namespaces_hold_their_own_pages() -> None:
    cache = new_cache()
    tokens = [2, 3, 4]
    held = {salt: keep(cache, salt, tokens) for salt in ("", "s", "t")}
    assert {salt: rows(cache, salt, tokens) for salt in held} == held
    assert len({page for row in held.values() for page in row}) == 9
    assert hit(cache, "unknown", tokens) == 0
    assert len(cache.roots) == 3
    cache.evict(9)
    assert not cache.roots, "an empty namespace costs nothing"


def test_a_lock_moves_exactly_the_paths_tokens_to_protected_and_back() -> None:
    cache = new_cache()
    keep(cache, "", [10, 11, 12, 13, 14, 15])
    keep(cache, "", [10, 11, 12, 20, 21])
    for tokens, length in (([10, 11, 12, 13], 4), ([10, 11], 2), ([10, 11, 12, 20, 21], 5), ([99], 0)):
        before = cache.nodes
        receipt = cache.lock(cache.match(chain(), ids(*tokens), len(tokens)))
        assert (cache.protected, cache.evictable) == (length, 8 - length)
        assert cache.nodes == before, "a lock splits nothing"
        check_cache(cache)
        cache.unlock(receipt)
        assert (cache.protected, cache.evictable) == (0, 8)


def test_locks_that_overlap_count_once() -> None:
    cache = new_cache()
    keep(cache, "", list(range(10, 20)))
    one = cache.lock(cache.match(chain(), ids(*range(10, 14)), 4))
    two = cache.lock(cache.match(chain(), ids(*range(10, 17)), 7))
    assert cache.protected == 7
    cache.unlock(two)
    assert cache.protected == 4
    assert cache.evict(99) == 6
    cache.unlock(one)
    assert cache.evict(99) == 4


def test_a_stale_match_cannot_be_locked() -> None:
    """C51: between a match and its use the cache may have evicted."""
    cache = new_cache()
    keep(cache, "", [10, 11, 12])
    match = cache.match(chain(), ids(10, 11, 12), 3)
    cache.evict(1)
    with pytest.raises(AssertionError):
        cache.lock(match)


def test_a_receipt_is_given_back_once() -> None:
    cache = new_cache()
    keep(cache, "", [10, 11, 12])
    receipt = cache.lock(cache.match(chain(), ids(10, 11, 12), 3))
    cache.unlock(receipt)
    with pytest.raises(ValueError):
        cache.unlock(receipt)


def test_locks_follow_splits() -> None:
    cache = new_cache()
    keep(cache, "", list(range(10, 20)))
    short = cache.lock(cache.match(chain(), ids(*range(10, 13)), 3))
    long = cache.lock(cache.match(chain(), ids(*range(10, 18)), 8))
    keep(cache, "", [10, 11, 12, 13, 14, 99])
    check_cache(cache)
    assert cache.protected == 8
    assert cache.pages_of(long) == rows(cache, "", list(range(10, 18)))
    cache.unlock(long)
    assert cache.protected == 3
    cache.unlock(short)
    assert cache.protected == 0
    check_cache(cache)


@pytest.mark.parametrize("page", [1, 2])
def test_divergence_inside_an_edge_repeatedly(page: int) -> None:
    cache = new_cache(128, page)
    trunk = list(range(40, 56))
    row = keep(cache, "", trunk)
    held = {tuple(trunk): row}
    for cut in (8, 12, 4, 14, 2):
        branch = [*trunk[:cut], 200 + cut, 201 + cut, 202 + cut, 203 + cut]
        held[tuple(branch)] = keep(cache, "", branch)
        check_cache(cache)
    assert cache.cached == 16 + 5 * 4
    for tokens, pages in held.items():
        assert rows(cache, "", list(tokens)) == pages
        shared = hit(cache, "", trunk[: len(tokens)])
        assert shared == min(len(tokens), 16)


def test_a_first_page_that_differs_in_its_tail_is_another_child() -> None:
    cache = new_cache(16, 4)
    keep(cache, "", [10, 11, 12, 13])
    keep(cache, "", [10, 11, 12, 99])
    assert cache.nodes == 2
    assert hit(cache, "", [10, 11, 12, 50]) == 0
    check_cache(cache)


def test_flush_zeroes_the_sizes_and_says_cleared() -> None:
    cache = new_cache()
    keep(cache, "", [2, 2, 2])
    assert cache.flush() == 3
    assert (cache.cached, cache.nodes, cache.pool.free) == (0, 0, 64)
    assert cache.announcer.drain() == [Cleared()]
    keep(cache, "", [2, 2, 2])
    assert hit(cache, "", [2, 2, 2]) == 3
    check_cache(cache)


def test_flush_keeps_and_announces_what_is_held() -> None:
    cache = new_cache()
    told: dict[int, int] = {}
    keep(cache, "s", [2, 3])
    holder = Holder(cache, "", [2, 2, 2, 2])
    holder.compute()
    holder.store()
    receipt = cache.lock(cache.match(chain(), ids(2, 2), 2))
    holder.release()
    replay(cache.announcer.drain(), told)
    assert cache.flush() == 4
    replay(cache.announcer.drain(), told)
    assert told == {block: usable for block, _, usable in naive_blocks(chain(), [2, 2], 1)}
    check_cache(cache)
    cache.unlock(receipt)
    assert cache.flush() == 2


def test_many_sequences_on_one_long_prefix_cost_little_more_than_what_is_new() -> None:
    """B16: the trunk is held once, whatever the number of branches."""
    cache = new_cache(20_000)
    trunk = [40 + at % 200 for at in range(10_000)]
    keep(cache, "", trunk, canonical=0)
    for branch in range(1000):
        holder = Holder(cache, "", [*trunk, *divmod(branch, 250)])
        assert holder.hit >= 10_000
        holder.compute()
        holder.store(0)
        holder.release()
    assert cache.cached <= 10_000 + 2 * 1000
    nodes = list(cache.walk())
    size = sum(sys.getsizeof(node.tokens) + sys.getsizeof(node.pages) for node in nodes)
    assert size < 2 * 12 * (10_000 + 2000) + 200 * len(nodes)
    check_cache(cache)


def test_what_was_stored_is_matched_at_once() -> None:
    cache = new_cache(64, 4)
    holder = Holder(cache, "", list(range(40, 58)))
    holder.compute()
    assert holder.store(length=9).length == 8
    assert hit(cache, "", list(range(40, 58))) == 8
    assert cache.protected == 8
    assert holder.store().length == 16
    assert hit(cache, "", list(range(40, 58))) == 16
    assert cache.protected == 16
    assert cache.pool.running == 1, "the partial last page stays the request's"
    holder.release()
    assert cache.pool.running == 0
    check_cache(cache)


def test_duplicates_are_freed_once_and_the_row_points_to_the_tree() -> None:
    """C10: two equal prompts computed side by side; the second one's row uses the first one's pages afterwards."""
    cache = new_cache(32)
    one, two = Holder(cache, "", [2, 3, 4, 10]), Holder(cache, "", [2, 3, 4, 11])
    one.compute()
    two.compute()
    assert cache.pool.running == 8
    one.store()
    two.store()
    assert two.row[:3] == one.row[:3]
    assert two.row[3] != one.row[3]
    assert (cache.pool.running, cache.pool.cached, cache.pool.free) == (0, 5, 27)
    two.release()
    check_cache(cache)
    assert cache.protected == 4
    one.release()
    assert cache.pool.free + cache.pool.cached == 32


def test_a_row_whose_shared_part_is_another_path_asserts() -> None:
    cache = new_cache()
    keep(cache, "", [10, 11])
    keep(cache, "", [20, 21])
    holder = Holder(cache, "", [10, 11])
    holder.row = rows(cache, "", [20, 21])
    with pytest.raises(AssertionError):
        holder.store()


# Eviction


@pytest.mark.parametrize(("page", "asked", "freed"), [(1, 10, 10), (4, 3, 12), (1, 100, 100), (1, 500, 100)])
def test_eviction_takes_no_more_of_a_leaf_than_was_asked(page: int, asked: int, freed: int) -> None:
    cache = new_cache(200, page)
    tokens = [40 + at % 200 for at in range(100)]
    keep(cache, "", tokens)
    assert cache.evict(asked) * page == freed
    assert hit(cache, "", tokens) == 100 - freed
    assert cache.pool.free == 200 - (100 - freed) // page
    check_cache(cache)


def test_a_split_does_not_make_the_unmatched_suffix_recent() -> None:
    """C1: A (8), B (4), then A[:4] + x; four tokens must come from A's tail, not from B."""
    cache = new_cache()
    a, b = list(range(10, 18)), list(range(30, 34))
    keep(cache, "", a)
    keep(cache, "", b)
    keep(cache, "", [*a[:4], 99])
    assert cache.evict(4) == 4
    assert hit(cache, "", a) == 4
    assert hit(cache, "", b) == 4
    assert hit(cache, "", [*a[:4], 99]) == 5


def test_a_use_of_an_edges_head_does_not_make_its_tail_recent() -> None:
    """The same without any split: a prompt is asked again, its long answer is not."""
    cache = new_cache()
    a, b = list(range(10, 18)), list(range(30, 34))
    keep(cache, "", a)
    keep(cache, "", b)
    holder = Holder(cache, "", a[:4])
    holder.release()
    assert cache.nodes == 2
    assert cache.evict(4) == 4
    assert (hit(cache, "", a), hit(cache, "", b)) == (4, 4)
    assert cache.evict(4) == 4
    assert (hit(cache, "", a), hit(cache, "", b)) == (4, 0)
    check_cache(cache)


def test_a_match_alone_makes_nothing_recent() -> None:
    cache = new_cache()
    keep(cache, "", [10, 11])
    keep(cache, "", [20, 21])
    assert hit(cache, "", [10, 11]) == 2
    cache.evict(2)
    assert (hit(cache, "", [10, 11]), hit(cache, "", [20, 21])) == (0, 2)


def test_leaves_go_before_their_parents_and_oldest_first() -> None:
    cache = new_cache()
    for tail in (50, 51, 52):
        keep(cache, "", [10, 11, tail])
    Holder(cache, "", [10, 11, 50]).release()
    gone = []
    for _ in range(5):
        before = {tail: hit(cache, "", [10, 11, tail]) for tail in (50, 51, 52)}
        assert cache.evict(1) == 1
        gone += [tail for tail in before if hit(cache, "", [10, 11, tail]) < before[tail]]
    assert gone == [51, 52, 50, 50, 51, 52, 50, 51, 52]
    assert cache.pool.free == 64


def test_locked_tokens_are_never_evicted() -> None:
    cache = new_cache()
    keep(cache, "", list(range(10, 20)))
    receipt = cache.lock(cache.match(chain(), ids(*range(10, 15)), 5))
    assert cache.evict(99) == 5
    assert cache.evict(1) == 0
    assert hit(cache, "", list(range(10, 20))) == 5
    cache.unlock(receipt)
    assert cache.evict(99) == 5
    check_cache(cache)


def test_eviction_costs_the_same_in_a_large_cache() -> None:
    """No rebuild of all leaves: each page costs a few heap moves, whatever the leaves."""
    cache = new_cache(6000)
    for leaf in range(3000):
        keep(cache, "", [8 + leaf % 240, 8 + leaf // 240])
    moves = 0
    offer = cache.leaves.offer

    def counted(node: object) -> None:
        nonlocal moves
        moves += 1
        offer(node)  # type: ignore[arg-type]

    cache.leaves.offer = counted  # type: ignore[method-assign, assignment]
    for _ in range(100):
        assert cache.evict(1) == 1
    assert moves <= 300


# Events


def drained(cache: RadixCache) -> list[CacheEvent]:
    return cache.announcer.drain()


def test_a_split_says_nothing_and_cuts_the_blocks() -> None:
    cache = new_cache()
    keep(cache, "", [2, 2, 2, 2])
    drained(cache)
    keep(cache, "", [2, 2, 40])
    assert drained(cache) == []
    (upper,) = cache.roots[chain()].children.values()
    assert upper.block_ends == [1, 2]
    assert [node.block_ends for node in upper.children.values() if node.block_ends] == [[3, 4]]
    check_cache(cache)


def test_removed_hashes_are_those_stored() -> None:
    cache = new_cache()
    keep(cache, "", [2, 1, 1, 3, 2])
    (stored,) = drained(cache)
    assert isinstance(stored, Stored)
    assert stored.parent == stored.namespace_id == chain().root
    cache.evict(99)
    (removed,) = drained(cache)
    assert isinstance(removed, Removed)
    assert sorted(removed.hashes) == sorted(stored.hashes)


def test_equal_pages_have_different_hashes_and_link_to_each_other() -> None:
    cache = new_cache()
    keep(cache, "", [2])
    keep(cache, "", [2, 2])
    hashes = [block for event in drained(cache) if isinstance(event, Stored) for block in event.hashes]
    assert len(set(hashes)) == 2
    assert hashes[1] == hash_chain(TABLE[2], chain().seed, hashes[0])[0]


def test_namespaces_say_different_hashes() -> None:
    """C38: equal tokens, two salts."""
    cache = new_cache()
    keep(cache, "s", [2, 2])
    keep(cache, "t", [2, 2])
    one, two = drained(cache)
    assert isinstance(one, Stored)
    assert isinstance(two, Stored)
    assert one.namespace_id != two.namespace_id
    assert not set(one.hashes) & set(two.hashes)


def test_every_parent_was_announced() -> None:
    """C44: a partial block, later full, later forked."""
    cache = new_cache()
    told: dict[int, int] = {}
    for tokens in ([1], [1, 0], [1, 1, 0], [1, 1, 2, 40], [1, 1, 2, 2], [0, 1, 1, 2]):
        keep(cache, "", tokens)
        replay(drained(cache), told)
    assert told == dict(cache.announcer.announced)


def test_one_of_two_copies_goes_and_nothing_is_removed() -> None:
    """C43: 64 bytes spelt by one token and by two; only the last copy's eviction is told."""
    table = [b"x" * 64, b"x" * 32]
    cache = new_cache()
    for tokens in ([0, 0], [1, 1, 0]):
        holder = Holder(cache, "", tokens)
        holder.compute()
        cover = Cover(chain(), table)
        cover.extend(ids(*tokens))
        match = cache.store(chain(), ids(*tokens), len(tokens), holder.row, 0, cover)
        holder.shared = match.length
        holder.release()
    first, *revalued = drained(cache)
    assert isinstance(first, Stored)
    assert first.usable == (1, 2)
    assert revalued == [], "two tokens in the place of one are no fewer"
    assert cache.evict(2) == 2
    events = drained(cache)
    assert all(isinstance(event, Stored) for event in events), "nothing is removed, the other copy counts more tokens"
    told = dict(zip(first.hashes, first.usable, strict=True))
    replay(events, told)
    assert list(told.values()) == [2, 3]
    check_cache(cache)
    cache.evict(3)
    (event,) = drained(cache)
    assert isinstance(event, Removed)
    assert set(event.hashes) == set(first.hashes)


def test_text_over_tokens_that_were_no_text_attaches_the_missing_blocks() -> None:
    cache = new_cache()
    keep(cache, "", [2, 2, 3, 2], canonical=0)
    assert drained(cache) == []
    keep(cache, "", [2, 2, 3], canonical=None)
    (event,) = drained(cache)
    assert isinstance(event, Stored)
    assert list(event.hashes) == [block for block, _, _ in naive_blocks(chain(), [2, 2, 3], 1)]
    check_cache(cache)
    keep(cache, "", [2, 2, 3, 2, 2], canonical=None)
    (event,) = drained(cache)
    assert isinstance(event, Stored)
    assert event.parent == naive_blocks(chain(), [2, 2, 3], 1)[-1][0]
    check_cache(cache)


def test_a_partly_evicted_edge_keeps_the_blocks_it_still_covers() -> None:
    cache = new_cache(64, 2)
    keep(cache, "", [2, 2, 1, 1, 2, 2])
    (event,) = drained(cache)
    assert isinstance(event, Stored)
    assert event.usable == (0, 2, 4, 4, 6)
    cache.evict(1)
    (event,) = drained(cache)
    assert isinstance(event, Removed)
    assert len(event.hashes) == 2
    assert sorted(cache.announcer.announced.values()) == [0, 2, 4]
    check_cache(cache)
