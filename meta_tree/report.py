"""What the view shows of itself: sums per group and worker, and a bounded drawing of its trees.

Keeps true: only hashes and counts appear, and no more branches than asked for. Does not change anything.
"""

from __future__ import annotations

from trieway.meta_tree.holders import indices_of
from trieway.meta_tree.holding import Holding
from trieway.meta_tree.tree import Tree

BRANCHES_MAX = 1000


def group_summary(tree: Tree, speculations: int) -> dict[str, int]:
    """`nodes` are distinct blocks, `blocks` their holdings summed over workers and tiers."""
    return {
        "nodes": len(tree.rows),
        "blocks": sum([holding.blocks for holding in tree.holdings.values()]),
        "bytes": tree.bytes,
        "speculations": speculations,
    }


def worker_summary(holding: Holding) -> dict[str, object]:
    """`dropped_blocks`: what the worker holds and the view let go of for its budget, on top of `blocks`."""
    return {
        "group": holding.group,
        "blocks": holding.blocks,
        "dropped_blocks": holding.dropped_blocks,
        "approximate": holding.approximate,
        "digest": f"{holding.digest.total():016x}",
    }


def branches(tree: Tree, depth: int, branches_max: int) -> list[dict[str, object]]:
    """The tree's top, `depth` branches deep and `branches_max` in all. One scan of the tree, whatever the depth.

    A branch is a run of blocks without a fork, held by the same workers: {hash (of its first block), blocks, usable (of
    its last block), workers, forks (branches that follow, shown or not), children}.
    """
    children: dict[int, list[int]] = {}
    for row in tree.rows.table.values():
        if tree.rows.children[row] or not tree.sets.is_empty(tree.rows.sets[row]):
            children.setdefault(tree.rows.parents[row], []).append(row)
    return _level(tree, children, 0, depth, [branches_max])


def _level(
    tree: Tree, children: dict[int, list[int]], parent: int, depth: int, left: list[int]
) -> list[dict[str, object]]:
    """`left` is the number of branches that may still be drawn, shared by all levels."""
    drawn: list[dict[str, object]] = []
    for row in children.get(parent, ()) if depth > 0 else ():
        if left[0] <= 0:
            break
        left[0] -= 1
        drawn.append(_branch(tree, children, row, depth, left))
    return drawn


def _branch(tree: Tree, children: dict[int, list[int]], row: int, depth: int, left: list[int]) -> dict[str, object]:
    rows, first, blocks = tree.rows, row, 1
    while len(children.get(row, ())) == 1 and rows.sets[children[row][0]] == rows.sets[row]:
        row = children[row][0]
        blocks += 1
    return {
        "hash": f"{rows.hashes[first]:016x}",
        "blocks": blocks,
        "usable": rows.usable[row],
        "workers": [tree.holdings[index].worker for index in indices_of(tree.sets.reach[rows.sets[row]][-1])],
        "forks": len(children.get(row, ())),
        "children": _level(tree, children, row, depth - 1, left),
    }
