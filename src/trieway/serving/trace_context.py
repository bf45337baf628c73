"""W3C Trace Context: what `traceparent` and `tracestate` say, and how they are written.

Keeps true: parsing never raises; a `traceparent` that the standard calls invalid, or that stands there twice, is as
none, and its `tracestate` goes with it; what is written is version 00. Does not know spans or who is sampled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
STATE_MAX_BYTES = 512
"""Longest `tracestate` passed on: what the standard asks for at least. A longer one is dropped whole."""

SAMPLED = 0x01
_KNOWN_FLAGS = 0x03
"""Sampled, and the trace id is random. Others are not ours to repeat."""

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?\Z")
_STATE = re.compile(rb"[\x20-\x7e]+\Z")
_PARENT_MAX_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceContext:
    """A place in a trace: the span that causes what comes next. `state` is the vendors' own, `b""` for none."""

    trace_id: int
    span_id: int
    flags: int = SAMPLED
    state: bytes = b""

    @property
    def sampled(self) -> bool:
        """Whether the caller records this trace."""
        return bool(self.flags & SAMPLED)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that tell a callee."""
        parent = b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.flags)
        found = [(TRACEPARENT, parent)]
        if self.state:
            found.append((TRACESTATE, self.state))
        return found


def context_of(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The caller's context in raw headers with lower-case names; None where there is none that can be used."""
    parent: bytes | None = None
    states: list[bytes] = []
    for name, value in headers:
        if name == TRACEPARENT:
            if parent is not None:
                return None
            parent = value
        elif name == TRACESTATE:
            states.append(value)
    return None if parent is None else _read(parent, states)


def _read(parent: bytes, states: list[bytes]) -> TraceContext | None:
    found = _PARENT.match(parent) if len(parent) <= _PARENT_MAX_BYTES else None
    if found is None:
        return None
    version, trace_id, span_id = (int(found[group], 16) for group in (1, 2, 3))
    # Later versions may say more at the end; version 00 may not, and ff is no version.
    if version == 0xFF or (version == 0 and found[5] is not None) or not trace_id or not span_id:
        return None
    state = b",".join(states)
    usable = len(state) <= STATE_MAX_BYTES and _STATE.match(state) is not None
    flags = int(found[4], 16) & _KNOWN_FLAGS
    return TraceContext(trace_id=trace_id, span_id=span_id, flags=flags, state=state if usable else b"")
