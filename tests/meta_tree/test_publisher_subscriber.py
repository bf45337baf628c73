"""Each end alone: what a publisher accepts and bounds, whom a subscriber refuses."""

from __future__ import annotations

import pytest

from tests.meta_tree.link import GROUP, LOAD, SEED, Link
from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION
from trieway.meta_tree.digest import Digest
from trieway.meta_tree.events import Cleared, Removed, Stored, within
from trieway.meta_tree.frames import (
    FRAME_BYTES_MAX,
    Delta,
    Frame,
    Hello,
    SnapshotBegin,
    SnapshotEnd,
    WireError,
    encode,
)
from trieway.meta_tree.ids import Tier
from trieway.meta_tree.publisher import RUN_BLOCKS_MAX, Publisher
from trieway.meta_tree.subscriber import Reset, Subscriber

ROOT = 1


def publisher(**bounds: int) -> Publisher:
    return Publisher(epoch=4, seed_id=SEED, group=GROUP, **bounds)


def stored(start: int, end: int, usable: int = 16, tier: Tier = Tier.DEVICE) -> Stored:
    hashes = tuple(range(start, end))
    return Stored(
        namespace_id=ROOT,
        parent=start - 1 if start > 2 else ROOT,
        hashes=hashes,
        usable=tuple(usable * block for block in hashes),
        tier=tier,
    )


def deltas(frames: list[Frame] | None) -> list[Delta]:
    assert frames is not None
    return [frame for frame in frames if isinstance(frame, Delta)]


def test_numbers_rise_by_one_per_event() -> None:
    source = publisher()
    assert source.number == 0
    assert source.publish([stored(2, 5), stored(5, 7)]) == 2
    assert source.publish([]) == 2
    assert [frame.number for frame in deltas(source.after(0))] == [1, 2]
    assert source.after(2) == []
    assert source.after(3) is None
    source.check()


def test_events_that_change_nothing_get_no_number() -> None:
    source = publisher()
    source.publish([stored(2, 5)])
    assert source.publish([stored(2, 5), Removed(namespace_id=ROOT, hashes=())]) == 1
    assert source.publish([stored(2, 5, usable=15)]) == 2
    assert source.blocks == 3
    source.check()


def test_removals_say_what_each_block_counted() -> None:
    source = publisher()
    source.publish([stored(2, 5), Removed(namespace_id=ROOT, hashes=(4, 3))])
    removal = deltas(source.after(1))[0].event
    assert removal == Removed(namespace_id=ROOT, hashes=(4, 3), usable=(64, 48))
    source.check()


def test_removing_what_was_never_stored_is_a_bug_of_the_cache() -> None:
    with pytest.raises(AssertionError, match="never stored"):
        publisher().publish([Removed(namespace_id=ROOT, hashes=(9,))])
    source = publisher()
    source.publish([stored(2, 3)])
    with pytest.raises(AssertionError):
        source.publish([Removed(namespace_id=ROOT, hashes=(2,), tier=Tier.HOST)])


def test_the_ring_is_bounded_in_events_and_in_blocks() -> None:
    source = publisher(ring_events_max=3)
    for start in range(2, 12):
        source.publish([stored(start, start + 1)])
        source.check()
    assert [frame.number for frame in deltas(source.after(7))] == [8, 9, 10]
    assert source.after(6) is None
    source = publisher(ring_blocks_max=10)
    source.publish([stored(2, 8), stored(8, 14), stored(14, 16)])
    source.check()
    assert source.after(0) is None
    assert len(deltas(source.after(1))) == 2
    source.publish([stored(16, 40)])
    assert source.after(3) is None, "one run larger than the ring: whoever missed it takes a snapshot"
    assert source.after(4) == []


def test_a_snapshot_joins_neighbours_and_keeps_tiers_and_namespaces_apart() -> None:
    source = publisher()
    source.publish([stored(2, 5), stored(5, 9), stored(2, 4, tier=Tier.HOST)])
    source.publish([Stored(namespace_id=50, parent=50, hashes=(51,), usable=(16,))])
    frames = source.snapshot()
    assert frames[0] == SnapshotBegin(number=4)
    assert frames[-1] == SnapshotEnd(number=4)
    assert [frame.event for frame in deltas(frames)] == [
        stored(2, 9),
        Stored(namespace_id=50, parent=50, hashes=(51,), usable=(16,)),
        stored(2, 4, tier=Tier.HOST),
    ]


def test_long_runs_are_cut_far_below_a_frame() -> None:
    source = publisher()
    source.publish([stored(2, 2 + RUN_BLOCKS_MAX + 10)])
    assert source.number == 2
    second = deltas(source.after(1))[0].event
    assert isinstance(second, Stored)
    assert second.parent == 1 + RUN_BLOCKS_MAX
    assert [len(f.event.hashes) for f in deltas(source.snapshot()) if isinstance(f.event, Stored)] == [4096, 10]
    assert max(len(encode(frame)) for frame in source.snapshot()) < FRAME_BYTES_MAX / 100


