"""The feed's frames in bytes: little-endian, length-prefixed, versioned. docs/feed.md shows them byte by byte.

Keeps true: `encode` and `FrameReader` are each other's inverse; whatever bytes come in, the reader raises nothing but
WireError and holds at most one frame. A run of blocks is one packed array of hashes and one of counts. Does not know
which frame may follow which (subscriber.py).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from trieway.meta_tree.chain import WIRE_VERSION
from trieway.meta_tree.digest import DIGEST_BUCKETS
from trieway.meta_tree.events import CacheEvent, Cleared, Removed, Stored
from trieway.meta_tree.ids import Tier
from trieway.meta_tree.messages import (
    Buckets,
    Delta,
    Frame,
    Heartbeat,
    Hello,
    SnapshotBegin,
    SnapshotEnd,
    WireError,
    WorkerLoad,
)

__all__ = [
    "FRAME_BYTES_MAX",
    "Buckets",
    "Delta",
    "Frame",
    "FrameReader",
    "Heartbeat",
    "Hello",
    "SnapshotBegin",
    "SnapshotEnd",
    "WireError",
    "WorkerLoad",
    "encode",
]

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""A reader's default bound. Runs are cut by the publisher far below it; a Buckets frame may come near."""

MAGIC = b"TRWY"
_NAME_BYTES_MAX = 1024

_LENGTH = struct.Struct("<I")
_HELLO = struct.Struct("<4sHHQQ")
_NUMBER = struct.Struct("<Q")
_HEARTBEAT = struct.Struct(f"<QQ{DIGEST_BUCKETS}Q")
_LOAD = struct.Struct("<IIQQddQQQB")
_STORED = struct.Struct("<BBQQI")
_REMOVED = struct.Struct("<BBQI")
_COUNT = struct.Struct("<I")
_NAME = struct.Struct("<H")

_HELLO_KIND, _BEGIN_KIND, _END_KIND, _DELTA_KIND, _HEARTBEAT_KIND, _BUCKETS_KIND = range(1, 7)
_STORED_EVENT, _REMOVED_EVENT, _CLEARED_EVENT = range(1, 4)


def encode(frame: Frame) -> bytes:
    """The frame's bytes. Asserts that numbers are in range: they are ours."""
    match frame:
        case Delta():
            kind, body = _DELTA_KIND, _NUMBER.pack(frame.number) + _encode_event(frame.event)
        case Heartbeat():
            kind, body = _HEARTBEAT_KIND, _encode_heartbeat(frame)
        case Hello():
            kind, body = _HELLO_KIND, _encode_hello(frame)
        case SnapshotBegin():
            kind, body = _BEGIN_KIND, _NUMBER.pack(frame.number)
        case SnapshotEnd():
            kind, body = _END_KIND, _NUMBER.pack(frame.number)
        case Buckets():
            kind, body = _BUCKETS_KIND, _encode_buckets(frame)
    return _LENGTH.pack(len(body) + 1) + bytes((kind,)) + body


def _encode_hello(frame: Hello) -> bytes:
    head = _HELLO.pack(MAGIC, frame.wire, frame.block_bytes, frame.epoch, frame.number)
    return head + _encode_name(frame.seed_id) + _encode_name(frame.group)


def _encode_name(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) <= _NAME_BYTES_MAX
    return _NAME.pack(len(raw)) + raw


def _encode_heartbeat(frame: Heartbeat) -> bytes:
    load = frame.load
    return _HEARTBEAT.pack(frame.number, frame.epoch, *frame.buckets) + _LOAD.pack(
        load.running,
        load.waiting,
        load.waiting_tokens,
        load.running_tokens,
        load.prefill_tokens_per_s,
        load.decode_step_ms,
        load.kv_free_tokens,
        load.kv_cached_tokens,
        load.kv_total_tokens,
        load.draining,
    )


def _encode_buckets(frame: Buckets) -> bytes:
    head = _NUMBER.pack(frame.number) + _NAME.pack(len(frame.indices)) + bytes(frame.indices)
    return head + _COUNT.pack(len(frame.events)) + b"".join(map(_encode_event, frame.events))


def _encode_event(event: CacheEvent) -> bytes:
    match event:
        case Stored():
            count = len(event.hashes)
            head = _STORED.pack(_STORED_EVENT, event.tier, event.namespace_id, event.parent, count)
            return head + struct.pack(f"<{count}Q{count}I", *event.hashes, *event.usable)
        case Removed():
            count = len(event.hashes)
            head = _REMOVED.pack(_REMOVED_EVENT, event.tier, event.namespace_id, count)
            usable = event.usable or (0,) * count
            return head + struct.pack(f"<{count}Q{count}I", *event.hashes, *usable)
        case Cleared():
            return bytes((_CLEARED_EVENT,))


