"""RouterCore: a request's life, siblings, and what a client is told when nobody can serve."""

from __future__ import annotations

import pytest

from tests.router_core.bench import A, B, Bench, foreign
from tests.router_core.clockwork import GROUP, MODEL, chain
from trieway.meta_tree.ids import Reject, WorkerId
from trieway.router.core import (
    Choice,
    FirstByte,
    Outcome,
    Query,
    Rejection,
)

# A request's life.


def test_the_holder_of_the_prefix_is_chosen() -> None:
    bench = Bench(A, B)
    bench.store(B)
    choice = bench.choose()
    assert choice.worker == B
    assert choice.predicted_tokens == choice.available_tokens == 160
    assert choice.prompt_tokens == 165
    assert choice.reason == "prefix"
    assert choice.row.usable == (160, 160, 160)
    assert [row.worker for row in choice.rows] == [A, B]


def test_a_whole_life_leaves_nothing_behind() -> None:
    bench = Bench(A)
    booking = bench.book()
    row = bench.row(A)
    assert (row.booked, row.booked_tokens, row.pending_tokens) == (1, 165, 165)
    bench.now += 0.3
    settled = bench.core.receipt(
        booking.id, FirstByte(prompt_tokens=170, cached_tokens=0, epoch=1, number=1, prefill_ms=200.0), bench.now
    )
    assert settled.ttft_ms == pytest.approx(300.0)
    assert settled.delivered_tokens == 0
    assert bench.row(A).pending_tokens == 0
    bench.core.release(booking.id, Outcome.OK, bench.now)
    bench.core.check()
    row = bench.row(A)
    assert (row.booked, row.booked_tokens, row.pending_tokens) == (0, 0, 0)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_releases_once(outcome: Outcome) -> None:
    bench = Bench(A)
    booking = bench.book()
    bench.core.release(booking.id, outcome, bench.now)
    bench.core.check()
    assert bench.row(A).booked == 0
    with pytest.raises(AssertionError):
        bench.core.release(booking.id, outcome, bench.now)


def test_choosing_and_explaining_change_nothing() -> None:
    bench = Bench(A, B)
    bench.store(A)
    rng = bench.core._rng
    before = (rng.getstate(), bench.core.workers(bench.now), bench.core.tree())  # type: ignore[attr-defined]
    first = bench.core.explain(bench.query(), bench.now)
    for _ in range(20):
        bench.choose()
        assert bench.core.explain(bench.query(), bench.now) == first
    assert before == (rng.getstate(), bench.core.workers(bench.now), bench.core.tree())  # type: ignore[attr-defined]
    assert isinstance(first.decision, Choice)
    assert first.decision.worker == A
    assert sum(row.probability for row in first.rows) == pytest.approx(1.0)
    assert first.blocks == 10


def test_explaining_an_unknown_model_has_no_rows() -> None:
    found = Bench(A).core.explain(Query(model="other"), 100.0)
    assert isinstance(found.decision, Reject)
    assert found.rows == ()


def test_echo_with_logprobs_reuses_nothing() -> None:
    bench = Bench(A, B)
    bench.store(A)
    assert bench.choose(reuse_max=0).predicted_tokens == 0


def test_regret_is_what_the_best_other_had_promised() -> None:
    bench = Bench(A, B)
    bench.store(A)
    booking = bench.book()
    bench.now += 5.0
    settled = bench.core.receipt(booking.id, FirstByte(), bench.now)
    assert 4000 < settled.regret_ms < 5000
    assert settled.chosen_tokens == 160
    assert settled.delivered_tokens is None


# Siblings.


def test_siblings_follow_the_leader_where_that_is_cheaper() -> None:
    bench = Bench(A, B)
    long = tuple(chain(range(1, 201)))
    leader = bench.book(hashes=long, prompt_bytes=200 * 64 + 20)
    sibling = bench.choose(hashes=(*long[:-1], 7), prompt_bytes=200 * 64 + 20)
    row = next(row for row in sibling.rows if row.worker == leader.worker)
    assert row.speculative_tokens > 3000
    assert row.queue_ms > 2000  # the leader's remaining prefill
    bench.now += 2.8  # most of it is done
    assert bench.choose(hashes=(*long[:-1], 7), prompt_bytes=200 * 64 + 20).worker == leader.worker


def test_a_speculation_ends_with_the_event_that_the_receipt_names() -> None:
    bench = Bench(A)
    booking = bench.book()
    assert bench.choose().predicted_tokens > 100
    bench.core.receipt(booking.id, FirstByte(prompt_tokens=165, cached_tokens=0, epoch=1, number=1), bench.now)
    assert bench.core.tree()["speculations"] == 1
    bench.store(A)
    assert bench.core.tree()["speculations"] == 0
    assert bench.choose().predicted_tokens == 160
    bench.core.release(booking.id, Outcome.OK, bench.now)


def test_a_speculation_ends_at_once_if_the_event_came_before_the_receipt() -> None:
    bench = Bench(A)
    booking = bench.book()
    bench.store(A)
    bench.core.receipt(booking.id, FirstByte(prompt_tokens=165, cached_tokens=0, epoch=1, number=1), bench.now)
    assert bench.core.tree()["speculations"] == 0
    bench.core.release(booking.id, Outcome.OK, bench.now)


