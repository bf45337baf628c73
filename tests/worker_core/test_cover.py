"""Which text blocks tokens cover, against the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_core.support import TABLE, chain, naive_blocks
from trieway.worker.core.cover import Cover

TOKENS = st.lists(st.one_of(st.integers(0, 7), st.integers(8, 255)), max_size=60)


def blocks(cover: Cover) -> list[tuple[int, int, int]]:
    return list(zip(cover.hashes, cover.ends, cover.usable, strict=True))


@given(TOKENS, st.sampled_from([1, 2, 4, 16]))
def test_blocks_are_those_of_the_definition(tokens: list[int], page_size: int) -> None:
    cover = Cover(chain("a"), TABLE, page_size)
    cover.extend(tokens)
    assert blocks(cover) == naive_blocks(chain("a"), tokens, page_size)
    assert cover.tokens == len(tokens)


@given(TOKENS, st.lists(st.integers(0, 60), max_size=5), st.sampled_from([1, 4]))
def test_the_steps_of_extend_do_not_matter(tokens: list[int], cuts: list[int], page_size: int) -> None:
    whole = Cover(chain(), TABLE, page_size)
    whole.extend(tokens)
    pieces = Cover(chain(), TABLE, page_size)
    last = 0
    for cut in sorted(cuts):
        pieces.extend(tokens[last:cut])
        last = max(last, cut)
    pieces.extend(tokens[last:])
    assert blocks(pieces) == blocks(whole)


@given(TOKENS, st.integers(0, 60))
def test_nothing_is_covered_past_the_canonical_tokens(tokens: list[int], canonical: int) -> None:
    cover = Cover(chain(), TABLE, 1, canonical)
    cover.extend(tokens[:10])
    cover.extend(tokens[10:])
    assert blocks(cover) == naive_blocks(chain(), tokens[:canonical], 1)
    assert cover.tokens == min(canonical, len(tokens))


@given(TOKENS)
def test_ends_and_usable_never_fall(tokens: list[int]) -> None:
    cover = Cover(chain(), TABLE, 2)
    cover.extend(tokens)
    assert cover.ends == sorted(cover.ends)
    assert cover.usable == sorted(cover.usable)
    assert all(usable <= end for usable, end in zip(cover.usable, cover.ends, strict=True))


def test_a_block_that_ends_with_a_token_counts_it() -> None:
    cover = Cover(chain(), TABLE, 1)
    cover.extend([1, 1])  # 32 + 32 bytes
    assert cover.ends == [2]
    assert cover.usable == [2]


def test_a_block_that_ends_inside_a_token_does_not_count_it() -> None:
    cover = Cover(chain(), TABLE, 1)
    cover.extend([1, 5])  # 32 + 33 bytes
    assert cover.ends == [2]
    assert cover.usable == [1]


def test_one_long_token_completes_several_blocks() -> None:
    cover = Cover(chain(), TABLE, 1)
    cover.extend([0, 3])  # 10 + 150 bytes
    assert cover.ends == [2, 2]
    assert cover.usable == [1, 1]


def test_usable_rounds_down_to_pages() -> None:
    cover = Cover(chain(), TABLE, 16)
    cover.extend([40] * 128)
    assert cover.ends == [64, 128]
    assert cover.usable == [64, 128]
    cover = Cover(chain(), TABLE, 48)
    cover.extend([40] * 128)
    assert cover.usable == [48, 96]


def test_the_hashes_are_those_of_the_text() -> None:
    tokens = [0, 1, 2, 3, 4, 5, 6, 7] * 3
    cover = Cover(chain("x"), TABLE)
    cover.extend(tokens)
    assert cover.hashes == chain("x").hashes(b"".join(TABLE[token] for token in tokens))
    assert cover.parent_of(0) == chain("x").root
    assert cover.parent_of(3) == cover.hashes[2]


@pytest.mark.parametrize("other", ["", "b"])
def test_namespaces_share_no_hash(other: str) -> None:
    one, two = Cover(chain("a"), TABLE), Cover(chain(other), TABLE)
    for cover in (one, two):
        cover.extend([2, 2, 2])
    assert not set(one.hashes) & set(two.hashes)


def test_equal_blocks_in_a_row_have_different_hashes() -> None:
    cover = Cover(chain(), TABLE)
    cover.extend([2] * 10)
    assert len(set(cover.hashes)) == 10
