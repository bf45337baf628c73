"""What the view does, case by case: reach per tier, groups, budget order, approximate workers, what it shows."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from array import array

import pytest

from tests.meta_tree.oracle import chain_hashes
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.meta_tree.holding import HOLDING_BYTES
from trieway.meta_tree.ids import GroupId, Tier, WorkerId
from trieway.meta_tree.rows import ROW_BYTES, Rows
from trieway.meta_tree.view import Held, View

G = GroupId("g")
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
ROOT = 5
PATH = chain_hashes([0, 1, 2, 0, 1, 2, 0, 1])


def stored(hashes: list[int], first_usable: int = 16, tier: Tier = Tier.DEVICE, parent: int = ROOT) -> Stored:
    usable = tuple(first_usable + 16 * at for at in range(len(hashes)))
    return Stored(namespace_id=ROOT, parent=parent, hashes=tuple(hashes), usable=usable, tier=tier)


def removed(hashes: list[int], tier: Tier = Tier.DEVICE) -> Removed:
    return Removed(namespace_id=ROOT, hashes=tuple(hashes), tier=tier)


def view_of(*workers: WorkerId, **bounds: int) -> View:
    view = View(**bounds)
    for worker in workers:
        view.add_worker(worker, G)
    return view


def fresh_path(rng: random.Random, length: int) -> list[int]:
    return [rng.getrandbits(64) for _ in range(length)]


def test_one_walk_tells_every_worker() -> None:
    view = view_of(A, B, C)
    view.apply(A, stored(PATH))
    view.apply(B, stored(PATH[:3]))
    assert view.match(G, PATH) == {A: Held((128, 128, 128), 8), B: Held((48, 48, 48), 3)}
    assert view.match(G, PATH[:2]) == {A: Held((32, 32, 32), 2), B: Held((32, 32, 32), 2)}
    assert view.match(G, []) == {}
    assert view.match(G, [1, 2, 3]) == {}
    assert view.match(GroupId("never seen"), PATH) == {}


def test_tiers_reach_further_together() -> None:
    view = view_of(A)
    view.apply(A, stored(PATH[:2]))
    view.apply(A, stored(PATH[2:4], 48, Tier.HOST, PATH[1]))
    view.apply(A, stored(PATH[4:5], 80, Tier.EXTERNAL, PATH[3]))
    view.apply(A, stored(PATH[5:6], 96, Tier.DEVICE, PATH[4]))
    assert view.match(G, PATH)[A] == Held((32, 64, 96), 6)
    assert view.blocks(A) == 6


def test_a_block_on_two_tiers_is_counted_on_both_and_leaves_one_by_one() -> None:
    view = view_of(A)
    view.apply(A, stored(PATH[:2]))
    view.apply(A, stored(PATH[:2], 10, Tier.HOST))
    assert view.blocks(A) == 4
    assert view.match(G, PATH)[A].usable == (32, 32, 32), "the host copy counts less, the device copy is taken"
    view.apply(A, removed(PATH[:2]))
    assert view.match(G, PATH)[A] == Held((0, 26, 26), 2)
    view.check()


def test_a_hole_ends_a_run_and_mending_it_brings_the_rest_back() -> None:
    view = view_of(A, B)
    view.apply(A, stored(PATH))
    view.apply(B, stored(PATH[:1]))
    view.apply(A, removed(PATH[2:3]))
    assert view.match(G, PATH)[A].blocks == 2
    assert view.blocks(A) == 7
    view.apply(A, stored(PATH[2:3], 48, parent=PATH[1]))
    assert view.match(G, PATH)[A].blocks == 8


def test_blocks_may_come_before_their_parents() -> None:
    """A bucket told again comes in any order."""
    view = view_of(A)
    for at in (3, 1, 2, 0):
        view.apply(A, stored(PATH[at : at + 1], 16 * (at + 1), parent=PATH[at - 1] if at else ROOT))
        view.check()
    assert view.match(G, PATH)[A] == Held((64, 64, 64), 4)
    view.apply(A, removed(PATH[:4]))
    assert view.summary()["nodes"] == 0


def test_workers_that_count_differently_keep_their_own_numbers() -> None:
    """Another page size in the same group."""
    view = view_of(A, B)
    view.apply(A, stored(PATH[:4], 16))
    view.apply(B, stored(PATH[:4], 15))
    found = view.match(G, PATH)
    assert (found[A].usable[0], found[B].usable[0]) == (64, 63)
    view.apply(A, removed(PATH[:4]))
    assert view.match(G, PATH)[B].usable[0] == 63
    view.apply(A, stored(PATH[:4], 15))
    assert view.match(G, PATH)[A].usable[0] == 63
    view.check()


def test_groups_are_apart() -> None:
    view = view_of(A)
    other = GroupId("other")
    view.add_worker(B, other)
    view.apply(A, stored(PATH))
    view.apply(B, stored(PATH[:2], 10))
    assert set(view.match(G, PATH)) == {A}
    assert view.match(other, PATH) == {B: Held((26, 26, 26), 2)}
    view.drop_worker(B)
    assert view.match(other, PATH) == {}
    view.check()


@pytest.mark.parametrize("how", ["drop", "reset", "cleared"])
def test_a_worker_that_goes_leaves_nothing_and_the_others_alone(how: str) -> None:
    view = view_of(A, B)
    view.apply(A, stored(PATH))
    view.apply(B, stored(PATH[:5]))
    match how:
        case "drop":
            view.drop_worker(A)
            view.drop_worker(A)
        case "reset":
            view.reset_worker(A)
        case _:
            view.apply(A, Cleared())
    assert view.match(G, PATH) == {B: Held((80, 80, 80), 5)}
    view.check()
    view.sweep()
    assert view.summary()["nodes"] == 5
    if how != "drop":
        assert view.digest(A).total() == 0
        view.apply(A, stored(PATH[:1]))
        assert view.match(G, PATH)[A].blocks == 1
    view.check()


def test_a_place_given_to_another_worker_brings_no_old_blocks() -> None:
    view = view_of(A, B)
    view.apply(A, stored(PATH))
    view.apply(B, stored(PATH[:3], 15))
    view.drop_worker(B)
    view.add_worker(C, G)
    assert set(view.match(G, PATH)) == {A}
    view.apply(C, stored(PATH[:2]))
    assert view.match(G, PATH)[C] == Held((32, 32, 32), 2)
    view.check()


def test_dropping_a_worker_does_not_take_longer_for_more_blocks() -> None:
    rng = random.Random(3)
    view = view_of(A, B)
    for _ in range(50):
        view.apply(A, stored(fresh_path(rng, 1000)))
    began = time.process_time()
    view.drop_worker(A)
    assert time.process_time() - began < 0.005, "50,000 blocks, one holder set"
    while view.summary()["nodes"]:
        view.sweep(1000)
    view.check()


def test_an_empty_group_goes_with_its_last_worker() -> None:
    view = view_of(A)
    view.apply(A, stored(PATH))
    view.speculate(1, A, PATH, [1] * 8)
    view.drop_worker(A)
    view.retire(1)
    assert view.summary()["groups"] == {}
    assert view.bytes == 0


# -- malformed but possible input


def test_a_run_that_says_a_block_twice_does_not_close_a_circle() -> None:
    view = view_of(A)
    view.apply(A, stored([1, 2, 1, 3, 1]))
    view.check()
    assert view.blocks(A) == 3
    assert view.match(G, [1, 2])[A].blocks == 2


def test_a_made_up_parent_of_a_known_block_leaves_no_row_behind() -> None:
    view = view_of(A)
    view.apply(A, stored(PATH[:3]))
    view.apply(A, stored(PATH[2:4], 48, parent=99))
    view.check()
    assert view.summary()["nodes"] == 4
    assert view.match(G, PATH)[A].blocks == 4


def test_parents_in_a_circle_are_refused() -> None:
    view = view_of(A)
    view.apply(A, stored([1], parent=2))
    view.apply(A, stored([2], parent=1))
    view.apply(A, stored([3], parent=3))
    view.check()
    view.apply(A, removed([1, 2, 3]))
    view.check()
    assert view.summary()["nodes"] == 0


def test_removing_what_is_not_there_changes_nothing() -> None:
    view = view_of(A, B)
    view.apply(B, stored(PATH))
    counted = Removed(namespace_id=ROOT, hashes=tuple(PATH), usable=(16,) * 8)
    assert view.apply(A, counted) == 0
    assert view.apply(A, removed([7, 8])) == 0
    assert view.digest(A).total() == 0
    view.check()


def test_an_unknown_worker_is_our_bug() -> None:
    with pytest.raises(KeyError):
        View().apply(A, Cleared())


# -- the budget


def small(rows: int, view: View) -> View:
    view.tree_bytes_max = view.bytes + rows * ROW_BYTES + 512
    return view


def test_the_coldest_leaf_goes_first() -> None:
    view = small(12, view_of(A))
    cold, warm, hot = chain_hashes([0] * 4), chain_hashes([1] * 4), chain_hashes([2] * 4)
    for path in (hot, cold, warm):
        view.apply(A, stored(path))
    view.touch(G, cold, 1.0)
    view.touch(G, warm, 2.0)
    view.touch(G, hot, 3.0)
    extra = chain_hashes([0, 1, 0, 1, 0, 1])[2:]
    view.apply(A, stored(extra[:3], parent=extra[0] ^ 1))
    assert [view.match(G, path)[A].blocks for path in (warm, hot)] == [4, 4]
    assert view.match(G, cold).get(A, Held((0, 0, 0), 0)).blocks < 4
    view.check()


def test_leaves_go_before_their_parents_and_paths_shrink_from_their_end() -> None:
    view = view_of(A)
    view.apply(A, stored(PATH))
    for kept in range(7, -1, -1):
        view.tree_bytes_max = view.bytes - 1
        view.apply(A, removed([1]))
        assert view.match(G, PATH).get(A, Held((0, 0, 0), 0)).blocks == kept
        view.check()


def test_a_touch_of_the_deepest_block_keeps_the_whole_path_warm() -> None:
    """Ancestors inherit their last child's time, so one write per touch is enough."""
    view = view_of(A)
    long, other = chain_hashes([0] * 5), chain_hashes([1] * 5)
    view.apply(A, stored(long))
    view.apply(A, stored(other))
    view.touch(G, long, 5.0)
    view.apply(A, removed(long[4:]))
    small(5, view)
    view.tree_bytes_max = view.bytes - 4 * ROW_BYTES
    view.apply(A, removed([1]))
    assert view.match(G, long)[A].blocks == 4
    assert view.match(G, other)[A].blocks == 1


