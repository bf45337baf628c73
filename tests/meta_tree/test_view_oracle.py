"""The view against a brute-force oracle: random events of several workers, `check()` and answers after each step."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.meta_tree.oracle import Holdings, chain_hashes
from tests.meta_tree.strategies import EVENTS, PATHS, ROOT
from trieway.meta_tree.events import Cleared, Removed, Replaced, Stored
from trieway.meta_tree.ids import GroupId, WorkerId
from trieway.meta_tree.view import View

GROUPS = (GroupId("one"), GroupId("two"))
NAMES = tuple(WorkerId(f"w{number}") for number in range(5))
SPARE = st.sampled_from(NAMES)


class ViewMachine(RuleBasedStateMachine):
    """Without a budget: the view must be the oracle, exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        self.truth: dict[WorkerId, Holdings] = {}
        self.group: dict[WorkerId, GroupId] = {}
        self.tickets: dict[int, tuple[WorkerId, list[int], list[int]]] = {}
        self.ticket = 0
        self.now = 0.0

    @initialize()
    def two_workers(self) -> None:
        self.add(NAMES[0], GROUPS[0])
        self.add(NAMES[1], GROUPS[0])

    def add(self, worker: WorkerId, group: GroupId) -> None:
        self.view.add_worker(worker, group)
        self.truth[worker], self.group[worker] = Holdings(), group

    def known(self, worker: WorkerId) -> WorkerId:
        return worker if worker in self.truth else next(iter(self.truth))

    @rule(worker=SPARE, group=st.sampled_from(GROUPS))
    def add_worker(self, worker: WorkerId, group: GroupId) -> None:
        if worker not in self.truth:
            self.add(worker, group)

    @precondition(lambda self: len(self.truth) > 1)
    @rule(worker=SPARE)
    def drop_worker(self, worker: WorkerId) -> None:
        self.view.drop_worker(worker)
        if worker in self.truth:
            del self.truth[worker], self.group[worker]
            self.tickets = {key: ticket for key, ticket in self.tickets.items() if ticket[0] != worker}

    @rule(worker=SPARE)
    def reset_worker(self, worker: WorkerId) -> None:
        worker = self.known(worker)
        self.view.reset_worker(worker)
        self.truth[worker] = Holdings()

    @rule(worker=SPARE, event=EVENTS)
    def apply(self, worker: WorkerId, event: Stored | Removed | Cleared) -> None:
        worker = self.known(worker)
        before = dict(self.truth[worker].held)
        self.truth[worker].apply(event)
        after = self.truth[worker].held
        changed = sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())
        assert self.view.apply(worker, event) == changed

    @rule(worker=SPARE, lies=st.lists(EVENTS, max_size=3), indices=st.sets(st.integers(0, 4), min_size=1))
    def heal(self, worker: WorkerId, lies: list[Stored | Removed | Cleared], indices: set[int]) -> None:
        """The true content of some buckets, told to a view that has been lied to."""
        worker = self.known(worker)
        truth = self.truth[worker]
        content = sorted(truth.held.items())
        for lie in lies:
            self.view.apply(worker, lie)
            truth.apply(lie)
        for key in [key for key in truth.held if key[0] >> 56 in indices]:
            del truth.held[key]
        told = {key: usable for key, usable in content if key[0] >> 56 in indices}
        wrong = dict(truth.held)
        truth.held |= told
        events = tuple(
            Stored(namespace_id=ROOT, parent=ROOT, hashes=(block,), usable=(usable,), tier=tier)  # type: ignore[arg-type]
            for (block, tier), usable in told.items()
        )
        self.view.apply(worker, Replaced(indices=tuple(sorted(indices)), events=events))
        assert wrong.keys() <= truth.held.keys()

    @rule(worker=SPARE, path=PATHS)
    def speculate(self, worker: WorkerId, path: tuple[int, ...]) -> None:
        worker = self.known(worker)
        hashes = chain_hashes(path)
        usable = [14 * (depth + 1) for depth in range(len(hashes))]
        self.ticket += 1
        self.view.speculate(self.ticket, worker, hashes, usable)
        self.tickets[self.ticket] = (worker, hashes, usable)

    @rule(which=st.integers(0, 40))
    def retire(self, which: int) -> None:
        self.view.retire(which)
        self.tickets.pop(which, None)

    @rule(path=PATHS, group=st.sampled_from(GROUPS))
    def touch(self, path: tuple[int, ...], group: GroupId) -> None:
        self.now += 1.0
        self.view.touch(group, chain_hashes(path), self.now)

    @rule(rows=st.integers(1, 20))
    def sweep(self, rows: int) -> None:
        self.view.sweep(rows)

    @invariant()
    def conserves(self) -> None:
        self.view.check()

    @invariant()
    def digests_and_counts_are_true(self) -> None:
        for worker, truth in self.truth.items():
            assert self.view.digest(worker).buckets() == truth.buckets()
            assert self.view.blocks(worker) == len(truth.held)

    @rule(path=PATHS, group=st.sampled_from(GROUPS))
    def match(self, path: tuple[int, ...], group: GroupId) -> None:
        hashes = chain_hashes(path)
        found = self.view.match(group, hashes)
        for worker, truth in self.truth.items():
            usable, blocks = truth.match(hashes)
            deepest = max((self.agreement(entry, hashes) for entry in self.mine(worker)), default=0)
            if self.group[worker] != group or not (blocks or deepest):
                assert worker not in found
                continue
            held = found[worker]
            assert (held.usable, held.blocks) == (usable, blocks)
            if deepest > blocks:
                assert held.speculative_usable == 14 * deepest
                assert held.ticket is not None
                assert self.tickets[held.ticket][0] == worker
                assert self.agreement(self.tickets[held.ticket], hashes) == deepest
            else:
                assert (held.speculative_usable, held.ticket) == (0, None)

    def mine(self, worker: WorkerId) -> list[tuple[WorkerId, list[int], list[int]]]:
        return [ticket for ticket in self.tickets.values() if ticket[0] == worker]

    @staticmethod
    def agreement(ticket: tuple[WorkerId, list[int], list[int]], hashes: list[int]) -> int:
        agreed = 0
        while agreed < min(len(ticket[1]), len(hashes)) and ticket[1][agreed] == hashes[agreed]:
            agreed += 1
        return agreed