def test_buckets_are_the_whole_content_of_what_was_asked() -> None:
    source = publisher()
    far = Stored(namespace_id=ROOT, parent=2, hashes=(7 << 56, 7 << 56 | 1), usable=(40, 50))
    source.publish([stored(2, 4), far])
    assert source.buckets([7]).events == (far,)
    assert source.buckets([7, 0, 7]).indices == (0, 7)
    assert source.buckets([9]).events == ()
    assert source.buckets([]).indices == ()
    for wrong in ([256], [-1], [0, 300]):
        with pytest.raises(ValueError, match="0 to 255"):
            source.buckets(wrong)


def test_cleared_empties_everything() -> None:
    source = publisher()
    source.publish([stored(2, 9), Cleared()])
    assert (source.blocks, source.digest_total, source.number) == (0, 0, 2)
    assert deltas(source.snapshot()) == []
    source.check()


def test_subscribe_begins_with_hello_then_replays_or_tells_all() -> None:
    source = publisher()
    source.publish([stored(2, 5)])
    hello = Hello(wire=WIRE_VERSION, block_bytes=BLOCK_BYTES, seed_id=SEED, group=GROUP, epoch=4, number=1)
    assert source.subscribe(1, 4) == [hello]
    assert source.subscribe(0, 4) == [hello, Delta(number=1, event=stored(2, 5))]
    for since, epoch in ((None, None), (1, 3), (2, 4), (1, None), (-1, 4), (None, 4)):
        assert source.subscribe(since, epoch)[1] == SnapshotBegin(number=1)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("wire", 2, "wire 2"),
        ("block_bytes", 128, "128 bytes"),
        ("seed_id", "another", "secret"),
        ("group", "another", "handshake"),
    ],
)
def test_a_subscriber_refuses_loudly(field: str, value: object, says: str) -> None:
    hello = {
        "wire": WIRE_VERSION,
        "block_bytes": BLOCK_BYTES,
        "seed_id": SEED,
        "group": GROUP,
        "epoch": 4,
        "number": 0,
    }
    subscriber = Subscriber(SEED, Digest, GROUP)
    assert subscriber.handle(Hello(**hello), 0.0) == [Reset(epoch=4)]  # type: ignore[arg-type]
    with pytest.raises(WireError, match=says):
        Subscriber(SEED, Digest, GROUP).handle(Hello(**{**hello, field: value}), 0.0)  # type: ignore[arg-type]


def test_a_subscriber_without_a_group_takes_any() -> None:
    source = publisher()
    assert Subscriber(SEED, Digest).handle(source.subscribe()[0], 0.0) == [Reset(epoch=4)]


def test_frames_before_hello_are_ignored() -> None:
    subscriber = Subscriber(SEED, Digest, GROUP)
    assert subscriber.handle(publisher().heartbeat(LOAD), 3.0) == []
    assert subscriber.handle(Delta(number=1, event=Cleared()), 4.0) == []
    assert subscriber.heard_at == 4.0
    assert not subscriber.synced


def test_a_broken_order_inside_a_snapshot_is_refused() -> None:
    link = Link()
    link.connect()
    with pytest.raises(WireError, match="did not begin"):
        link.receive(SnapshotEnd(number=0))
    link.receive(SnapshotBegin(number=5))
    with pytest.raises(WireError, match="middle of a snapshot"):
        link.receive(Delta(number=6, event=Cleared()))


def test_an_event_told_twice_is_applied_once() -> None:
    link = Link()
    link.publish(stored(2, 5))
    link.beat()
    link.publish(Cleared())
    link.beat()
    link.receive(Delta(number=1, event=stored(2, 5)))
    assert link.agrees()
    assert link.subscriber.gaps == 0


def test_a_heartbeat_of_another_epoch_is_a_gap() -> None:
    link = Link()
    link.beat()
    link.receive(Link().incarnation(9).heartbeat(LOAD))
    assert link.reasons == ["gap: a heartbeat of another epoch"]


def test_within_keeps_the_parents() -> None:
    run = Stored(namespace_id=ROOT, parent=ROOT, hashes=(1, 2 << 56, 3), usable=(10, 20, 30))
    assert list(within(run, {2, 9})) == [Stored(namespace_id=ROOT, parent=1, hashes=(2 << 56,), usable=(20,))]
    assert [part.parent for part in within(run, {0}) if isinstance(part, Stored)] == [ROOT, 2 << 56]
    removal = Removed(namespace_id=ROOT, hashes=(1, 2 << 56), usable=(10, 20))
    assert list(within(removal, {0})) == [Removed(namespace_id=ROOT, hashes=(1,), usable=(10,))]
    assert list(within(Cleared(), {0})) == [Cleared()]
