"""What replicas on a Ray cluster tell of themselves, and who of them is alive. Pure.

Keeps true: an entry counts as alive while its beat moves; a reader that could not read for a while (the head was away)
declares nobody dead for that: only time in which it did read counts. Does not know where entries are kept
(ray_board.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

STALE_S = 20.0
"""An entry whose beat has not moved for so long, as seen by a reader that reads, is of a dead replica."""
READ_GAP_MAX_S = 5.0
"""A longer pause between two readings counts as this much: in it, writers may have been cut off too."""

Role = Literal["worker", "router"]
State = Literal["starting", "ready", "leaving", "draining"]
"""One that is leaving still serves, while it hands its prefixes on."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. `url` is where it serves (routers: the shared port); `probe_url` is its own port."""

    role: Role
    replica: str
    state: State
    url: str
    probe_url: str
    model: str
    node: str
    pid: int
    born: int
    """Seconds since 1970, for show and for order only."""
    beat: int
    version: str = ""


def encode_entry(entry: Entry) -> bytes:
    return msgspec.json.encode(entry)


def decode_entry(data: bytes) -> Entry | None:
    """None for what cannot be read (another version's)."""
    try:
        return msgspec.json.decode(data, type=Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class EntryTable:
    """Feed it every reading; `alive` and `dead` tell of the last one."""

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._stale_s = stale_s
        self._entries: dict[str, Entry] = {}
        self._still_s: dict[str, float] = {}
        self._read_at: float | None = None

    def read(self, entries: Iterable[Entry], now: float) -> None:
        """Takes all entries of the board as they are at `now` (seconds)."""
        passed = 0.0 if self._read_at is None else min(max(0.0, now - self._read_at), READ_GAP_MAX_S)
        self._read_at = now
        found = {entry.replica: entry for entry in entries}
        for replica, entry in found.items():
            known = self._entries.get(replica)
            moved = known is None or known.beat != entry.beat
            self._still_s[replica] = 0.0 if moved else self._still_s[replica] + passed
        for gone in self._still_s.keys() - found.keys():
            del self._still_s[gone]
        self._entries = found

    def alive(self, role: Role | None = None) -> list[Entry]:
        """Those that beat, oldest first."""
        found = [e for e in self._entries.values() if self._still_s[e.replica] < self._stale_s]
        return sorted((e for e in found if role in (None, e.role)), key=lambda e: (e.born, e.replica))

    def dead(self) -> list[Entry]:
        """Those that stopped."""
        return [e for e in self._entries.values() if self._still_s[e.replica] >= self._stale_s]

    def serving(self) -> frozenset[str]:
        """URLs of the workers that take requests."""
        return frozenset(e.url for e in self.alive("worker") if e.state in ("ready", "leaving"))

    def check(self) -> None:
        """Every entry has its stillness, and nothing else has."""
        assert self._entries.keys() == self._still_s.keys()