TestView = ViewMachine.TestCase
TestView.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class BudgetMachine(RuleBasedStateMachine):
    """With a budget of about 12 rows: less is known, nothing is invented, digests stay whole."""

    def __init__(self) -> None:
        super().__init__()
        self.view = View(tree_bytes_max=1)
        self.truth = {worker: Holdings() for worker in NAMES[:3]}
        for worker in self.truth:
            self.view.add_worker(worker, GROUPS[worker == NAMES[2]])
        self.view.tree_bytes_max = self.view.bytes + 12 * 192 + 6 * 512
        self.now = 0.0

    @rule(worker=st.sampled_from(NAMES[:3]), event=EVENTS)
    def apply(self, worker: WorkerId, event: Stored | Removed | Cleared) -> None:
        event = self.as_a_publisher_sends(worker, event)
        self.truth[worker].apply(event)
        self.view.apply(worker, event)

    def as_a_publisher_sends(self, worker: WorkerId, event: Stored | Removed | Cleared) -> Stored | Removed | Cleared:
        """Removals carry what the blocks counted; blocks are not revalued (that heals by buckets, see test_feed.py)."""
        held = self.truth[worker].held
        if isinstance(event, Removed):
            gone = tuple(block for block in event.hashes if (block, event.tier) in held)
            counts = tuple(held[block, event.tier] for block in gone)
            return Removed(namespace_id=ROOT, hashes=gone, usable=counts, tier=event.tier)
        if isinstance(event, Stored):
            fresh = [at for at, block in enumerate(event.hashes) if (block, event.tier) not in held]
            if len(fresh) < len(event.hashes):
                at = fresh[0] if fresh else 0
                end = next((later for later in range(at, len(event.hashes)) if later not in fresh), len(event.hashes))
                parent = event.hashes[at - 1] if at else event.parent
                return Stored(
                    namespace_id=ROOT,
                    parent=parent,
                    hashes=event.hashes[at:end] if fresh else (),
                    usable=event.usable[at:end] if fresh else (),
                    tier=event.tier,
                )
        return event

    @rule(path=PATHS)
    def touch(self, path: tuple[int, ...]) -> None:
        self.now += 1.0
        self.view.touch(GROUPS[0], chain_hashes(path), self.now)

    @rule(worker=st.sampled_from(NAMES[:3]))
    def reset_worker(self, worker: WorkerId) -> None:
        self.view.reset_worker(worker)
        self.truth[worker] = Holdings()

    @invariant()
    def stays_within_its_budget(self) -> None:
        self.view.check()
        assert self.view.bytes <= self.view.tree_bytes_max

    @invariant()
    def digests_stay_whole(self) -> None:
        for worker, truth in self.truth.items():
            assert self.view.digest(worker).buckets() == truth.buckets()
            assert self.view.blocks(worker) <= len(truth.held)

    @rule(path=PATHS)
    def match_invents_nothing(self, path: tuple[int, ...]) -> None:
        hashes = chain_hashes(path)
        for worker, held in self.view.match(GROUPS[0], hashes).items():
            assert held.blocks <= self.truth[worker].match(hashes)[1]


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