def test_time_moves_only_forward() -> None:
    view = view_of(A)
    one, two = chain_hashes([0]), chain_hashes([1])
    view.apply(A, stored(one))
    view.apply(A, stored(two))
    view.touch(G, two, 9.0)
    view.touch(G, one, 1.0)  # a late report counts as now
    view.check()
    view.touch(G, two, 10.0)
    view.tree_bytes_max = view.bytes - 1
    view.apply(A, removed([1]))
    assert set(view.match(G, two)) == {A}
    assert view.match(G, one) == {}


def test_the_budget_is_one_for_all_groups_and_takes_the_coldest_of_any() -> None:
    view = view_of(A)
    other = GroupId("other")
    view.add_worker(B, other)
    view.apply(A, stored(PATH))
    view.apply(B, stored(PATH))
    view.touch(G, PATH, 1.0)
    view.touch(other, PATH, 2.0)
    view.tree_bytes_max = view.bytes - 3 * ROW_BYTES
    view.apply(B, removed([1]))
    assert view.match(G, PATH)[A].blocks == 5
    assert view.match(other, PATH)[B].blocks == 8
    assert view.dropped_blocks_total == 3


def test_rows_of_a_dropped_worker_go_before_any_live_leaf() -> None:
    view = view_of(A, B)
    view.apply(A, stored(PATH[:4]))
    view.apply(B, stored(chain_hashes([2] * 8)))
    view.drop_worker(B)
    view.tree_bytes_max = view.bytes - 2 * ROW_BYTES
    view.apply(A, stored(PATH[4:6], 80, parent=PATH[3]))
    assert view.match(G, PATH)[A].blocks == 6
    assert view.dropped_blocks_total == 0


