"""Publisher to subscriber to view, through bytes: cuts, resume, ring overflow, epochs, planted drift."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.meta_tree.link import GROUP, LOAD, Link
from tests.meta_tree.oracle import Holdings, chain_hashes
from tests.meta_tree.strategies import EVENTS, ROOT
from trieway.meta_tree.events import CacheEvent, Cleared, Removed, Stored
from trieway.meta_tree.frames import Delta
from trieway.meta_tree.ids import Tier
from trieway.meta_tree.view import View

PATH = tuple(chain_hashes([0, 1, 2, 0, 1, 2]))
USABLE = tuple(16 * (depth + 1) for depth in range(len(PATH)))


def run(start: int = 0, end: int = len(PATH), step: int = 16) -> Stored:
    parent = PATH[start - 1] if start else ROOT
    usable = tuple(step * (depth + 1) for depth in range(start, end))
    return Stored(namespace_id=ROOT, parent=parent, hashes=PATH[start:end], usable=usable)


def gone(*depths: int) -> Removed:
    return Removed(namespace_id=ROOT, hashes=tuple(PATH[depth] for depth in depths))


def wide(count: int, salt: int = 0) -> list[Stored]:
    """Single blocks over all digest buckets."""
    return [
        Stored(namespace_id=ROOT, parent=ROOT, hashes=((at % 256) << 56 | salt << 40 | at,), usable=(16,))
        for at in range(count)
    ]


def matched(link: Link) -> int:
    held = link.view.match(GROUP, PATH).get(link.worker)
    return held.blocks if held else 0


def test_a_snapshot_then_deltas() -> None:
    link = Link()
    link.publish(run(0, 3))
    link.beat()
    assert matched(link) == 3
    assert link.subscriber.synced
    assert link.subscriber.drift is False
    link.publish(run(3, 6), gone(5))
    assert link.agrees() is False
    link.beat()
    assert matched(link) == 5
    assert link.agrees()
    assert (link.subscriber.number, link.subscriber.epoch, link.subscriber.snapshots) == (3, 1, 1)
    assert (link.subscriber.gaps, link.subscriber.resyncs, link.loads) == (0, 0, 2)


def test_resume_replays_only_what_was_missed() -> None:
    link = Link()
    link.publish(run(0, 2))
    link.beat()
    link.cut()
    link.publish(run(2, 4), run(4, 6))
    assert matched(link) == 2, "what is applied stays while the stream is away"
    link.beat()
    assert matched(link) == 6
    assert link.subscriber.snapshots == 1


def test_off_the_ring_means_a_snapshot() -> None:
    link = Link(ring_events_max=2)
    link.publish(run(0, 1))
    link.beat()
    link.cut()
    for depth in range(1, 6):
        link.publish(run(depth, depth + 1))
    link.beat()
    assert matched(link) == 6
    assert link.subscriber.snapshots == 2
    assert link.agrees()


def test_a_slow_live_stream_off_the_ring_gets_a_snapshot_too() -> None:
    link = Link(ring_events_max=2)
    link.beat()
    for depth in range(6):
        link.publish(run(depth, depth + 1))
    link.beat()
    assert matched(link) == 6
    assert link.subscriber.gaps == 0


def test_a_new_epoch_drops_the_old_blocks_with_its_hello() -> None:
    link = Link()
    link.publish(run())
    link.beat()
    link.restart()
    link.receive(link.publisher.subscribe(*link.subscriber.resume)[0])
    assert matched(link) == 0
    assert link.view.blocks(link.worker) == 0
    link.publish(run(0, 2))
    link.beat()
    assert matched(link) == 2
    assert link.subscriber.epoch == 2


def test_a_restarted_worker_that_counted_as_far_is_not_resumed() -> None:
    link = Link()
    link.publish(run(0, 2), gone(1))
    link.beat()
    link.restart()
    link.publish(run(0, 4), run(4, 6))
    assert link.publisher.number == link.subscriber.number == 2
    link.beat()
    assert matched(link) == 6
    assert link.agrees()


def test_cleared() -> None:
    link = Link()
    link.publish(run())
    link.beat()
    link.publish(Cleared())
    link.beat()
    assert matched(link) == 0
    assert link.agrees()


def test_a_lost_event_is_a_gap_and_heals_by_replay() -> None:
    link = Link()
    link.publish(run(0, 1))
    link.beat()
    link.publish(run(1, 2), run(2, 3))
    frames = link.publisher.after(1)
    assert frames is not None
    link.carry(frames[1:])
    assert link.subscriber.gaps == 1
    assert not link.subscriber.synced
    assert link.reasons == ["gap: event 3 after 1"]
    link.carry([Delta(number=4, event=run(3, 4))])
    assert matched(link) == 1, "nothing is applied between a gap and the next Hello"
    link.beat()
    assert matched(link) == 3
    assert link.subscriber.snapshots == 1


def test_events_announced_by_heartbeats_that_never_come_are_a_gap() -> None:
    link = Link()
    link.beat()
    link.publish(run())
    link.carry([link.publisher.heartbeat(LOAD)])
    assert link.subscriber.lag_events == 1
    assert link.subscriber.drift is False, "not comparable yet, so not compared"
    link.carry([link.publisher.heartbeat(LOAD)])
    assert link.subscriber.gaps == 1
    link.beat()
    assert link.agrees()


def test_a_heartbeat_ahead_of_its_events_is_compared_once_they_are_applied() -> None:
    link = Link()
    link.beat()
    link.publish(run())
    heartbeat = link.publisher.heartbeat(LOAD)
    link.view.apply(link.worker, Stored(namespace_id=ROOT, parent=ROOT, hashes=(99,), usable=(1,)))
    link.carry([heartbeat])
    assert not link.asked
    link.pump()
    link.carry([link.publisher.heartbeat(LOAD)])
    assert link.subscriber.drift is True
    assert link.asked == [(0,)]


def test_a_cut_snapshot_is_begun_again() -> None:
    link = Link()
    link.publish(run())
    frames = link.publisher.subscribe(None, None)
    link.connected = True
    link.carry(frames[:-1])
    assert link.subscriber.number is None
    assert link.subscriber.resume == (None, None)
    link.cut()
    link.beat()
    assert matched(link) == 6
    assert link.subscriber.snapshots == 1


@pytest.mark.parametrize("lie", ["lost", "invented", "miscounted", "wrong tier"])
def test_planted_drift_is_seen_within_a_heartbeat_and_healed_bucket_by_bucket(lie: str) -> None:
    link = Link()
    link.publish(run())
    link.beat()
    match lie:
        case "lost":
            link.view.apply(link.worker, gone(3))
        case "invented":
            link.view.apply(link.worker, Stored(namespace_id=ROOT, parent=PATH[5], hashes=(3 << 56 | 1,), usable=(7,)))
        case "miscounted":
            link.view.apply(link.worker, run(4, 5, step=15))
        case _:
            link.view.apply(link.worker, gone(5))
            wrong = Stored(namespace_id=ROOT, parent=PATH[4], hashes=PATH[5:], usable=USABLE[5:], tier=Tier.HOST)
            link.view.apply(link.worker, wrong)
    assert not link.agrees()
    link.beat()
    assert link.subscriber.drift is True
    assert len(link.asked) == 1
    assert len(link.asked[0]) == 1
    link.answer()
    assert link.agrees()
    assert matched(link) == 6
    link.beat()
    assert link.subscriber.drift is False
    assert link.subscriber.resyncs == 1
    assert link.subscriber.drift_blocks == (2 if lie == "wrong tier" else 1)
    assert link.subscriber.snapshots == 1, "no snapshot was needed"


def test_events_that_overtake_the_answer_are_not_undone_by_it() -> None:
    link = Link()
    link.publish(run(0, 4))
    link.beat()
    link.view.apply(link.worker, gone(3))
    link.beat()
    stale = link.publisher.buckets(link.asked.pop())
    link.publish(gone(3), run(4, 6))
    link.publish(run(3, 4, step=12))
    link.pump()
    link.carry([stale])
    assert link.agrees()
    assert matched(link) == 6


def test_an_answer_from_the_future_is_settled_by_the_events_on_their_way() -> None:
    link = Link()
    link.publish(run(0, 4))
    link.beat()
    link.view.apply(link.worker, gone(3))
    link.beat()
    link.publish(gone(3), run(4, 6), gone(5), run(5, 6), run(3, 4))
    future = link.publisher.buckets(link.asked.pop())
    link.carry([future])
    link.beat()
    assert link.agrees()
    assert link.subscriber.drift is False
    assert link.subscriber.resyncs == 1


def test_a_heartbeat_older_than_the_answer_is_not_compared_with_it() -> None:
    link = Link()
    link.publish(run(0, 4))
    link.beat()
    link.view.apply(link.worker, gone(3))
    link.beat()
    older = link.publisher.heartbeat(LOAD)
    link.publish(gone(3))
    link.carry([link.publisher.buckets(link.asked.pop()), older])
    assert not link.asked
    link.beat()
    assert link.subscriber.drift is False


def test_what_is_applied_again_on_an_answer_does_not_count_twice_elsewhere() -> None:
    view = View()
    link = Link(view=view, ring_events_max=1000)
    elsewhere = [Stored(namespace_id=ROOT, parent=ROOT, hashes=(200 << 56 | at,), usable=(16,)) for at in range(10)]
    link.publish(*elsewhere)
    link.beat()
    view.tree_bytes_max = view.bytes - 6 * 192
    link.publish(run(0, 2))
    link.beat()
    dropped = [event for event in elsewhere if not view.match(GROUP, event.hashes)]
    assert len(dropped) > 2
    view.apply(link.worker, gone(1))
    link.beat()
    stale = link.publisher.buckets(link.asked.pop())
    link.publish(Removed(namespace_id=ROOT, hashes=dropped[0].hashes))
    link.pump()
    link.carry([stale])
    assert link.agrees()


def test_a_flush_that_overtakes_the_answer_wins() -> None:
    link = Link()
    link.publish(run(0, 4))
    link.beat()
    link.view.apply(link.worker, gone(3))
    link.beat()
    stale = link.publisher.buckets(link.asked.pop())
    link.publish(Cleared(), run(0, 1))
    link.pump()
    link.carry([stale])
    assert link.agrees()
    assert matched(link) == 1


def test_a_lost_answer_is_asked_for_again() -> None:
    link = Link()
    link.publish(run())
    link.beat()
    link.view.apply(link.worker, gone(3))
    link.beat()
    link.asked.clear()
    link.beat()
    link.beat()
    assert not link.asked, "an answer may still be on its way"
    link.beat()
    assert len(link.asked) == 1
    link.answer()
    assert link.agrees()


def test_answers_that_nobody_asked_for_change_nothing() -> None:
    link = Link()
    link.publish(run())
    link.beat()
    link.view.apply(link.worker, gone(3))
    before = link.view.digest(link.worker).buckets()
    link.carry([link.publisher.buckets(range(256))])
    assert link.view.digest(link.worker).buckets() == before


def test_much_drift_is_healed_by_a_snapshot_but_not_by_one_a_second() -> None:
    link = Link(ring_events_max=1000)
    link.publish(*wide(256))
    link.beat()
    link.view.reset_worker(link.worker)
    link.beat()
    assert link.reasons == ["drift in 256 of 256 buckets"]
    link.beat()
    assert link.agrees()
    assert link.subscriber.snapshots == 2
    link.view.reset_worker(link.worker)
    link.beat()
    assert len(link.reasons) == 1, "a second snapshot so soon would flood the worker"
    assert len(link.asked[0]) == 64
    for _ in range(4):
        link.answer()
        link.beat()
    assert link.agrees()


def test_blocks_dropped_for_the_budget_are_not_drift() -> None:
    view = View()
    link = Link(view=view, ring_events_max=1000)
    view.tree_bytes_max = view.bytes + 20 * 192 + 1024
    link.publish(*wide(100))
    link.beat()
    assert view.bytes <= view.tree_bytes_max
    assert 0 < view.blocks(link.worker) <= 23
    assert link.subscriber.drift is False
    link.publish(*(Removed(namespace_id=ROOT, hashes=run.hashes) for run in wide(60)))
    link.beat()
    assert link.subscriber.drift is False
    assert not link.asked
    assert link.agrees()


def test_a_dropped_block_that_is_revalued_heals_by_its_bucket() -> None:
    """The view cannot know what it counted before: the one case where its budget costs a resync."""
    view = View()
    link = Link(view=view, ring_events_max=1000)
    view.tree_bytes_max = view.bytes + 20 * 192 + 1024
    link.publish(*wide(100))
    link.beat()
    first = wide(1)[0]
    assert view.match(GROUP, first.hashes) == {}
    link.publish(Stored(namespace_id=ROOT, parent=ROOT, hashes=first.hashes, usable=(12,)))
    link.beat()
    assert link.subscriber.drift is True
    link.settle()
    assert link.agrees()
    assert link.subscriber.drift is False


class FeedMachine(RuleBasedStateMachine):
    """Two workers into one view, with every mishap; at the end, and whenever a heartbeat got through, they agree."""

    def __init__(self) -> None:
        super().__init__()
        self.view = View()
        self.links = [Link("w0", self.view), Link("w1", self.view)]
        self.truth = [Holdings(), Holdings()]

    WHO = st.integers(0, 1)

    @rule(who=WHO, events=st.lists(EVENTS, min_size=1, max_size=4))
    def publish(self, who: int, events: list[CacheEvent]) -> None:
        for event in events:
            if isinstance(event, Removed):
                held = self.truth[who].held
                hashes = tuple(block for block in event.hashes if (block, event.tier) in held)
                event = Removed(namespace_id=ROOT, hashes=hashes, tier=event.tier)
            self.truth[who].apply(event)
            self.links[who].publish(event)

    @rule(who=WHO)
    def pump(self, who: int) -> None:
        self.links[who].pump()

    @rule(who=WHO)
    def beat(self, who: int) -> None:
        self.links[who].beat()

    @rule(who=WHO)
    def answer(self, who: int) -> None:
        self.links[who].answer()

    @rule(who=WHO)
    def lose_the_question(self, who: int) -> None:
        self.links[who].asked.clear()

    @rule(who=WHO)
    def cut(self, who: int) -> None:
        self.links[who].cut()

    @rule(who=WHO, sent=st.integers(0, 5))
    def cut_midway(self, who: int, sent: int) -> None:
        link = self.links[who]
        link.cut()
        link.connected = True
        link.sent = link.publisher.number
        link.carry(link.publisher.subscribe(*link.subscriber.resume)[:sent])
        link.cut()

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.truth[who] = Holdings()
        self.links[who].restart()

    @rule(who=WHO)
    def lose_an_event(self, who: int) -> None:
        link = self.links[who]
        if link.connected:
            link.sent = link.publisher.number

    @rule(who=WHO, lie=EVENTS)
    def plant_drift(self, who: int, lie: CacheEvent) -> None:
        self.view.apply(self.links[who].worker, lie)

    @invariant()
    def publishers_tell_the_truth(self) -> None:
        for link, truth in zip(self.links, self.truth, strict=True):
            assert link.publisher.heartbeat(LOAD).buckets == truth.buckets()
            link.publisher.check()

    def teardown(self) -> None:
        for link, truth in zip(self.links, self.truth, strict=True):
            link.settle()
            assert link.agrees()
            assert link.subscriber.drift is False
            assert link.subscriber.lag_events == 0
            assert self.view.blocks(link.worker) == len(truth.held)


TestFeed = FeedMachine.TestCase
TestFeed.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
