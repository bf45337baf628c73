"""How far every worker holds a path: one walk for all of them.

Keeps true: a worker's figure is that of its longest run of blocks from the path's start, with no hole; nothing is
written. Costs two lookups and a comparison per block; workers are looked at only where the set of holders changes. Does
not know speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from trieway.meta_tree.holders import indices_of
from trieway.meta_tree.ids import TIERS
from trieway.meta_tree.tree import Tree


class Held(NamedTuple):
    """What one worker holds of a path. A NamedTuple: made per worker and request, it costs a third of a dataclass."""

    usable: tuple[int, int, int]
    """Tokens reusable from the device; from device or host; from any tier. Never falling."""
    blocks: int
    """Blocks from the start without a hole, each on some tier."""
    speculative_usable: int = 0
    """Tokens that dispatched requests will have left there; 0 if that is no deeper than `blocks`."""
    ticket: int | None = None
    """The dispatched request that reaches deepest."""


NOTHING = Held((0, 0, 0), 0)


def walk(tree: Tree, hashes: Sequence[int]) -> dict[int, Held]:
    """Worker index -> what it holds of the path; workers that hold nothing of it are left out."""
    depths: dict[int, list[int]] = {}
    for level, mask, depth in _losses(tree, hashes):
        for index in indices_of(mask):
            depths.setdefault(index, [0, 0, 0])[level] = depth
    held: dict[int, Held] = {}
    for index, (near, host, external) in depths.items():
        first = _best(tree, hashes, near, index, 0)
        second = first if host == near else max(first, _best(tree, hashes, host, index, 1))
        third = second if external == host else max(second, _best(tree, hashes, external, index, 2))
        held[index] = Held((first, second, third), external)
    return held


def _losses(tree: Tree, hashes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(reach, workers, depth): at `depth` these workers' runs end, counting tiers up to `reach`."""
    reach = tree.sets.reach
    losses: list[tuple[int, int, int]] = []
    near = host = external = -1  # everybody, until the first block tells who is there at all
    last = -1
    depth = 0
    # Row 0 is what an unknown hash finds; its set is empty, so the walk ends there by itself.
    for set_id in map(tree.rows.sets.__getitem__, map(tree.rows.table.get, hashes, repeat(0))):
        if set_id != last:
            last = set_id
            near_here, host_here, external_here = reach[set_id]
            if depth:
                if near & ~near_here:
                    losses.append((0, near & ~near_here, depth))
                if host & ~host_here:
                    losses.append((1, host & ~host_here, depth))
                if external & ~external_here:
                    losses.append((2, external & ~external_here, depth))
            near &= near_here
            host &= host_here
            external &= external_here
            if not external:
                return losses
        depth += 1
    if depth:
        losses += [(0, near, depth), (1, host, depth), (2, external, depth)]
    return losses


def _best(tree: Tree, hashes: Sequence[int], depth: int, index: int, level: int) -> int:
    """The most tokens that the block at `depth` allows one worker, from tiers up to `level`."""
    if not depth:
        return 0
    row = tree.rows.table[hashes[depth - 1]]
    own = tree.overrides.get(row)
    if own is None:
        return tree.rows.usable[row]
    masks = tree.sets.masks[tree.rows.sets[row]]
    common = tree.rows.usable[row]
    return max(own.get((index, tier), common) for tier in range(min(level + 1, TIERS)) if masks[tier] >> index & 1)
