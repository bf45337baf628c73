"""Frames: encode and read back, in any cuts; rubbish raises WireError and nothing else."""

from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.meta_tree.strategies import ANY_EVENT, ANY_STORED, COUNT, HASH, TIERS
from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.meta_tree.frames import (
    Buckets,
    Delta,
    Frame,
    FrameReader,
    Heartbeat,
    Hello,
    SnapshotBegin,
    SnapshotEnd,
    WireError,
    WorkerLoad,
    encode,
)

RATES = st.floats(0, allow_nan=False, allow_infinity=False)
LOADS = st.builds(
    WorkerLoad,
    running=COUNT,
    waiting=COUNT,
    waiting_tokens=HASH,
    running_tokens=HASH,
    prefill_tokens_per_s=RATES,
    decode_step_ms=RATES,
    kv_free_tokens=HASH,
    kv_cached_tokens=HASH,
    kv_total_tokens=HASH,
    draining=st.booleans(),
)


@st.composite
def buckets_frames(draw: st.DrawFn) -> Buckets:
    events = tuple(draw(st.lists(ANY_STORED, max_size=4)))
    named = {block >> 56 for event in events for block in event.hashes}
    named |= draw(st.sets(st.integers(0, 255), max_size=4))
    return Buckets(number=draw(HASH), indices=tuple(sorted(named)), events=events)


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(
        Hello,
        wire=st.just(WIRE_VERSION),
        block_bytes=st.integers(0, 65535),
        seed_id=st.text(st.characters(codec="utf-8"), max_size=20),
        group=st.text(st.characters(codec="utf-8"), max_size=20),
        epoch=HASH,
        number=HASH,
    ),
    st.builds(SnapshotBegin, number=HASH),
    st.builds(SnapshotEnd, number=HASH),
    st.builds(Delta, number=HASH, event=ANY_EVENT),
    st.builds(Heartbeat, number=HASH, epoch=HASH, buckets=st.tuples(*[HASH] * 256), load=LOADS),
    buckets_frames(),
)

LOAD = WorkerLoad(
    running=1,
    waiting=2,
    waiting_tokens=3,
    running_tokens=4,
    prefill_tokens_per_s=5.5,
    decode_step_ms=6.5,
    kv_free_tokens=7,
    kv_cached_tokens=8,
    kv_total_tokens=9,
    draining=True,
)
SAMPLES: list[Frame] = [
    Hello(wire=WIRE_VERSION, block_bytes=BLOCK_BYTES, seed_id="00ff00ff00ff00ff", group="g", epoch=3, number=9),
    SnapshotBegin(number=9),
    Delta(number=9, event=Stored(namespace_id=1, parent=1, hashes=(2, 3), usable=(16, 32))),
    SnapshotEnd(number=9),
    Delta(number=10, event=Removed(namespace_id=1, hashes=(3,), usable=(32,))),
    Delta(number=11, event=Cleared()),
    Heartbeat(number=11, epoch=3, buckets=tuple(range(256)), load=LOAD),
    Buckets(
        number=11,
        indices=(0, 4),
        events=(Stored(namespace_id=1, parent=1, hashes=(4 << 56,), usable=(16,)),),
    ),
]
STREAM = b"".join(map(encode, SAMPLES))


