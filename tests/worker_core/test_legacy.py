"""What a cache hands on: most recent first, shared heads once, bounded, as paths that match elsewhere."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.worker_core.support import chain, hit, keep, new_cache
from trieway.worker.core.legacy import Allowance, Prefix, gift_tokens, most_valuable, pieces, shares

HEAD = list(range(10, 30))


def test_an_empty_cache_has_nothing_to_give() -> None:
    assert most_valuable(new_cache(), tokens_max=100, paths_max=10) == []


def test_the_most_recently_used_come_first() -> None:
    cache = new_cache(256)
    for first in (40, 50, 60):
        keep(cache, "", list(range(first, first + 8)))
    hit_again = list(range(40, 48))
    keep(cache, "", hit_again)
    found = most_valuable(cache, tokens_max=1000, paths_max=10)
    assert [one.tokens[0] for one in found] == [40, 60, 50]
    assert [one.tokens[0] for one in most_valuable(cache, tokens_max=1000, paths_max=1)] == [40]


def test_a_shared_head_counts_once() -> None:
    cache = new_cache(256)
    for last in (100, 101, 102):
        keep(cache, "", [*HEAD, last, last, last])
    found = most_valuable(cache, tokens_max=len(HEAD) + 9, paths_max=10)
    assert [one.tokens for one in found] == [(*HEAD, last, last, last) for last in (102, 101, 100)]


def test_what_goes_over_the_bound_is_cut() -> None:
    cache = new_cache(256)
    keep(cache, "", HEAD)
    found = most_valuable(cache, tokens_max=5, paths_max=10)
    assert [one.tokens for one in found] == [tuple(HEAD[:5])]
    assert found[0].canonical <= 5


def test_namespaces_and_the_canonical_part_go_along() -> None:
    cache = new_cache(256)
    keep(cache, "a tenant", HEAD, canonical=7)
    (one,) = most_valuable(cache, tokens_max=1000, paths_max=10)
    assert (one.chain, one.canonical) == (chain("a tenant"), 7)


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_what_is_given_makes_another_cache_hit(seed: int, tokens_max: int) -> None:
    rng = random.Random(seed)
    cache = new_cache(512)
    for _ in range(8):
        keep(cache, rng.choice(["", "x"]), [rng.randrange(10, 13) for _ in range(rng.randrange(1, 20))])
    found = most_valuable(cache, tokens_max=tokens_max, paths_max=64)
    distinct = {(one.chain, one.tokens[:end]) for one in found for end in range(1, len(one.tokens) + 1)}
    assert len(distinct) <= tokens_max
    taker = new_cache(512)
    for one in found:
        salt = "x" if one.chain == chain("x") else ""
        assert hit(cache, salt, one.tokens) == len(one.tokens)
        keep(taker, salt, one.tokens)
        assert hit(taker, salt, one.tokens) == len(one.tokens)


def test_shares_keep_like_heads_together_and_are_even() -> None:
    heads = [list(range(first, first + 64)) for first in (10, 80, 150)]
    paths = [Prefix(chain=chain(), tokens=(*head, tail), canonical=65) for tail in range(4) for head in heads]
    found = shares(paths, ["a", "b", "c", "d"])
    assert sorted(len(share) for share in found.values()) == [4, 4, 4], "three heads need three takers"
    for share in found.values():
        assert len({one.tokens[:64] for one in share}) == 1


def test_givers_that_do_not_know_of_each_other_spread_their_best_and_join_their_copies() -> None:
    takers = [f"http://10.0.0.{index}:8000" for index in range(4)]
    best = [Prefix(chain=chain(), tokens=tuple(range(first, first + 80)), canonical=80) for first in range(0, 3200, 80)]
    homes = [next(iter(shares([one], takers))) for one in best]
    assert all(4 <= homes.count(taker) <= 18 for taker in takers)
    assert homes == [next(iter(shares([one], takers[::-1]))) for one in best], "whatever order takers are named in"


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), max_size=40))
def test_an_allowance_is_never_exceeded_in_any_window(gifts: list[tuple[float, int]]) -> None:
    allowance = Allowance(window_s=10.0)
    now, booked = 0.0, []
    for pause, tokens in gifts:
        now += pause
        left = allowance.left(100, now)
        assert left == max(0, 100 - sum(size for at, size in booked if now - at < 10.0))
        assert allowance.left(40, now) == max(0, left - 60), "a smaller share counts what was spent on a larger one"
        if tokens <= left:
            allowance.spend(tokens, now)
            booked.append((now, tokens))
        allowance.check()


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_a_gift_is_each_takers_share(kv_tokens: int, takers: int) -> None:
    assert gift_tokens(kv_tokens, 0.25, takers) == takers * gift_tokens(kv_tokens, 0.25)
    assert abs(gift_tokens(kv_tokens, 0.25) - kv_tokens / 4) <= 0.5


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300), st.integers(1, 64))
def test_pieces_go_to_the_end_or_as_far_as_allowed(held: int, more: int, most: int, size: int) -> None:
    length = held + more
    ends = pieces(held, length, most, size)
    if not ends:
        assert length == 0 or held + most == 0
        return
    assert ends == sorted(set(ends))
    assert ends[-1] == min(length, held + most)
    assert all(end - before <= size for before, end in zip([held, *ends], ends, strict=False))


def test_a_path_that_is_all_there_is_gone_through_once() -> None:
    assert pieces(100, 100, 7) == [100]
    assert pieces(100, 100, 0) == [100]
