"""The digest: order does not matter, what was added can be taken out, and every difference shows in its bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.meta_tree.digest import DIGEST_BUCKETS, Digest, bucket_of, mix

HASHES = st.integers(0, 2**64 - 1)
BLOCKS = st.tuples(HASHES, st.integers(0, 2), st.integers(0, 2**32 - 1))

# docs/feed.md prints these.
VECTORS = [
    ((0, 0, 0), 0x4D0A2BBE78B92AB1),
    ((1, 0, 16), 0xB8AC1C9384B55BAF),
    ((0x0123456789ABCDEF, 1, 1024), 0xFA40C791E104468E),
    ((2**64 - 1, 2, 2**32 - 1), 0x9F5528C9500C2BB5),
]


def digest_of(blocks: list[tuple[int, int, int]]) -> Digest:
    digest = Digest()
    for block in blocks:
        digest.add(*block)
    return digest


@pytest.mark.parametrize(("block", "expected"), VECTORS)
def test_vectors(block: tuple[int, int, int], expected: int) -> None:
    assert mix(*block) == expected


@given(block=BLOCKS)
def test_mix_is_64_bits(block: tuple[int, int, int]) -> None:
    assert 0 <= mix(*block) < 2**64


@given(blocks=st.lists(BLOCKS, max_size=20), data=st.data())
def test_order_does_not_matter(blocks: list[tuple[int, int, int]], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(blocks))
    assert digest_of(blocks).buckets() == digest_of(shuffled).buckets()


@given(kept=st.lists(BLOCKS, max_size=10), gone=st.lists(BLOCKS, max_size=10))
def test_what_is_taken_out_leaves_no_trace(kept: list[tuple[int, int, int]], gone: list[tuple[int, int, int]]) -> None:
    digest = digest_of(gone + kept)
    for block in gone:
        digest.remove(*block)
    assert digest.buckets() == digest_of(kept).buckets()
    assert digest.differing(digest_of(kept).buckets()) == ()


@given(hashes=st.lists(HASHES, max_size=20), tier=st.integers(0, 2), usable=st.integers(0, 2**32 - 1))
def test_a_run_equals_its_blocks(hashes: list[int], tier: int, usable: int) -> None:
    one, run = Digest(), Digest()
    for block in hashes:
        one.add(block, tier, usable)
    run.add_run(hashes, tier, [usable] * len(hashes))
    assert one.buckets() == run.buckets()
    assert one.total() == run.total() == sum(one.buckets()) % 2**64


@given(blocks=st.lists(BLOCKS, max_size=10), extra=BLOCKS)
def test_a_difference_shows_in_its_bucket(blocks: list[tuple[int, int, int]], extra: tuple[int, int, int]) -> None:
    assert digest_of([*blocks, extra]).differing(digest_of(blocks).buckets()) == (bucket_of(extra[0]),)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([(9, 0, 10), (9, 1, 20)], [(9, 0, 20), (9, 1, 10)], id="counts swapped between tiers"),
        pytest.param([(9, 0, 10), (8, 0, 20)], [(9, 0, 20), (8, 0, 10)], id="counts swapped between blocks"),
        pytest.param([(9, 0, 10), (8, 1, 10)], [(9, 1, 10), (8, 0, 10)], id="tiers swapped between blocks"),
        pytest.param([(9, 0, 10), (9, 0, 30)], [(9, 0, 20), (9, 0, 20)], id="counts with the same sum"),
        pytest.param([(0, 0, 0)], [], id="the smallest block"),
        pytest.param([(2**63, 0, 0), (2**63 + 2, 0, 0)], [(2**63 + 1, 0, 0)] * 2, id="hashes with the same sum"),
    ],
)
def test_exchanges_do_not_cancel(one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]) -> None:
    assert digest_of(one).total() != digest_of(other).total()


def test_few_of_many_single_changes_share_a_sum() -> None:
    """All (tier, usable) of one hash, and many neighbours: 64-bit values, so none should meet another."""
    values = [
        mix(base << 56 | low, tier, usable)
        for base in (0, 7)
        for low in range(50)
        for tier in range(3)
        for usable in range(0, 320, 16)
    ]
    assert len(set(values)) == len(values)


def test_merge_shift_bucket_and_clear() -> None:
    digest = digest_of([(5 << 56, 0, 1)])
    other = digest_of([(5 << 56 | 1, 0, 1), (6 << 56, 0, 1)])
    digest.merge(other)
    assert digest.buckets() == digest_of([(5 << 56, 0, 1), (5 << 56 | 1, 0, 1), (6 << 56, 0, 1)]).buckets()
    assert digest.bucket(6) == mix(6 << 56, 0, 1)
    digest.shift(6, -digest.bucket(6))
    assert digest.bucket(6) == 0
    digest.clear()
    assert digest.buckets() == (0,) * DIGEST_BUCKETS


def test_sums_wrap_at_64_bits() -> None:
    digest = Digest()
    for _ in range(100):
        digest.add(2**64 - 1, 0, 7)
    assert digest.buckets()[255] == 100 * mix(2**64 - 1, 0, 7) % 2**64
