"""RouterCore: a request's life, workers that come and go, and what a client is told when nobody can serve."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.router_core.clockwork import GROUP, MODEL, ROOT, SEED_ID, chain
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.meta_tree.frames import Frame, WireError, WorkerLoad
from trieway.meta_tree.ids import GroupId, Reject, WorkerId
from trieway.meta_tree.publisher import Publisher
from trieway.router.core import (
    AskBuckets,
    Booking,
    Choice,
    CoreConfig,
    FirstByte,
    Outcome,
    Query,
    Rejection,
    Resubscribe,
    RouterCore,
    WorkerState,
)

A, B = WorkerId("a"), WorkerId("b")
PROMPT = tuple(chain(range(1, 11)))
LOAD = WorkerLoad(
    running=0, waiting=0, waiting_tokens=0, running_tokens=0, prefill_tokens_per_s=0.0, decode_step_ms=0.0,
    kv_free_tokens=50_000, kv_cached_tokens=0, kv_total_tokens=50_000,
)  # fmt: skip


class Bench:
    """A core with publishers at the other end of its feeds."""

    def __init__(self, *workers: WorkerId, **config: Any) -> None:
        self.core = RouterCore(CoreConfig(seed_id=SEED_ID, **config), random.Random(1))
        self.now = 100.0
        self.ends: dict[WorkerId, Publisher] = {}
        for worker in workers:
            self.core.add_worker(worker, f"http://{worker}", self.now, model=MODEL, group=GROUP)
            self.connect(worker, epoch=1)

    def connect(self, worker: WorkerId, epoch: int, group: GroupId = GROUP) -> None:
        """A (new) incarnation, its feed opened."""
        self.ends[worker] = Publisher(epoch=epoch, seed_id=SEED_ID, group=group)
        self.subscribe(worker)

    def subscribe(self, worker: WorkerId) -> None:
        self.feed(worker, *self.ends[worker].subscribe(*self.core.resume(worker)))

    def feed(self, worker: WorkerId, *frames: Frame) -> list[object]:
        effects: list[object] = []
        for frame in frames:
            effects += self.core.feed_frame(worker, frame, self.now)
        self.core.check()
        return effects

    def store(self, worker: WorkerId, hashes: tuple[int, ...] = PROMPT, tokens: int = 16) -> None:
        usable = tuple(tokens * (at + 1) for at in range(len(hashes)))
        self.say(worker, Stored(namespace_id=ROOT, parent=ROOT, hashes=hashes, usable=usable))

    def say(self, worker: WorkerId, *events: Stored | Removed | Cleared) -> None:
        end = self.ends[worker]
        before = end.number
        end.publish(events)
        self.feed(worker, *(end.after(before) or ()))

    def beat(self, worker: WorkerId, load: WorkerLoad = LOAD) -> list[object]:
        return self.feed(worker, self.ends[worker].heartbeat(load))

    def query(self, **more: Any) -> Query:
        return Query(**({"model": MODEL, "group": GROUP, "hashes": PROMPT, "prompt_bytes": 660} | more))

    def choose(self, **more: Any) -> Choice:
        found = self.core.choose(self.query(**more), self.now)
        assert isinstance(found, Choice)
        return found

    def reject(self, **more: Any) -> Reject:
        found = self.core.choose(self.query(**more), self.now)
        assert isinstance(found, Reject)
        return found

    def book(self, **more: Any) -> Booking:
        query = self.query(**more)
        found = self.core.choose(query, self.now)
        assert isinstance(found, Choice)
        made = self.core.book(query, found, self.now)
        self.core.check()
        return made

    def row(self, worker: WorkerId) -> Any:
        return next(row for row in self.core.workers(self.now) if row.worker == worker)


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


# Workers that come and go.


def test_a_dead_worker_holds_nothing_and_is_not_chosen_until_it_is_back() -> None:
    bench = Bench(A, B)
    bench.store(A)
    booking = bench.book()
    assert booking.worker == A
    bench.core.feed_lost(A, bench.now, gone=True)
    bench.core.check()
    assert bench.row(A).state is WorkerState.GONE
    assert bench.row(A).blocks == 0
    assert bench.row(A).booked == 0
    for _ in range(20):
        assert bench.choose().worker == B
    assert bench.reject(exclude=frozenset({B})).reason == Rejection.NO_WORKER
    bench.core.release(booking.id, Outcome.WORKER_ERROR, bench.now)
    bench.core.check()
    bench.connect(A, epoch=2)
    assert bench.row(A).state is WorkerState.UP
    assert bench.row(A).errors == 0
    assert bench.choose(exclude=frozenset({B})).worker == A


def test_being_added_again_brings_a_gone_worker_back() -> None:
    bench = Bench(A)
    bench.core.feed_lost(A, bench.now, gone=True)
    bench.core.add_worker(A, "http://a", bench.now, model=MODEL, group=GROUP)
    bench.core.check()
    assert bench.choose().worker == A


def test_frames_of_a_dead_process_are_ignored() -> None:
    bench = Bench(A)
    bench.core.feed_lost(A, bench.now, gone=True)
    bench.store(A)
    assert bench.row(A).blocks == 0
    assert bench.row(A).state is WorkerState.GONE


def test_the_same_process_back_after_gone_starts_from_a_snapshot() -> None:
    bench = Bench(A)
    bench.store(A)
    bench.core.feed_lost(A, bench.now, gone=True)
    assert bench.core.resume(A) == (None, None)
    bench.subscribe(A)
    assert bench.row(A).blocks == 10
    assert bench.row(A).synced


def test_a_cut_feed_keeps_what_is_known_and_resumes() -> None:
    bench = Bench(A)
    bench.store(A)
    bench.core.feed_lost(A, bench.now, gone=False)
    assert bench.row(A).state is WorkerState.UP
    assert not bench.row(A).synced
    assert bench.choose().predicted_tokens == 160
    assert bench.core.resume(A) == (1, 1)
    bench.ends[A].publish([Cleared()])
    bench.subscribe(A)
    assert bench.choose().predicted_tokens == 0


def test_a_new_epoch_drops_the_old_blocks_and_bookings() -> None:
    bench = Bench(A)
    bench.store(A)
    booking = bench.book()
    bench.connect(A, epoch=2)
    assert bench.row(A).blocks == 0
    assert bench.row(A).booked == 0
    assert bench.core.tree()["speculations"] == 0
    bench.core.receipt(booking.id, FirstByte(epoch=1, number=5), bench.now)
    bench.core.release(booking.id, Outcome.OK, bench.now)
    bench.core.check()


def test_a_silent_feed_makes_a_suspect_then_a_blank() -> None:
    bench = Bench(A, B)
    bench.store(A)
    bench.now += 6.0
    bench.beat(B)
    effects = bench.core.tick(bench.now)
    assert [(type(effect), effect.worker) for effect in effects] == [(Resubscribe, A)]
    assert bench.core.tick(bench.now) == []
    assert bench.row(A).state is WorkerState.SUSPECT
    assert bench.choose().worker == B
    assert bench.choose(exclude=frozenset({B})).worker == A
    bench.now += 10.0
    bench.core.tick(bench.now)
    bench.core.check()
    assert bench.row(A).blocks == 0
    bench.subscribe(A)
    assert bench.row(A).state is WorkerState.UP
    assert bench.row(A).blocks == 10


def test_a_worker_that_restarted_in_silence_owes_nothing_of_before() -> None:
    bench = Bench(A)
    booking = bench.book()
    bench.now += 16.0
    bench.core.tick(bench.now)
    assert bench.row(A).booked == 1
    bench.connect(A, epoch=2)
    assert bench.row(A).booked == 0
    bench.core.release(booking.id, Outcome.WORKER_ERROR, bench.now)
    bench.core.check()
    assert bench.row(A).errors == 0


def test_draining_workers_finish_what_they_have() -> None:
    bench = Bench(A, B)
    bench.store(A)
    booking = bench.book()
    bench.core.drain(A, bench.now)
    assert bench.row(A).state is WorkerState.DRAINING
    assert bench.row(A).booked == 1
    assert bench.choose().worker == B
    bench.core.release(booking.id, Outcome.OK, bench.now)
    assert bench.row(A).booked == 0
    bench.core.remove_worker(A, bench.now)
    assert not bench.core.has_worker(A)
    bench.core.check()


def test_a_worker_that_says_so_is_draining() -> None:
    bench = Bench(A, B)
    bench.beat(A, WorkerLoad(**{name: getattr(LOAD, name) for name in LOAD.__slots__} | {"draining": True}))
    assert bench.choose().worker == B
    bench.beat(A)
    assert bench.row(A).state is WorkerState.UP


def test_removed_with_bookings_open() -> None:
    bench = Bench(A)
    booking = bench.book()
    bench.core.remove_worker(A, bench.now)
    bench.core.check()
    assert bench.reject().reason == Rejection.NO_WORKER
    assert bench.feed(A, *bench.ends[A].snapshot()) == []
    bench.core.receipt(booking.id, FirstByte(prompt_tokens=5, cached_tokens=0), bench.now)
    bench.core.release(booking.id, Outcome.OK, bench.now)
    bench.core.check()
    with pytest.raises(KeyError):
        bench.core.remove_worker(A, bench.now)
    with pytest.raises(KeyError):
        bench.core.drain(A, bench.now)
    bench.core.feed_lost(A, bench.now, gone=True)


def test_the_registry_is_bounded() -> None:
    bench = Bench(A, workers_max=1)
    with pytest.raises(OverflowError):
        bench.core.add_worker(B, "http://b", bench.now, model=MODEL)


def test_another_group_starts_afresh() -> None:
    bench = Bench(A)
    bench.store(A)
    other = GroupId("h")
    bench.core.add_worker(A, "http://a", bench.now, model=MODEL, group=other)
    bench.core.check()
    assert bench.row(A).blocks == 0
    bench.connect(A, epoch=9, group=other)
    assert bench.reject().reason == Rejection.NO_WORKER
    assert bench.choose(group=other).worker == A
    assert bench.choose(group=None).worker == A


def test_a_worker_with_another_secret_is_refused() -> None:
    bench = Bench(A)
    stranger = Publisher(epoch=3, seed_id="f" * 16, group=GROUP)
    with pytest.raises(WireError, match="secret"):
        bench.feed(A, *stranger.subscribe())


def test_lost_events_are_seen_and_asked_for_again() -> None:
    bench = Bench(A)
    bench.store(A)
    bench.ends[A].publish([Removed(namespace_id=ROOT, hashes=PROMPT[5:])])
    bench.ends[A].publish([Cleared()])
    lost = bench.ends[A].after(2)
    assert lost is not None
    effects = bench.feed(A, *lost)
    assert [type(effect) for effect in effects] == [Resubscribe]
    assert bench.row(A).gaps == 1
    bench.subscribe(A)
    assert bench.row(A).blocks == 0


def test_drift_is_shown_and_healed() -> None:
    bench = Bench(A)
    bench.store(A)
    bench.core._view.apply(A, Removed(namespace_id=ROOT, hashes=PROMPT[-2:]))
    asked = [effect for effect in bench.beat(A) if isinstance(effect, AskBuckets)]
    assert asked
    row = bench.row(A)
    assert row.drift_blocks is not None
    assert row.drift_blocks >= 1
    assert row.resyncs == 1
    for effect in asked:
        bench.feed(A, bench.ends[A].buckets(effect.indices))
    bench.beat(A)
    bench.beat(A)
    assert bench.row(A).drift_blocks == 0
    assert bench.row(A).blocks == 10
    assert bench.core.digest(A).buckets() == bench.ends[A].heartbeat(LOAD).buckets


# Workers without a feed.


def foreign() -> Bench:
    bench = Bench()
    bench.core.add_worker(A, "http://a", bench.now, model=MODEL, group=GROUP, has_feed=False)
    return bench


def test_a_foreign_worker_is_learnt_from_what_was_sent_there() -> None:
    bench = foreign()
    booking = bench.book()
    bench.core.receipt(booking.id, FirstByte(), bench.now)
    assert bench.row(A).approximate
    assert bench.row(A).blocks == 10
    bench.core.release(booking.id, Outcome.OK, bench.now)
    bench.core.check()
    assert bench.choose().predicted_tokens > 100


def test_a_foreign_answer_without_a_first_byte_teaches_at_its_end() -> None:
    bench = foreign()
    bench.core.release(bench.book().id, Outcome.OK, bench.now)
    assert bench.row(A).blocks == 10
    bench.core.release(bench.book(hashes=chain(range(50, 60))).id, Outcome.WORKER_ERROR, bench.now)
    assert bench.row(A).blocks == 10


def test_a_foreign_worker_that_died_is_forgotten() -> None:
    bench = foreign()
    bench.core.release(bench.book().id, Outcome.OK, bench.now)
    bench.core.feed_lost(A, bench.now, gone=True)
    bench.core.check()
    assert bench.row(A).blocks == 0
    assert bench.reject().reason == Rejection.NO_WORKER
    bench.core.add_worker(A, "http://a", bench.now, model=MODEL, group=GROUP, has_feed=False)
    assert bench.choose().worker == A


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
