"""The router's view: which worker holds which prefix, one tree per group, within a byte budget.

Keeps true: `match` is one walk for all workers and writes nothing; a dropped worker's blocks vanish at once; memory
stays under `tree_bytes_max` by letting go of the coldest leaves, which digests go on counting so that drift keeps its
meaning. Does not know the feed's numbers (subscriber.py), prompts, nor clocks: time comes in with `touch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trieway.meta_tree.digest import Digest
from trieway.meta_tree.events import Cleared, Removed, Replaced, Stored, ViewEvent
from trieway.meta_tree.holding import HOLDING_BYTES, Holding
from trieway.meta_tree.ids import GroupId, Tier, WorkerId
from trieway.meta_tree.matching import NOTHING, Held, walk
from trieway.meta_tree.report import BRANCHES_MAX, branches, group_summary, worker_summary
from trieway.meta_tree.speculation import Speculations
from trieway.meta_tree.tree import Tree

__all__ = ["Held", "View"]

TREE_BYTES_MAX = 256 * 1024 * 1024
LEARNED_BLOCKS_MAX = 65_536
SWEEP_ROWS = 512
"""Rows looked at per applied event, beyond two per block of it, while a dropped worker's rows are swept."""


class View:
    """Workers must be added before anything is said of them: an unknown one is our bug (KeyError)."""

    def __init__(self, tree_bytes_max: int = TREE_BYTES_MAX, learned_blocks_max: int = LEARNED_BLOCKS_MAX) -> None:
        self.tree_bytes_max = tree_bytes_max
        self._learned_blocks_max = learned_blocks_max
        self._workers: dict[WorkerId, Holding] = {}
        self._trees: dict[GroupId, Tree] = {}
        self._speculations: dict[GroupId, Speculations] = {}
        self._ticket_groups: dict[int, GroupId] = {}
        self._now = 0.0
        self.dropped_blocks_total = 0
        """Holdings let go of for the budget since the start."""

    # -- workers

    def add_worker(self, worker: WorkerId, group: GroupId, approximate: bool = False) -> None:
        """`approximate`: it has no feed, the view learns from routing history and says so."""
        assert worker not in self._workers
        taken = {holding.index for holding in self._workers.values()}
        index = next(index for index in range(len(taken) + 1) if index not in taken)
        holding = Holding(worker, group, index, approximate)
        self._workers[worker] = holding
        tree = self._trees.setdefault(group, Tree())
        tree.holdings[index] = holding
        self._speculations.setdefault(group, Speculations())
        self._make_room(tree, 0)

    def drop_worker(self, worker: WorkerId) -> None:
        """All that it held vanishes at once. Unknown workers are fine: dropping twice is."""
        holding = self._workers.pop(worker, None)
        if holding is None:
            return
        tree = self._trees[holding.group]
        tree.strip(holding)
        del tree.holdings[holding.index]
        self._speculations[holding.group].retire_worker(worker)
        if not tree.holdings:
            del self._trees[holding.group], self._speculations[holding.group]

    def reset_worker(self, worker: WorkerId) -> None:
        """It holds nothing: a new epoch, a snapshot about to come, a cleared cache."""
        holding = self._workers[worker]
        if holding.blocks:
            self._trees[holding.group].strip(holding)
        holding.clear()

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(self._workers)

    # -- what workers say

    def apply(self, worker: WorkerId, event: ViewEvent) -> int:
        """Applies one event; returns how many blocks it changed (for a Replaced: how many were wrong)."""
        holding = self._workers[worker]
        tree = self._trees[holding.group]
        match event:
            case Stored():
                changed = tree.store(holding, event, self._now)
                self._make_room(tree, len(event.hashes))
            case Removed():
                changed = tree.remove(holding, event)
                self._make_room(tree, len(event.hashes))
            case Replaced():
                changed = tree.replace(holding, event.indices, event.events, self._now)
                self._make_room(tree, changed)
            case Cleared():
                changed = holding.blocks
                self.reset_worker(worker)
        return changed

    def learn(self, worker: WorkerId, hashes: Sequence[int], usable: Sequence[int]) -> None:
        """A worker without a feed has served this path, so it probably holds it. Bounded; the oldest go first."""
        holding = self._workers[worker]
        assert holding.approximate
        tree = self._trees[holding.group]
        hashes = hashes[: self._learned_blocks_max]
        tree.store_run(holding, 0, hashes, usable[: len(hashes)], Tier.DEVICE, self._now)
        learned = holding.learned
        for block in reversed(hashes):  # the deepest becomes the oldest, so that paths shrink from their end
            learned.pop(block, None)
            learned[block] = None
        excess = len(learned) - self._learned_blocks_max
        if excess > 0:
            oldest = [block for block, _ in zip(learned, range(excess), strict=False)]
            for block in oldest:
                del learned[block]
            tree.remove(holding, Removed(namespace_id=0, hashes=tuple(oldest)))
        self._make_room(tree, len(hashes))

    def sweep(self, rows_max: int = 16 * SWEEP_ROWS) -> None:
        """Frees rows of dropped workers, a bounded step per group. Applying does so too; an idle router calls this."""
        for tree in self._trees.values():
            tree.sweep(rows_max)

    def _make_room(self, tree: Tree, blocks: int) -> None:
        if tree.sweeping:
            tree.sweep(SWEEP_ROWS + 2 * blocks)
        excess = self.bytes - self.tree_bytes_max
        while excess > 0:
            coldest = self._coldest_tree()
            if coldest is None:
                return
            before = coldest.bytes
            if coldest.sweeping:
                coldest.sweep(SWEEP_ROWS)
            else:
                self.dropped_blocks_total += coldest.drop_coldest()
            excess -= before - coldest.bytes

    def _coldest_tree(self) -> Tree | None:
        """A tree with rows of dropped workers left in it, else the one with the coldest leaf."""
        found: tuple[float, Tree] | None = None
        for tree in self._trees.values():
            if tree.sweeping:
                return tree
            coldest = tree.rows.coldest()
            if coldest is not None and (found is None or coldest[0] < found[0]):
                found = (coldest[0], tree)
        return None if found is None else found[1]

    # -- what the router asks

    def match(self, group: GroupId, hashes: Sequence[int]) -> dict[WorkerId, Held]:
        """Per worker of the group what it holds, and will hold, of this path; workers with nothing are left out."""
        tree = self._trees.get(group)
        if tree is None:
            return {}
        matched = {tree.holdings[index].worker: held for index, held in walk(tree, hashes).items()}
        for name, reach in self._speculations[group].reach(hashes).items():
            worker = WorkerId(name)
            held = matched.get(worker, NOTHING)
            if reach.blocks > held.blocks:
                matched[worker] = Held(held.usable, held.blocks, reach.usable, reach.ticket)
        return matched

    def touch(self, group: GroupId, hashes: Sequence[int], now: float) -> None:
        """The path was used at `now`: its blocks are dropped after those of colder paths. Time moves only forward."""
        self._now = max(self._now, now)
        tree = self._trees.get(group)
        if tree is not None:
            row = tree.rows.deepest(hashes)
            tree.rows.touched[row] = self._now

    # -- speculation

    def speculate(self, ticket: int, worker: WorkerId, hashes: Sequence[int], usable: Sequence[int]) -> None:
        """A request on this path was sent to `worker`: siblings may follow it until the ticket is retired.

        `usable` has one number per hash; any sequence will do, it is read at one place per look-up and kept as it is.
        """
        group = self._workers[worker].group
        self._speculations[group].add(ticket, worker, hashes, usable)
        self._ticket_groups[ticket] = group
        self._make_room(self._trees[group], 0)

    def retire(self, ticket: int) -> None:
        """Unknown tickets are fine: a worker that goes takes its tickets along."""
        group = self._ticket_groups.pop(ticket, None)
        if group in self._speculations:
            self._speculations[group].retire(ticket)

    # -- accounts

    def digest(self, worker: WorkerId) -> Digest:
        """The digest of all that the worker is believed to hold. Live: it changes as events are applied."""
        return self._workers[worker].digest

    def blocks(self, worker: WorkerId) -> int:
        """Blocks of this worker in the view, each tier counted."""
        return self._workers[worker].blocks

    @property
    def bytes(self) -> int:
        """Estimated memory of trees, workers and speculation."""
        return (
            sum([tree.bytes for tree in self._trees.values()])
            + sum([guess.bytes for guess in self._speculations.values()])
            + len(self._workers) * HOLDING_BYTES
        )

    def summary(self) -> dict[str, object]:
        """JSON values: bytes, bytes_max, nodes, blocks, dropped_blocks_total, and the like per group and worker."""
        groups = {group: group_summary(tree, len(self._speculations[group])) for group, tree in self._trees.items()}
        return {
            "bytes": self.bytes,
            "bytes_max": self.tree_bytes_max,
            "nodes": sum([len(tree.rows) for tree in self._trees.values()]),
            "blocks": sum([holding.blocks for holding in self._workers.values()]),
            "dropped_blocks_total": self.dropped_blocks_total,
            "groups": groups,
            "workers": {name: worker_summary(holding) for name, holding in self._workers.items()},
        }

    def dump(self, depth: int, branches_max: int = BRANCHES_MAX) -> dict[GroupId, list[dict[str, object]]]:
        """The upper part of every tree as JSON values, `depth` branches deep: hashes (hex) and counts only."""
        return {group: branches(tree, depth, branches_max) for group, tree in self._trees.items()}

    def check(self) -> None:
        """Proves the conservation sums of every tree and that workers, trees and tickets agree."""
        for tree in self._trees.values():
            tree.check()
        for guess in self._speculations.values():
            guess.check()
        assert set(self._trees) == set(self._speculations) == {holding.group for holding in self._workers.values()}
        held = [holding for tree in self._trees.values() for holding in tree.holdings.values()]
        assert len(held) == len(self._workers)
        assert len({holding.index for holding in held}) == len(held)
        for holding in held:
            assert self._workers[holding.worker] is holding
            assert self._trees[holding.group].holdings[holding.index] is holding
            assert len(holding.learned) <= self._learned_blocks_max
