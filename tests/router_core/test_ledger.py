"""The ledger: one owner per booking, sums that follow, a worker's own numbers taken in."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import WorkerId
from trieway.router.core.ledger import Ledger
from trieway.router.core.values import Booking

A, B = WorkerId("a"), WorkerId("b")


def load(running: int = 0, waiting: int = 0, waiting_tokens: int = 0) -> WorkerLoad:
    return WorkerLoad(
        running=running, waiting=waiting, waiting_tokens=waiting_tokens, running_tokens=0, prefill_tokens_per_s=0.0,
        decode_step_ms=0.0, kv_free_tokens=1000, kv_cached_tokens=0, kv_total_tokens=1000,
    )  # fmt: skip


def ledger(*workers: WorkerId) -> Ledger:
    made = Ledger(inflow_halflife_s=120.0)
    for worker in workers:
        made.add_worker(worker, 0.0)
    return made


def book(made: Ledger, worker: WorkerId, now: float = 0.0, *, prompt: int = 100, uncached: int = 80) -> int:
    booking = Booking(
        id=made.next_id(), worker=worker, uncached_tokens=uncached, predicted_tokens=prompt - uncached,
        available_tokens=0, prompt_tokens=prompt, predicted_ttft_ms=1.0, booked_at=now,
    )  # fmt: skip
    made.open(booking, now)
    return booking.id


def test_sums_follow_a_request() -> None:
    made = ledger(A)
    id = book(made, A)
    entry = made.book_of(A)
    assert (len(entry.open), entry.open_tokens, entry.pending_tokens) == (1, 100, 80)
    made.check()
    made.first_byte(id, 1.0)
    assert (len(entry.open), entry.open_tokens, entry.pending_tokens) == (1, 100, 0)
    made.check()
    made.close(id, 2.0)
    assert (len(entry.open), entry.open_tokens, entry.pending_tokens) == (0, 0, 0)
    assert len(made) == 0
    made.check()


def test_a_booking_ends_once_and_begins_once() -> None:
    made = ledger(A)
    id = book(made, A)
    made.first_byte(id, 1.0)
    with pytest.raises(AssertionError):
        made.first_byte(id, 1.0)
    made.close(id, 1.0)
    with pytest.raises(AssertionError):
        made.close(id, 1.0)
    with pytest.raises(AssertionError):
        made.close(99, 1.0)


def test_a_dropped_workers_bookings_weigh_on_nobody_and_can_still_end() -> None:
    made = ledger(A, B)
    ids = [book(made, A), book(made, A)]
    made.drop_worker(A)
    made.add_worker(A, 1.0)
    made.check()
    assert made.book_of(A).open == {}
    assert made.first_byte(ids[0], 1.0)[0].book is None
    for id in ids:
        made.close(id, 2.0)
        made.check()
    assert made.opened_total == made.closed_total == 2


def test_service_time_counts_from_the_first_byte_before() -> None:
    made = ledger(A)
    one, two = book(made, A, 0.0), book(made, A, 0.1)
    assert made.first_byte(one, 1.0)[1] == pytest.approx(1000.0)
    assert made.first_byte(two, 1.5)[1] == pytest.approx(500.0)
    three = book(made, A, 5.0)
    assert made.first_byte(three, 5.2)[1] == pytest.approx(200.0)


def test_requests_out_of_one_step_are_one_sample() -> None:
    entry = ledger(A).book_of(A)
    assert entry.sample(100, 300.0, 120.0, alone=False) == []
    assert entry.sample(100, 1.0, 120.0, alone=False) == []
    assert entry.sample(50, 2.0, 60.0, alone=False) == []
    (step,) = entry.sample(80, 90.0, 100.0, alone=False)
    assert (step.tokens, step.ms) == (250, 303.0)
    assert step.weight < 1.0
    held, own = entry.sample(70, 5.0, 100.0, alone=True)
    assert (held.tokens, held.ms) == (80, 90.0)
    assert own == (70, 5.0, 1.0)
    assert entry.sample(70, 5.0, 100.0, alone=True) == [(70, 5.0, 1.0)]


def test_a_fast_worker_does_not_merge_for_ever() -> None:
    """Every first byte comes far sooner than predicted: samples must come out all the same."""
    entry = ledger(A).book_of(A)
    out = [entry.sample(80, 3.0, 1000.0, alone=False) for _ in range(40)]
    assert sum(map(len, out)) >= 30


def test_a_request_is_alone_only_if_nothing_else_was_open() -> None:
    made = ledger(A)
    one = book(made, A)
    assert made.first_byte(one, 1.0)[0].alone
    two = book(made, A, 2.0)
    assert not made.first_byte(two, 3.0)[0].alone
    made.close(one, 3.0)
    made.close(two, 3.0)
    three, four = book(made, A, 4.0), book(made, A, 4.1)
    assert not made.first_byte(three, 5.0)[0].alone
    made.close(three, 5.0)
    assert not made.first_byte(four, 6.0)[0].alone


def test_what_the_worker_has_computed_is_no_longer_owed() -> None:
    made = ledger(A)
    one = book(made, A, 0.0, uncached=1000)
    book(made, A, 0.0, uncached=500)
    entry = made.book_of(A)
    made.reconcile(A, load(running=2, waiting_tokens=700), 1.0)
    assert entry.owed_tokens() == 700
    assert entry.head_tokens() == 700
    made.check()
    made.first_byte(one, 1.2)
    assert entry.owed_tokens() == 500
    made.check()


def test_a_booking_still_on_its_way_stays_owed() -> None:
    made = ledger(A)
    book(made, A, 10.0, uncached=900)
    made.reconcile(A, load(), 10.1)
    assert made.book_of(A).owed_tokens() == 900


def test_other_routers_work_counts_and_is_worked_off() -> None:
    made = ledger(A)
    book(made, A, 0.0, uncached=100)
    made.reconcile(A, load(running=2, waiting=3, waiting_tokens=2100), 1.0)
    entry = made.book_of(A)
    assert entry.foreign_requests == 4
    assert entry.foreign_left(1.0, 1000.0) == 2000
    assert entry.foreign_left(2.5, 1000.0) == 500
    assert entry.foreign_left(9.0, 1000.0) == 0
    made.reconcile(A, load(), 2.0)
    assert entry.foreign_requests == 0
    assert entry.foreign_left(2.0, 1000.0) == 0


def test_what_has_just_ended_is_nobody_elses_work() -> None:
    """The worker counted it before it ended, and the report came after."""
    made = ledger(A)
    ids = [book(made, A, 0.0, uncached=300) for _ in range(3)]
    for id in ids:
        made.first_byte(id, 5.0)
    made.close(ids[0], 5.1)
    made.reconcile(A, load(running=3, waiting_tokens=600), 5.2)
    entry = made.book_of(A)
    assert (entry.foreign_requests, entry.foreign_tokens) == (0, 0)
    made.reconcile(A, load(running=3, waiting_tokens=600), 6.5)
    assert (entry.foreign_requests, entry.foreign_tokens) == (1, 600)


def test_inflow_fades_and_a_newcomer_starts_at_its_peers_mean() -> None:
    made = ledger(A, B)
    book(made, A, 0.0, uncached=1000)
    assert made.inflow(A, 0.0) == 1000
    assert made.inflow(A, 120.0) == pytest.approx(500)
    assert made.inflow(B, 0.0) == 0
    made.drop_worker(B)
    made.add_worker(B, 0.0)
    assert made.inflow(B, 0.0) == 1000


class Books(RuleBasedStateMachine):
    """Random lives of bookings and workers; sums are proved after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.made = ledger(A, B)
        self.known = {A, B}
        self.pending: list[int] = []
        self.begun: list[int] = []
        self.now = 0.0

    @precondition(lambda self: self.known)
    @rule(data=st.data(), prompt=st.integers(1, 5000), share=st.floats(0, 1), passed=st.floats(0, 3))
    def open(self, data: st.DataObject, prompt: int, share: float, passed: float) -> None:
        self.now += passed
        worker = data.draw(st.sampled_from(sorted(self.known)))
        self.pending.append(book(self.made, worker, self.now, prompt=prompt, uncached=max(int(prompt * share), 1)))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def first_byte(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.pending))
        self.pending.remove(id)
        self.begun.append(id)
        self.made.first_byte(id, self.now)

    @precondition(lambda self: self.pending or self.begun)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.pending + self.begun))
        (self.pending if id in self.pending else self.begun).remove(id)
        self.made.close(id, self.now)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.known)))
        self.known.remove(worker)
        self.made.drop_worker(worker)

    @rule(worker=st.sampled_from([A, B]))
    def add(self, worker: WorkerId) -> None:
        if worker not in self.known:
            self.known.add(worker)
            self.made.add_worker(worker, self.now)

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(), running=st.integers(0, 5), waiting=st.integers(0, 5), tokens=st.integers(0, 9000),
        passed=st.floats(0, 3),
    )  # fmt: skip
    def report(self, data: st.DataObject, running: int, waiting: int, tokens: int, passed: float) -> None:
        self.now += passed
        worker = data.draw(st.sampled_from(sorted(self.known)))
        self.made.reconcile(worker, load(running, waiting, tokens), self.now)

    @invariant()
    def sums(self) -> None:
        self.made.check()
        assert len(self.made) == len(self.pending) + len(self.begun)

    def teardown(self) -> None:
        for id in self.pending + self.begun:
            self.made.close(id, self.now)
        self.made.check()
        for worker in self.known:
            entry = self.made.book_of(worker)
            assert (len(entry.open), entry.open_tokens, entry.pending_tokens, entry.owed_tokens()) == (0, 0, 0, 0)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
