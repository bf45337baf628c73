"""One group's tree of blocks and who holds them: applying events, dropping the coldest leaves.

Keeps true: a block's row names all its holders; `usable` is kept once per block, and per holder only where holders
differ; every change of a holding is counted in its digest exactly once. Does not know other groups, speculation or the
budget's size (view.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from trieway.meta_tree.digest import Digest
from trieway.meta_tree.events import Removed, Stored
from trieway.meta_tree.holders import EMPTY, HolderSets, indices_of
from trieway.meta_tree.holding import Holding
from trieway.meta_tree.ids import TIERS
from trieway.meta_tree.rows import ROW_BYTES, Rows

_SET_BYTES = 512
_OVERRIDE_BYTES = 320


class Tree:
    __slots__ = ("_sweep_at", "holdings", "overrides", "rows", "sets")

    def __init__(self) -> None:
        self.rows = Rows()
        self.sets = HolderSets()
        # row -> (worker index, tier) -> usable, where it is not the row's own number
        self.overrides: dict[int, dict[tuple[int, int], int]] = {}
        self.holdings: dict[int, Holding] = {}
        self._sweep_at = 0

    @property
    def bytes(self) -> int:
        return len(self.rows) * ROW_BYTES + len(self.sets) * _SET_BYTES + len(self.overrides) * _OVERRIDE_BYTES

    # -- storing

    def store(self, holding: Holding, event: Stored, now: float) -> int:
        """Applies a run; returns how many blocks it changed."""
        parent = 0
        if event.hashes and event.parent != event.namespace_id:
            parent = self.rows.table.get(event.parent, 0) or self._place(event.parent, now)
        changed = self.store_run(holding, parent, event.hashes, event.usable, event.tier, now)
        self._prune(parent)  # a placed parent whose child turned out to have another one
        return changed

    def _place(self, block: int, now: float) -> int:
        """A row that nobody holds, for a parent that is not known (dropped for room, or not told yet)."""
        self.rows.add_run((block,), (0,), 0, EMPTY, now)
        return self.rows.table[block]

    def store_run(
        self, holding: Holding, parent: int, hashes: Sequence[int], usable: Sequence[int], tier: int, now: float
    ) -> int:
        """Blocks under the row `parent` (0: a namespace's start), held by one worker on one tier from now on."""
        table = self.rows.table
        changed = at = 0
        while at < len(hashes):
            if hashes[at] in table:
                end, held = self._hold_run(holding, parent, hashes, usable, at, tier)
                changed += held
            else:
                end = self._new_run(holding, parent, hashes, usable, at, tier, now)
                changed += end - at
            parent, at = table[hashes[end - 1]], end
        return changed

    def _new_run(
        self,
        holding: Holding,
        parent: int,
        hashes: Sequence[int],
        usable: Sequence[int],
        at: int,
        tier: int,
        now: float,
    ) -> int:
        """Adds the unknown blocks from `at` on, up to a known one (or one said twice); returns where they end."""
        table = self.rows.table
        end, count = at + 1, len(hashes)
        while end < count and hashes[end] not in table:
            end += 1
        if at or end < count:
            hashes, usable = hashes[at:end], usable[at:end]
        if len(set(hashes)) < len(hashes):  # no chain of hashes does that: take one by one, it stays a forest
            hashes, usable, end = hashes[:1], usable[:1], at + 1
        set_id = self.sets.with_bit(EMPTY, tier, holding.bit)
        self.sets.move(EMPTY, set_id, len(hashes))
        self.rows.add_run(hashes, usable, parent, set_id, now)
        holding.digest.add_run(hashes, tier, usable)
        holding.blocks += len(hashes)
        return end

    def _hold_run(
        self, holding: Holding, parent: int, hashes: Sequence[int], usable: Sequence[int], at: int, tier: int
    ) -> tuple[int, int]:
        """Takes hold of the known blocks from `at` on; returns where they end and how many of them changed.

        Neighbours mostly go from one and the same set to another: `old` and `new` remember the last such step.
        """
        rows, sets, overrides = self.rows, self.sets, self.overrides
        set_of, usable_of, parents, get = rows.sets, rows.usable, rows.parents, rows.table.get
        old = new = EMPTY
        joined: list[int] = []
        counts: list[int] = []
        moved = changed = 0
        while at < len(hashes):
            block = hashes[at]
            row = get(block)
            if row is None:
                break
            if parent and not parents[row]:
                rows.adopt(row, parent)
            count, set_id = usable[at], set_of[row]
            if set_id == old and old and usable_of[row] == count and row not in overrides:
                set_of[row] = new
                moved += 1
                joined.append(block)
                counts.append(count)
            else:
                sets.move(old, new, moved)
                changed += self._hold(holding, row, tier, count)
                old, new, moved = set_id, set_of[row], 0
                if old == new or not sets.counts[old]:
                    old = EMPTY  # no step to repeat
            parent = row
            at += 1
        sets.move(old, new, moved)
        holding.digest.add_run(joined, tier, counts)
        holding.blocks += len(joined)
        return at, changed + len(joined)

    def _hold(self, holding: Holding, row: int, tier: int, usable: int) -> int:
        rows, sets = self.rows, self.sets
        set_id = rows.sets[row]
        block = rows.hashes[row]
        if sets.masks[set_id][tier] & holding.bit:
            old = self.usable_of(row, holding.index, tier)
            if old == usable:
                return 0
            holding.digest.remove(block, tier, old)
        else:
            grown = sets.with_bit(set_id, tier, holding.bit)
            sets.move(set_id, grown)
            rows.sets[row] = grown
            holding.blocks += 1
        self._set_usable(row, holding.index, tier, usable)
        holding.digest.add(block, tier, usable)
        return 1

    def usable_of(self, row: int, index: int, tier: int) -> int:
        own = self.overrides.get(row)
        return self.rows.usable[row] if own is None else own.get((index, tier), self.rows.usable[row])

    def _set_usable(self, row: int, index: int, tier: int, usable: int) -> None:
        own = self.overrides.get(row)
        if sum(self.sets.masks[self.rows.sets[row]]) == 1 << index:  # the only holding: the row's number is its number
            self.rows.usable[row] = usable
            self.overrides.pop(row, None)
        elif self.rows.usable[row] != usable:
            if own is None:
                own = self.overrides[row] = {}
            own[index, tier] = usable
        elif own is not None:
            self._drop_override(row, own, index, tier)

    def _drop_override(self, row: int, own: dict[tuple[int, int], int], index: int, tier: int) -> None:
        own.pop((index, tier), None)
        if not own:
            del self.overrides[row]

    # -- removing

    def remove(self, holding: Holding, event: Removed) -> int:
        """Applies a removal; returns how many blocks it changed. Repeats steps between sets as `_hold_run` does."""
        rows, sets, overrides = self.rows, self.sets, self.overrides
        masks, set_of, usable_of, children, get = sets.masks, rows.sets, rows.usable, rows.children, rows.table.get
        tier, bit = event.tier, holding.bit
        old = new = EMPTY
        left: list[int] = []
        counts: list[int] = []
        moved = changed = 0
        for at, block in enumerate(event.hashes):
            row = get(block)
            set_id = EMPTY if row is None else set_of[row]
            if row is None or not masks[set_id][tier] & bit:
                changed += bool(event.usable) and holding.undrop(block, tier, event.usable[at])
            elif set_id == old and row not in overrides:
                left.append(block)
                counts.append(usable_of[row])
                set_of[row] = new
                moved += 1
                if not new and not children[row]:
                    self._prune(row)
            else:
                sets.move(old, new, moved)
                new = self._release(holding, row, tier)
                old, moved = set_id if sets.counts[set_id] else EMPTY, 0
                changed += 1
        sets.move(old, new, moved)
        holding.digest.remove_run(left, tier, counts)
        holding.blocks -= len(left)
        return changed + len(left)

    def _release(self, holding: Holding, row: int, tier: int) -> int:
        """One worker lets go of one block on a tier; returns the set of those who are left."""
        holding.digest.remove(self.rows.hashes[row], tier, self.usable_of(row, holding.index, tier))
        holding.blocks -= 1
        own = self.overrides.get(row)
        if own is not None:
            self._drop_override(row, own, holding.index, tier)
        set_id = self.rows.sets[row]
        shrunk = self.sets.without_bit(set_id, tier, holding.bit)
        self.sets.move(set_id, shrunk)
        self.rows.sets[row] = shrunk
        self._prune(row)
        return shrunk

    def _prune(self, row: int) -> None:
        """Frees a leaf that nobody holds, then its parents while they are such leaves too."""
        rows = self.rows
        while row and not rows.children[row] and self.sets.is_empty(rows.sets[row]):
            set_id = rows.sets[row]
            if set_id != EMPTY:  # a set emptied by `strip`
                self.sets.move(set_id, EMPTY)
            row = rows.free(row)

    def rows_of(self, holding: Holding, buckets: frozenset[int] | None = None) -> list[int]:
        """The rows that one worker holds, all or those in some digest buckets. A scan of the whole tree."""
        reach, sets, bit = self.sets.reach, self.rows.sets, holding.bit
        return [
            row
            for block, row in self.rows.table.items()
            if (buckets is None or block >> 56 in buckets) and reach[sets[row]][-1] & bit
        ]

    def replace(self, holding: Holding, indices: Sequence[int], events: Sequence[Stored], now: float) -> int:
        """Makes the events the whole content of these digest buckets; returns how many blocks were wrong."""
        told = {(block, event.tier) for event in events for block in event.hashes}
        changed = 0
        for index in indices:
            changed -= holding.forget_dropped(index)
        for row in self.rows_of(holding, frozenset(indices)):
            block, masks = self.rows.hashes[row], self.sets.masks[self.rows.sets[row]]
            for tier in range(TIERS):
                if masks[tier] & holding.bit and (block, tier) not in told:
                    self._release(holding, row, tier)
                    changed += 1
        for event in events:
            changed += self.store(holding, event, now)
        return max(0, changed)

    # -- workers that go, and room

    def strip(self, holding: Holding) -> None:
        """All that a worker holds vanishes at once: from match and counts now, from memory as `sweep` comes by."""
        self.sets.strip(holding.bit)
        self._sweep_at = 1
        index = holding.index
        for row in [row for row, own in self.overrides.items() if any(who == index for who, _ in own)]:
            own = self.overrides[row]
            for tier in range(TIERS):
                own.pop((index, tier), None)
            if not own:
                del self.overrides[row]

    @property
    def sweeping(self) -> bool:
        return self._sweep_at != 0

    def sweep(self, rows_max: int) -> None:
        """Frees rows that nobody holds since a `strip`, looking at so many rows at most."""
        if not self._sweep_at:
            return
        rows, is_empty = self.rows, self.sets.is_empty
        end = min(self._sweep_at + rows_max, rows.capacity)
        for row in range(self._sweep_at, end):
            if not rows.children[row] and is_empty(rows.sets[row]):
                self._prune(row)
        self._sweep_at = end if end < rows.capacity else 0

    def drop_coldest(self) -> int:
        """Lets go of the coldest leaf; its holders' digests go on counting it. Returns how many holdings that were."""
        coldest = self.rows.coldest()
        if coldest is None:
            return 0
        row = coldest[1]
        set_id, block = self.rows.sets[row], self.rows.hashes[row]
        dropped = 0
        for tier, mask in enumerate(self.sets.masks[set_id]):
            for index in indices_of(mask):
                holding = self.holdings[index]
                holding.drop(block, tier, self.usable_of(row, index, tier))
                dropped += 1
        self.overrides.pop(row, None)
        self.sets.move(set_id, EMPTY)
        self.rows.sets[row] = EMPTY
        self._prune(row)
        return dropped

    def check(self) -> None:
        """Proves: rows point at live sets in the counted numbers, digests and block counts are those of the rows."""
        self.rows.check()
        self.sets.check()
        counts = [0] * len(self.sets.counts)
        for row in self.rows.table.values():
            counts[self.rows.sets[row]] += 1
        assert counts[1:] == self.sets.counts[1:]
        for row, own in self.overrides.items():
            assert self.rows.in_use(row)
            masks = self.sets.masks[self.rows.sets[row]]
            assert own
            assert all(masks[tier] >> index & 1 for index, tier in own)
        if not self.sweeping:
            for row in self.rows.table.values():
                assert self.rows.children[row] or not self.sets.is_empty(self.rows.sets[row])
        for holding in self.holdings.values():
            self._check_holding(holding)

    def _check_holding(self, holding: Holding) -> None:
        digest = Digest()
        blocks = 0
        for row in self.rows_of(holding):
            for tier, mask in enumerate(self.sets.masks[self.rows.sets[row]]):
                if mask & holding.bit:
                    digest.add(self.rows.hashes[row], tier, self.usable_of(row, holding.index, tier))
                    blocks += 1
        digest.merge(holding.dropped)
        assert not holding.digest.differing(digest.buckets())
        assert blocks == holding.blocks
        assert holding.dropped_blocks == sum(holding.dropped_counts)
        assert min(holding.dropped_counts) >= 0
