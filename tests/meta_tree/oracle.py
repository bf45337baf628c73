"""Brute-force oracles: what the view, a digest and a chain are *meant* to say, written for plainness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trieway.meta_tree.digest import mix
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.meta_tree.ids import Tier

TEXT_ALPHABET = 3
DEPTH = 6


def chain_hash(path: Sequence[int]) -> int:
    """A stand-in for a block hash that spreads over few buckets and depends on the whole path."""
    word = 0x51ED270B
    for step in path:
        word = (word * 0x9E3779B97F4A7C15 + step + 1) % 2**64
        word ^= word >> 31
    return (word % 5) << 56 | word >> 8


def chain_hashes(path: Sequence[int]) -> list[int]:
    return [chain_hash(path[: end + 1]) for end in range(len(path))]


class Holdings:
    """(hash, tier) -> usable, for one worker."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def apply(self, event: Stored | Removed | Cleared) -> None:
        match event:
            case Stored():
                self.held.update({(h, event.tier): u for h, u in zip(event.hashes, event.usable, strict=True)})
            case Removed():
                for block in event.hashes:
                    self.held.pop((block, event.tier), None)
            case Cleared():
                self.held.clear()

    def buckets(self) -> tuple[int, ...]:
        sums = [0] * 256
        for (block, tier), usable in self.held.items():
            sums[block >> 56] = (sums[block >> 56] + mix(block, tier, usable)) % 2**64
        return tuple(sums)

    def match(self, hashes: Sequence[int]) -> tuple[tuple[int, int, int], int]:
        """(usable per reach, blocks on any tier)."""
        usable, depth = [0, 0, 0], 0
        for reach in range(len(Tier)):
            depth = 0
            for block in hashes:
                counts = [self.held[block, tier] for tier in range(reach + 1) if (block, tier) in self.held]
                if not counts:
                    break
                depth += 1
                usable[reach] = max(counts)
            if reach:
                usable[reach] = max(usable[reach], usable[reach - 1])
        return (usable[0], usable[1], usable[2]), depth


def total(holdings: Iterable[Holdings]) -> int:
    return sum(len(holding.held) for holding in holdings)