def test_a_long_sweep_is_finished_before_a_live_leaf_is_dropped() -> None:
    rng = random.Random(2)
    view = view_of(A, B)
    view.apply(A, stored(fresh_path(rng, 700)))
    view.apply(B, stored(fresh_path(rng, 20)))
    view.drop_worker(B)
    view.tree_bytes_max = view.bytes - 2 * ROW_BYTES
    view.apply(A, stored([1]))
    assert view.dropped_blocks_total == 0
    assert view.blocks(A) == 701
    view.check()


def test_a_budget_smaller_than_anything_still_answers() -> None:
    view = view_of(A, tree_bytes_max=1)
    view.apply(A, stored(PATH))
    assert view.match(G, PATH) == {}
    assert view.blocks(A) == 0
    assert view.digest(A).total() != 0
    view.check()


def test_bytes_are_an_honest_estimate() -> None:
    rng = random.Random(7)
    paths = [stored(fresh_path(rng, 500)) for _ in range(100)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    view = view_of(A, B)
    for path in paths:
        copy = stored([block + 0 for block in array("Q", path.hashes)])  # integers of its own, as off the wire
        view.apply(A, copy)
    del copy
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.6 < view.bytes / used < 1.5


# -- approximate workers


def test_a_worker_without_a_feed_is_learnt_from_what_it_served() -> None:
    view = View()
    view.add_worker(A, G, approximate=True)
    view.learn(A, PATH, [16 * (at + 1) for at in range(8)])
    assert view.match(G, PATH[:3])[A] == Held((48, 48, 48), 3)
    workers = view.summary()["workers"]
    assert isinstance(workers, dict)
    assert workers[A]["approximate"] is True
    view.check()


def test_learning_is_bounded_and_forgets_the_least_recent_paths_from_their_end() -> None:
    view = View(learned_blocks_max=8)
    view.add_worker(A, G, approximate=True)
    one, two, three = (chain_hashes([start] * 4) for start in range(3))
    for path in (one, two, one):
        view.learn(A, path, [16, 32, 48, 64])
    view.learn(A, three[:2], [16, 32])
    assert [view.match(G, path)[A].blocks for path in (one, two, three)] == [4, 2, 2]
    view.learn(A, chain_hashes([0, 1] * 10), [16] * 20)
    assert view.blocks(A) == 8
    view.check()


def test_a_learnt_block_dropped_for_the_budget_is_forgotten() -> None:
    view = View()
    view.add_worker(A, G, approximate=True)
    view.learn(A, PATH, [16] * 8)
    view.tree_bytes_max = view.bytes - 3 * ROW_BYTES
    view.learn(A, PATH[:1], [16])
    assert view.blocks(A) == 5
    view.check()
    view.learn(A, PATH, [16] * 8)
    view.check()


# -- what it shows


def test_summary_and_dump_hold_hashes_and_counts_as_json() -> None:
    view = view_of(A, B)
    view.apply(A, stored(PATH[:4]))
    view.apply(B, stored(PATH[:2]))
    view.apply(A, stored(chain_hashes([0, 1, 1])[2:], 48, parent=PATH[1]))
    summary = json.loads(json.dumps(view.summary()))
    assert (summary["nodes"], summary["blocks"]) == (5, 7)
    assert summary["workers"]["a"]["digest"] == f"{view.digest(A).total():016x}"
    dump = json.loads(json.dumps(view.dump(5)))
    (trunk,) = dump["g"]
    assert (trunk["hash"], trunk["blocks"], trunk["usable"], trunk["workers"]) == (f"{PATH[0]:016x}", 2, 32, ["a", "b"])
    assert trunk["forks"] == 2
    assert sorted(child["blocks"] for child in trunk["children"]) == [1, 2]
    assert view.dump(1)["g"][0]["children"] == []
    assert view.dump(0) == {"g": []}


def test_a_dump_is_bounded() -> None:
    rng = random.Random(1)
    view = view_of(A)
    for _ in range(50):
        view.apply(A, stored(fresh_path(rng, 2)))
    assert len(view.dump(9, branches_max=10)[G]) == 10


# -- speed


@pytest.mark.parametrize("workers", [2, 8])
def test_match_of_2048_blocks_takes_less_than_700_microseconds_of_cpu(workers: int) -> None:
    rng = random.Random(5)
    path = fresh_path(rng, 2048)
    view = View()
    for number in range(workers):
        worker = WorkerId(f"w{number}")
        view.add_worker(worker, G)
        view.apply(worker, stored(path[: 2048 * (number + 1) // workers]))
        for _ in range(20):
            view.apply(worker, stored(fresh_path(rng, 200)))
    best = 1.0
    for _ in range(20):
        began = time.process_time()
        found = view.match(G, path)
        best = min(best, time.process_time() - began)
    assert found[WorkerId(f"w{workers - 1}")].blocks == 2048
    assert len(found) == workers
    assert best < 0.0007


def test_rows_reuse_what_was_freed() -> None:
    rows = Rows()
    for round_ in range(5):
        rows.add_run([round_ * 10 + at for at in range(1, 9)], [1] * 8, 0, 0, 0.0)
        rows.check()
        row = rows.table[round_ * 10 + 8]
        while row:
            row = rows.free(row)
        rows.check()
    assert rows.capacity == 9


def test_expectations_and_newcomers_make_room_too() -> None:
    view = view_of(A)
    hashes = chain_hashes([0] * 200)
    view.apply(A, stored(hashes))
    view.tree_bytes_max = view.bytes + 2000
    view.speculate(1, A, chain_hashes([1] * 40), [16] * 40)
    assert view.bytes <= view.tree_bytes_max
    held = view.blocks(A)
    assert 0 < held < 200
    view.tree_bytes_max = view.bytes + HOLDING_BYTES - 1000
    view.add_worker(B, G)
    assert view.bytes <= view.tree_bytes_max
    assert 0 < view.blocks(A) < held
    view.check()
