"""Interned sets of holders: who holds a block, on which tier, as one small number.

Keeps true: blocks held by the same workers on the same tiers mostly share one set, so a walk compares two small
integers per block, and a dead worker is taken out of all sets at once, whatever the number of blocks it held. Does not
know blocks: it counts how many rows point at each set and frees a set at zero.
"""

from __future__ import annotations

from trieway.meta_tree.ids import TIERS

EMPTY = 0
"""The set that nobody is in. After `strip` other ids may be empty too: ask `is_empty`."""

_NOBODY = (0,) * TIERS


class HolderSets:
    """`masks[id]` has one integer per tier, bit i for the worker of index i; `reach[id]` sums them up to each tier."""

    __slots__ = ("_free", "_ids", "counts", "masks", "reach")

    def __init__(self) -> None:
        self.masks: list[tuple[int, ...]] = [_NOBODY]
        self.reach: list[tuple[int, ...]] = [_NOBODY]
        self.counts: list[int] = [0]
        self._ids: dict[tuple[int, ...], int] = {_NOBODY: EMPTY}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.masks) - len(self._free)

    def is_empty(self, set_id: int) -> bool:
        return not self.reach[set_id][-1]

    def with_bit(self, set_id: int, tier: int, bit: int) -> int:
        masks = self.masks[set_id]
        return self._intern((*masks[:tier], masks[tier] | bit, *masks[tier + 1 :]))

    def without_bit(self, set_id: int, tier: int, bit: int) -> int:
        masks = self.masks[set_id]
        return self._intern((*masks[:tier], masks[tier] & ~bit, *masks[tier + 1 :]))

    def _intern(self, masks: tuple[int, ...]) -> int:
        """The id of these masks. A new one counts no rows yet: `move` must follow before the next call."""
        found = self._ids.get(masks)
        if found is not None:
            return found
        reach = _reach(masks)
        if self._free:
            set_id = self._free.pop()
            self.masks[set_id], self.reach[set_id] = masks, reach
        else:
            set_id = len(self.masks)
            self.masks.append(masks)
            self.reach.append(reach)
            self.counts.append(0)
        self._ids[masks] = set_id
        return set_id

    def move(self, old: int, new: int, rows: int = 1) -> None:
        """`rows` rows go from one set to another (EMPTY stands for: from or to nothing)."""
        counts = self.counts
        if new != EMPTY:
            counts[new] += rows
        if old != EMPTY:
            counts[old] -= rows
            if not counts[old]:
                self._release(old)

    def _release(self, set_id: int) -> None:
        masks = self.masks[set_id]
        if self._ids.get(masks) == set_id and set_id != EMPTY:
            del self._ids[masks]
        self.masks[set_id] = self.reach[set_id] = _NOBODY
        self._free.append(set_id)

    def strip(self, bit: int) -> None:
        """Takes one worker out of every set.

        Sets that have become equal stay two ids: harmless, and telling their rows apart is not worth a pass over them.
        """
        for set_id, reach in enumerate(self.reach):
            if not reach[-1] & bit:
                continue
            old = self.masks[set_id]
            if self._ids.get(old) == set_id:
                del self._ids[old]
            masks = tuple([mask & ~bit for mask in old])
            self.masks[set_id], self.reach[set_id] = masks, _reach(masks)
            self._ids.setdefault(masks, set_id)

    def check(self) -> None:
        """Proves: ids and masks agree, every live set has rows, every freed one has none."""
        free = set(self._free)
        assert len(free) == len(self._free)
        assert EMPTY not in free
        for masks, set_id in self._ids.items():
            assert set_id not in free
            assert self.masks[set_id] == masks
        for set_id, masks in enumerate(self.masks):
            assert self.reach[set_id] == _reach(masks)
            assert (self.counts[set_id] > 0) == (set_id != EMPTY and set_id not in free)
            assert set_id not in free or masks == _NOBODY


def _reach(masks: tuple[int, ...]) -> tuple[int, ...]:
    near, host, external = masks
    return (near, near | host, near | host | external)


def indices_of(mask: int) -> list[int]:
    """The indices of a mask's bits, lowest first."""
    found: list[int] = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
