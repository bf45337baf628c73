"""What client processes and the run say to each other: length-prefixed frames on the child's standard streams.

Keeps true: a frame is read whole or not at all. The job is pickled: it goes from a process to its own child, never
over a network. Does not know processes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.driver import Pace
from trieway.loadgen.records import Record
from trieway.loadgen.vocabulary import Workload

_LENGTH = struct.Struct("<I")
FRAME_BYTES_MAX = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One client process' share."""

    workload: Workload
    pace: Pace
    dialect: Dialect
    connections_max: int


class Go(msgspec.Struct, frozen=True, tag="go"):
    """To a child: time zero, by time.monotonic(), which all processes of a machine share."""

    start_s: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """To a child: cut short, and send what there is."""


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """From a child: it can start."""


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """From a child, now and then: calls that ended, with their answers, and where it stands."""

    records: list[Record]
    answers: list[str]
    sent: int
    in_flight: int


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """From a child, last. `wall_s`: from time zero; `connections`: most at once."""

    unsent: int
    cpu_s: float
    wall_s: float
    connections: int
    messages: dict[str, str]
    hints: int
    hints_failed: int


ToChild = Go | Stop
FromChild = Prepared | Batch | Finished
_to_child = msgspec.msgpack.Decoder(ToChild)
_from_child = msgspec.msgpack.Decoder(FromChild)


def frame(data: bytes) -> bytes:
    """With its length."""
    assert len(data) <= FRAME_BYTES_MAX, "a frame is too long"
    return _LENGTH.pack(len(data)) + data


def encode(message: ToChild | FromChild) -> bytes:
    """A whole frame."""
    return frame(msgspec.msgpack.encode(message))


def to_child(data: bytes) -> ToChild:
    """What `encode` framed."""
    return _to_child.decode(data)


def from_child(data: bytes) -> FromChild:
    """What `encode` framed."""
    return _from_child.decode(data)


def encode_job(job: Job) -> bytes:
    """A whole frame."""
    plain = replace(job, workload=replace(job.workload, settings={}))  # settings are for reports; some do not pickle
    return frame(pickle.dumps(plain, protocol=pickle.HIGHEST_PROTOCOL))


def decode_job(data: bytes) -> Job:
    """What `encode_job` framed."""
    job = pickle.loads(data)  # noqa: S301 - from our own parent
    assert isinstance(job, Job), "no job"
    return job


class Frames:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Frames that `data` completes."""
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            end = _LENGTH.size + length
            if len(self._held) < end:
                return
            whole = bytes(self._held[_LENGTH.size : end])
            del self._held[:end]
            yield whole