@given(frames=st.lists(FRAMES, max_size=5), data=st.data())
def test_frames_come_back_whatever_the_cuts(frames: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(encode, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader, found = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == frames
    assert reader.pending_bytes == 0


def test_frames_come_back_byte_by_byte() -> None:
    reader, found = FrameReader(), []
    for at in range(len(STREAM)):
        found += reader.feed(STREAM[at : at + 1])
    assert found == SAMPLES


def test_a_cut_stream_shows() -> None:
    reader = FrameReader()
    assert reader.feed(STREAM[:-1]) == SAMPLES[:-1]
    assert reader.pending_bytes > 0


def test_a_run_is_packed() -> None:
    """Twelve bytes a block; docs/feed.md states the rest."""
    run = Stored(namespace_id=1, parent=2, hashes=tuple(range(600)), usable=tuple(range(600)))
    assert len(encode(Delta(number=1, event=run))) == 4 + 1 + 8 + 2 + 8 + 8 + 4 + 600 * 12


def test_the_documented_bytes() -> None:
    stored = Stored(namespace_id=0x11, parent=0x22, hashes=(0x33, 0x44), usable=(5, 6))
    assert encode(Delta(number=7, event=stored)) == bytes.fromhex(
        "37000000"
        "04"
        "0700000000000000"
        "01"
        "00"
        "1100000000000000"
        "2200000000000000"
        "02000000"
        "3300000000000000"
        "4400000000000000"
        "05000000"
        "06000000"
    )
    hello = Hello(wire=1, block_bytes=64, seed_id="ab", group="g", epoch=2, number=3)
    assert encode(hello) == bytes.fromhex("200000000154525759010040000200000000000000030000000000000002006162010067")
    removed = Removed(namespace_id=0x11, hashes=(0x33,), usable=(5,))
    assert encode(Delta(number=8, event=removed)) == bytes.fromhex(
        "230000000408000000000000000200110000000000000001000000330000000000000005000000"
    )
    assert encode(Delta(number=9, event=Cleared())) == bytes.fromhex("0a00000004090000000000000003")
    assert encode(SnapshotBegin(number=1)) == bytes.fromhex("09000000020100000000000000")
    assert encode(SnapshotEnd(number=1)) == bytes.fromhex("09000000030100000000000000")
    heartbeat = encode(Heartbeat(number=1, epoch=2, buckets=(3,) * 256, load=LOAD))
    assert len(heartbeat) == 4 + 1 + 8 + 8 + 256 * 8 + 65


def feed_rubbish(data: bytes, frame_bytes_max: int = 4096) -> None:
    """Anything but a WireError (or whole frames) escapes and fails the test."""
    reader = FrameReader(frame_bytes_max)
    with contextlib.suppress(WireError):
        frames = reader.feed(data)
        assert reader.pending_bytes <= frame_bytes_max + 4
        for frame in frames:
            assert FrameReader().feed(encode(frame)) == [frame]


@given(data=st.binary(max_size=400))
def test_rubbish_raises_wire_error_alone(data: bytes) -> None:
    feed_rubbish(data)


@given(kind=st.integers(0, 8), body=st.binary(max_size=200))
def test_rubbish_in_a_well_formed_envelope(kind: int, body: bytes) -> None:
    feed_rubbish(struct.pack("<IB", len(body) + 1, kind) + body)


@settings(max_examples=300)
@given(at=st.integers(0, len(STREAM) - 1), flip=st.integers(1, 255))
def test_one_broken_byte_anywhere(at: int, flip: int) -> None:
    broken = bytearray(STREAM)
    broken[at] ^= flip
    feed_rubbish(bytes(broken))


@given(start=st.integers(0, len(STREAM)), end=st.integers(0, len(STREAM)))
def test_a_stream_entered_in_the_middle(start: int, end: int) -> None:
    feed_rubbish(STREAM[start:end])


@given(frame=FRAMES, cut=st.integers(1, 60), tier=TIERS)
def test_a_frame_that_lies_about_its_length(frame: Frame, cut: int, tier: int) -> None:
    whole = encode(frame)
    body = whole[4:-cut]
    if len(body) >= 1:
        with pytest.raises(WireError):
            FrameReader().feed(struct.pack("<I", len(body)) + body)
    longer = whole[4:] + bytes(cut)
    with pytest.raises(WireError):
        FrameReader().feed(struct.pack("<I", len(longer)) + longer)


def test_too_long_a_frame_is_refused_at_its_length() -> None:
    reader = FrameReader(100)
    with pytest.raises(WireError, match="101 bytes"):
        reader.feed(struct.pack("<I", 101))
    with pytest.raises(WireError):
        FrameReader().feed(b"\x00\x00\x00\x00")


def test_another_wire_is_named() -> None:
    other = bytearray(encode(SAMPLES[0]))
    other[9:11] = b"\x02\x00"
    with pytest.raises(WireError, match="wire 2"):
        FrameReader().feed(bytes(other))
    # Whatever another version puts behind the fixed beginning, it is its version that we name.
    with pytest.raises(WireError, match="wire 2"):
        FrameReader().feed(struct.pack("<I", len(other) - 4 + 9) + bytes(other[4:]) + bytes(9))


def test_a_web_page_is_not_a_feed() -> None:
    for page in (b"HTTP/1.1 200 OK\r\n\r\n", b'{"detail": "Not Found"}', b"<html></html>"):
        with pytest.raises(WireError):
            FrameReader().feed(page)
    with pytest.raises(WireError, match="magic"):
        FrameReader().feed(struct.pack("<IB", 33, 1) + bytes(32))


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, -1.0])
def test_a_rate_must_be_a_number_that_one_can_divide_by_or_compare(rate: float) -> None:
    whole = bytearray(encode(SAMPLES[6]))
    struct.pack_into("<d", whole, len(whole) - 65 + 24, rate)
    with pytest.raises(WireError, match="rate"):
        FrameReader().feed(bytes(whole))


def test_bucket_content_must_be_of_the_named_buckets() -> None:
    stray = Buckets(number=1, indices=(3,), events=(Stored(namespace_id=1, parent=1, hashes=(4 << 56,), usable=(1,)),))
    with pytest.raises(WireError, match="more than"):
        FrameReader().feed(encode(stray))
    twice = Buckets(number=1, indices=(3, 3), events=())
    with pytest.raises(WireError, match="twice"):
        FrameReader().feed(encode(twice))


def test_a_removal_that_was_not_counted_reads_as_zeros() -> None:
    (frame,) = FrameReader().feed(encode(Delta(number=1, event=Removed(namespace_id=1, hashes=(2, 3)))))
    assert frame == Delta(number=1, event=Removed(namespace_id=1, hashes=(2, 3), usable=(0, 0)))
