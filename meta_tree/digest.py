"""A digest of the set of blocks that somebody holds: 256 sums, so that two parties see *where* they differ.

Keeps true: adding and removing commute and cancel, so equal sets give equal sums whatever the history. Bucket = top
byte of the hash; each holds the sum mod 2**64 of mix(hash, tier, usable). Does not know who is counted, nor whether a
block was already in: callers count on the 0 <-> 1 transitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DIGEST_BUCKETS = 256
_MASK = 2**64 - 1
_SPREAD = 0x9E3779B97F4A7C15
_STIR = 0xD6E8FEB86659FD93


def bucket_of(block_hash: int) -> int:
    return block_hash >> 56


def mix(block_hash: int, tier: int, usable: int) -> int:
    """64 bits that depend on all three; not linear in any, so that swapped counts do not cancel."""
    word = ((block_hash ^ (usable * 4 + tier + 1) * _SPREAD) * _STIR) & _MASK
    return word ^ (word >> 32)


class Digest:
    """256 running sums. Kept unreduced between reads (a mask per block would cost more than the wider sum)."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums = [0] * DIGEST_BUCKETS

    def add(self, block_hash: int, tier: int, usable: int) -> None:
        self._sums[block_hash >> 56] += mix(block_hash, tier, usable)

    def remove(self, block_hash: int, tier: int, usable: int) -> None:
        self._sums[block_hash >> 56] -= mix(block_hash, tier, usable)

    def add_run(self, hashes: Iterable[int], tier: int, usable: Iterable[int]) -> None:
        """`add` for a run of blocks; `mix` is written out since this is the dearest line of applying a feed."""
        sums = self._sums
        lift = tier + 1
        for block_hash, count in zip(hashes, usable, strict=True):
            word = ((block_hash ^ (count * 4 + lift) * _SPREAD) * _STIR) & _MASK
            sums[block_hash >> 56] += word ^ (word >> 32)

    def remove_run(self, hashes: Iterable[int], tier: int, usable: Iterable[int]) -> None:
        """`remove` for a run of blocks, written out as `add_run` is."""
        sums = self._sums
        lift = tier + 1
        for block_hash, count in zip(hashes, usable, strict=True):
            word = ((block_hash ^ (count * 4 + lift) * _SPREAD) * _STIR) & _MASK
            sums[block_hash >> 56] -= word ^ (word >> 32)

    def bucket(self, index: int) -> int:
        return self._sums[index] & _MASK

    def shift(self, index: int, by: int) -> None:
        """Adds a sum that was computed elsewhere to one bucket."""
        self._sums[index] += by

    def merge(self, other: Digest) -> None:
        """Adds all that another digest counts."""
        self._sums = [mine + theirs for mine, theirs in zip(self._sums, other._sums, strict=True)]

    def clear(self) -> None:
        self._sums = [0] * DIGEST_BUCKETS

    def buckets(self) -> tuple[int, ...]:
        """256 sums, each in 0 .. 2**64 - 1."""
        return tuple([value & _MASK for value in self._sums])

    def total(self) -> int:
        """One number for the whole set: the sum of all buckets mod 2**64."""
        return sum(self._sums) & _MASK

    def differing(self, buckets: Sequence[int]) -> tuple[int, ...]:
        """Indices of the buckets that are not as given (256 reduced sums)."""
        return tuple(
            [i for i, (mine, theirs) in enumerate(zip(self._sums, buckets, strict=True)) if mine & _MASK != theirs]
        )