def test_without_a_number_it_ends_with_the_heartbeat_after_the_release() -> None:
    bench = Bench(A)
    booking = bench.book()
    bench.core.receipt(booking.id, FirstByte(), bench.now)
    bench.beat(A)
    assert bench.core.tree()["speculations"] == 1
    bench.core.release(booking.id, Outcome.OK, bench.now)
    assert bench.core.tree()["speculations"] == 1
    bench.beat(A)
    assert bench.core.tree()["speculations"] == 0


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.WORKER_ERROR, Outcome.BUSY, Outcome.CLIENT_ERROR])
def test_a_request_that_never_computed_leaves_no_expectation(outcome: Outcome) -> None:
    bench = Bench(A)
    bench.core.release(bench.book().id, outcome, bench.now)
    assert bench.core.tree()["speculations"] == 0
    assert bench.choose().predicted_tokens == 0


def test_an_old_speculation_is_retired_whatever_its_booking_does() -> None:
    bench = Bench(A)
    booking = bench.book()
    bench.now += 121.0
    bench.core.tick(bench.now)
    assert bench.core.tree()["speculations"] == 0
    bench.core.release(booking.id, Outcome.OK, bench.now)
    bench.core.check()


# Nobody can serve.


def test_reasons_to_refuse() -> None:
    bench = Bench()
    assert bench.reject().reason == Rejection.NO_WORKER
    bench = Bench(A)
    assert bench.reject(model="other").reason == Rejection.UNKNOWN_MODEL
    refused = bench.reject(exclude=frozenset({A}))
    assert refused.reason == Rejection.NO_WORKER
    assert refused.retry_after_s is not None


def test_an_alias_names_the_same_worker() -> None:
    bench = Bench()
    bench.core.add_worker(A, "http://a", bench.now, model="big", aliases=("small", "big"))
    assert bench.choose(model="small", group=None).worker == A
    assert bench.core.models() == ("big",)
    bench.core.add_worker(A, "http://a", bench.now, model="big")
    assert bench.reject(model="small").reason == Rejection.UNKNOWN_MODEL
    bench.core.check()


def test_full_queues_reject() -> None:
    bench = Bench(A, worker_bookings_max=2)
    bookings = [bench.book(), bench.book()]
    refused = bench.reject()
    assert refused.reason == Rejection.QUEUES_FULL
    assert refused.retry_after_s == 1.0
    bench.core.release(bookings[0].id, Outcome.OK, bench.now)
    assert bench.choose().worker == A


def test_the_router_itself_is_bounded() -> None:
    bench = Bench(A, B, bookings_max=1)
    bench.book()
    assert bench.reject().reason == Rejection.QUEUES_FULL


def test_too_long_for_every_context() -> None:
    bench = Bench()
    bench.core.add_worker(A, "http://a", bench.now, model=MODEL, context_tokens=100)
    assert bench.reject(group=None, prompt_tokens=101).reason == Rejection.TOO_LONG
    assert bench.choose(group=None, prompt_tokens=100).worker == A
    assert bench.choose(group=None, prompt_bytes=10**6).worker == A


def test_errors_in_a_row_open_the_breaker_and_client_mistakes_never_do() -> None:
    bench = Bench(A, B)
    only_a = frozenset({B})
    for outcome in (Outcome.CLIENT_ERROR, Outcome.BUSY, Outcome.CANCELLED) * 5:
        bench.core.release(bench.book(exclude=only_a).id, outcome, bench.now)
    assert bench.row(A).breaker == "closed"
    for _ in range(3):
        bench.core.release(bench.book(exclude=only_a).id, Outcome.WORKER_ERROR, bench.now)
    assert bench.row(A).breaker == "open"
    assert bench.reject(exclude=only_a).reason == Rejection.NO_WORKER
    assert bench.choose().worker == B
    bench.now += 2.5
    probe = bench.book(exclude=only_a)
    assert bench.reject(exclude=only_a).reason == Rejection.NO_WORKER
    bench.core.release(probe.id, Outcome.OK, bench.now)
    assert bench.row(A).breaker == "closed"


# Readiness.


def test_readiness_is_graded() -> None:
    bench = Bench()
    assert not bench.core.ready(bench.now).ready
    for name in ("a", "b", "c"):
        bench.core.add_worker(WorkerId(name), name, bench.now, model=MODEL, group=GROUP)
    found = bench.core.ready(bench.now)
    assert (found.ready, found.share, found.workers, found.up) == (False, 0.0, 3, 3)
    bench.connect(A, epoch=1)
    assert not bench.core.ready(bench.now).ready
    bench.connect(B, epoch=1)
    found = bench.core.ready(bench.now)
    assert found.ready
    assert found.share == pytest.approx(2 / 3)
    bench.core.feed_lost(A, bench.now, gone=True)
    bench.core.feed_lost(B, bench.now, gone=True)
    assert not bench.core.ready(bench.now).ready
    assert bench.core.ready(bench.now + 11.0).ready
    bench.core.feed_lost(WorkerId("c"), bench.now, gone=True)
    assert bench.core.ready(bench.now + 11.0).reason == "no worker is up"


def test_a_fleet_without_feeds_is_ready_at_once() -> None:
    assert foreign().core.ready(100.0).ready


def test_the_tree_can_be_summed_up_and_dumped() -> None:
    bench = Bench(A)
    bench.store(A)
    assert set(bench.core.tree()) == {"summary", "speculations"}
    assert "dump" in bench.core.tree(depth=2)
