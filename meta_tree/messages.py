"""The frames of a worker's feed, as values. frames.py turns them into bytes and back.

Keeps true: frames hold hashes, counts and rates, never text or tokens. Does not know in which order they come
(publisher.py, subscriber.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from trieway.meta_tree.events import CacheEvent, Stored


class WireError(Exception):
    """What a peer sent cannot be used: broken bytes, or a wire, block size or key that is not ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLoad:
    """A worker's own numbers at one moment."""

    running: int
    waiting: int
    waiting_tokens: int
    """Uncached prompt tokens not yet computed, of waiting and running requests."""
    running_tokens: int
    """Context tokens of the running requests."""
    prefill_tokens_per_s: float
    decode_step_ms: float
    kv_free_tokens: int
    kv_cached_tokens: int
    kv_total_tokens: int
    draining: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """First frame of every stream. `number` is the publisher's last event number at that moment."""

    wire: int
    block_bytes: int
    seed_id: str
    group: str
    epoch: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotBegin:
    """All that was known before is void; the Deltas up to SnapshotEnd are the whole content as of `number`."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotEnd:
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """One event. Within a snapshot all Deltas carry the snapshot's number; otherwise numbers rise by one."""

    number: int
    event: CacheEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """Sent each second: the last event number, and the digest of all that is held as of that number."""

    number: int
    epoch: int
    buckets: tuple[int, ...]
    """256 sums mod 2**64, see digest.py."""
    load: WorkerLoad


@dataclass(frozen=True, kw_only=True, slots=True)
class Buckets:
    """The whole content of the asked digest buckets (0 .. 255) as of `number`."""

    number: int
    indices: tuple[int, ...]
    events: tuple[Stored, ...]


Frame: TypeAlias = Hello | SnapshotBegin | SnapshotEnd | Delta | Heartbeat | Buckets