class _Body:
    """A cursor over one frame; every read is checked against its end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1  # byte 0 is the kind

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        start = self._at
        self._at = start + layout.size
        if self._at > len(self._data):
            raise WireError("a frame is shorter than its kind needs")
        return layout.unpack_from(self._data, start)

    def raw(self, count: int) -> bytes:
        start = self._at
        self._at = start + count
        if self._at > len(self._data):
            raise WireError("a frame is shorter than the length inside it says")
        return self._data[start : self._at]

    def run(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        raw = self.raw(12 * count)
        return struct.unpack_from(f"<{count}Q", raw), struct.unpack_from(f"<{count}I", raw, 8 * count)

    def name(self) -> str:
        (count,) = self.take(_NAME)
        if count > _NAME_BYTES_MAX:
            raise WireError(f"a name of {count} bytes; at most {_NAME_BYTES_MAX} are allowed")
        try:
            return self.raw(count).decode()
        except UnicodeDecodeError:
            raise WireError("a name is not UTF-8") from None

    def end(self) -> None:
        if self._at != len(self._data):
            raise WireError("a frame is longer than its content")


def _decode_hello(body: _Body) -> Hello:
    magic, wire, block_bytes, epoch, number = body.take(_HELLO)
    if magic != MAGIC:
        raise WireError("this is not a trieway feed: the stream does not start with its magic")
    if wire != WIRE_VERSION:
        raise WireError(f"the peer speaks wire {wire}, we {WIRE_VERSION}: run one version of trieway on both sides")
    seed_id, group = body.name(), body.name()
    return Hello(wire=wire, block_bytes=block_bytes, seed_id=seed_id, group=group, epoch=epoch, number=number)


def _decode_begin(body: _Body) -> SnapshotBegin:
    return SnapshotBegin(number=body.take(_NUMBER)[0])


def _decode_end(body: _Body) -> SnapshotEnd:
    return SnapshotEnd(number=body.take(_NUMBER)[0])


def _decode_delta(body: _Body) -> Delta:
    (number,) = body.take(_NUMBER)
    return Delta(number=number, event=_decode_event(body))


def _decode_heartbeat(body: _Body) -> Heartbeat:
    number, epoch, *buckets = body.take(_HEARTBEAT)
    return Heartbeat(number=number, epoch=epoch, buckets=tuple(buckets), load=_decode_load(body))


def _decode_load(body: _Body) -> WorkerLoad:
    running, waiting, waiting_tokens, running_tokens, prefill, decode, free, cached, total, draining = body.take(_LOAD)
    if not (math.isfinite(prefill) and math.isfinite(decode) and prefill >= 0 and decode >= 0):
        raise WireError("a heartbeat's rate is not a finite number of zero or more")
    return WorkerLoad(
        running=running,
        waiting=waiting,
        waiting_tokens=waiting_tokens,
        running_tokens=running_tokens,
        prefill_tokens_per_s=prefill,
        decode_step_ms=decode,
        kv_free_tokens=free,
        kv_cached_tokens=cached,
        kv_total_tokens=total,
        draining=bool(draining),
    )


def _decode_buckets(body: _Body) -> Buckets:
    (number,) = body.take(_NUMBER)
    (count,) = body.take(_NAME)
    indices = tuple(body.raw(count))
    if len(set(indices)) != count:
        raise WireError("a Buckets frame names a bucket twice")
    (events_count,) = body.take(_COUNT)
    events: list[Stored] = []
    for _ in range(events_count):
        event = _decode_event(body)
        if not isinstance(event, Stored) or any(block >> 56 not in indices for block in event.hashes):
            raise WireError("a Buckets frame holds more than the content of its buckets")
        events.append(event)
    return Buckets(number=number, indices=indices, events=tuple(events))


def _decode_event(body: _Body) -> CacheEvent:
    kind = body.raw(1)[0]
    if kind == _CLEARED_EVENT:
        return Cleared()
    tier_byte = body.raw(1)[0]
    if tier_byte >= len(Tier):
        raise WireError(f"unknown tier {tier_byte}")
    tier = Tier(tier_byte)
    if kind == _STORED_EVENT:
        namespace_id, parent, count = body.take(_STORED_TAIL)
        hashes, usable = body.run(count)
        return Stored(namespace_id=namespace_id, parent=parent, hashes=hashes, usable=usable, tier=tier)
    if kind == _REMOVED_EVENT:
        namespace_id, count = body.take(_REMOVED_TAIL)
        hashes, usable = body.run(count)
        return Removed(namespace_id=namespace_id, hashes=hashes, usable=usable, tier=tier)
    raise WireError(f"unknown event {kind}")


_STORED_TAIL = struct.Struct("<QQI")
_REMOVED_TAIL = struct.Struct("<QI")

_DECODERS: dict[int, Callable[[_Body], Frame]] = {
    _HELLO_KIND: _decode_hello,
    _BEGIN_KIND: _decode_begin,
    _END_KIND: _decode_end,
    _DELTA_KIND: _decode_delta,
    _HEARTBEAT_KIND: _decode_heartbeat,
    _BUCKETS_KIND: _decode_buckets,
}


class FrameReader:
    """Cuts a byte stream into frames. After a WireError the stream is lost: reconnect with a new reader.

    Holds at most `frame_bytes_max` + 4 bytes between calls, whatever the peer sends.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has not come in whole; not zero at the stream's end means it was cut."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises WireError; frames before the broken one in `data` are lost too."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if not 1 <= length <= self._frame_bytes_max:
                raise WireError(f"a frame of {length} bytes; 1 to {self._frame_bytes_max} are allowed")
            start = at + _LENGTH.size
            if len(buffer) - start < length:
                break
            frames.append(_decode(bytes(buffer[start : start + length])))
            at = start + length
        del buffer[:at]
        return frames


def _decode(data: bytes) -> Frame:
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise WireError(f"unknown frame kind {data[0]}")
    body = _Body(data)
    frame = decoder(body)
    body.end()
    return frame
