"""Chained block hashes: native, twin and the xxhash package say the same, and the wire's test vectors hold."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from trieway.kernels import block_hash
from trieway.kernels.block_hash import BLOCK_BYTES, HashChain, hash_chain, hash_chain_twin

WORDS = st.integers(0, 2**64 - 1)
FORMS = [
    pytest.param(hash_chain_twin, id="twin"),
    pytest.param(
        block_hash.NATIVE, id="native", marks=pytest.mark.skipif(block_hash.NATIVE is None, reason="a pure build")
    ),
]

# docs/feed.md prints these: bytes 0, 1, 2, ... 191 (three blocks) and the hashes for (seed, parent).
TEXT = bytes(range(192))
VECTORS = [
    (0, 0, [0x4873CA4D748939D5, 0x159F4CE5A88538AD, 0xCAE394D44BF322DB]),
    (1, 2, [0x79F4EA6AB9F450AD, 0x12E2623E21F9A8AE, 0x14B4915091800005]),
    (0x0123456789ABCDEF, 0xFEDCBA9876543210, [0xEA22D69B3710818F, 0xE7683AC2EF0A7A16, 0xD656D69D400B07C5]),
    (2**64 - 1, 2**64 - 1, [0x11478FEB781F27BF, 0x670FDD06B765AFCC, 0x621EC8C982D80FFA]),
]


def plain(data: bytes, seed: int, parent: int) -> list[int]:
    """The documented rule with the xxhash package alone."""
    hashes = []
    for start in range(0, len(data) // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES):
        block = struct.pack("<Q", parent) + data[start : start + BLOCK_BYTES]
        parent = xxhash.xxh3_64_intdigest(block, seed=seed)
        hashes.append(parent)
    return hashes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("seed", "parent", "expected"), VECTORS)
def test_vectors(form: HashChain, seed: int, parent: int, expected: list[int]) -> None:
    assert form(TEXT, seed, parent) == expected


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=1000), seed=WORDS, parent=WORDS)
def test_every_form_equals_the_xxhash_package(form: HashChain, data: bytes, seed: int, parent: int) -> None:
    assert form(data, seed, parent) == plain(data, seed, parent)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 640])
def test_a_partial_last_block_is_left_out(form: HashChain, length: int) -> None:
    data = bytes(index % 251 for index in range(length))
    assert len(form(data, 3, 4)) == length // BLOCK_BYTES
    assert form(data, 3, 4) == form(data[: length // BLOCK_BYTES * BLOCK_BYTES], 3, 4)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(min_size=256, max_size=640), cut=st.integers(0, 4))
def test_a_chain_goes_on_from_any_of_its_blocks(form: HashChain, data: bytes, cut: int) -> None:
    whole = form(data, 9, 10)
    parent = whole[cut - 1] if cut else 10
    assert form(data[cut * BLOCK_BYTES :], 9, parent) == whole[cut:]


@pytest.mark.parametrize("form", FORMS)
def test_identical_blocks_hash_differently_along_a_path(form: HashChain) -> None:
    hashes = form(b"x" * 640, 1, 1)
    assert len(set(hashes)) == 10


@pytest.mark.parametrize("form", FORMS)
@given(at=st.integers(0, 191), flip=st.integers(1, 255))
def test_a_changed_byte_changes_its_block_and_all_after_it(form: HashChain, at: int, flip: int) -> None:
    changed = bytearray(TEXT)
    changed[at] ^= flip
    block = at // BLOCK_BYTES
    before, after = form(TEXT, 5, 6), form(bytes(changed), 5, 6)
    assert after[:block] == before[:block]
    assert all(one != other for one, other in zip(before[block:], after[block:], strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(form: HashChain, kind: type) -> None:
    assert form(kind(TEXT), 1, 2) == form(TEXT, 1, 2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("seed", "parent"), [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)])
def test_words_out_of_range_are_refused_or_reduced_never_misread(form: HashChain, seed: int, parent: int) -> None:
    """Our own mistake, so any exception will do; only a silent third value would hurt."""
    try:
        found = form(TEXT, seed, parent)
    except (TypeError, OverflowError, ValueError):
        return
    assert found == plain(TEXT, seed % 2**64, parent % 2**64)


def test_text_is_not_accepted_for_bytes() -> None:
    for form in filter(None, (hash_chain_twin, block_hash.NATIVE)):
        with pytest.raises(TypeError):
            form("text" * 32, 0, 0)  # type: ignore[arg-type]


def test_the_native_form_is_used_where_it_was_built() -> None:
    assert hash_chain is (block_hash.NATIVE or hash_chain_twin)
