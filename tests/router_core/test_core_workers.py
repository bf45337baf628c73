"""RouterCore: workers that come, go, restart, drift, or have no feed."""

from __future__ import annotations

import pytest

from tests.router_core.bench import LOAD, PROMPT, A, B, Bench, foreign
from tests.router_core.clockwork import GROUP, MODEL, ROOT, chain
from trieway.meta_tree.events import Cleared, Removed
from trieway.meta_tree.frames import WireError, WorkerLoad
from trieway.meta_tree.ids import GroupId
from trieway.meta_tree.publisher import Publisher
from trieway.router.core import (
    AskBuckets,
    FirstByte,
    Outcome,
    Rejection,
    Resubscribe,
    WorkerState,
)

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
