"""Spans of one request in one process: begun, ended, and handed over once, all together.

Keeps true: whoever records never waits, and pays nothing but a few clock readings; a trace that nobody records costs
two comparisons; every span of a trace ends at the latest with the trace. Times are seconds of the owner's clock until
the trace is handed over. Attributes are numbers, truth values and words of ours: no prompt, token, key or name of a
user. Does not know who exports (otlp.py) nor what a router or a worker records.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from trieway.serving.trace_context import SAMPLED, TraceContext, context_of

Value: TypeAlias = str | int | float | bool
_LOW_64 = (1 << 64) - 1


class Kind(IntEnum):
    """What a span is to the one beside it; the numbers are OTLP's."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


@dataclass(kw_only=True, slots=True)
class Span:
    """One piece of work. `began` and `ended` are seconds of the trace's clock; `error` is a fixed word, or empty."""

    name: str
    kind: Kind
    span_id: int
    parent_id: int
    began: float
    ended: float | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A whole trace of one process. Add `base_ns` to a span's time in nanoseconds for the time since 1970."""

    trace_id: int
    state: bytes
    remote_parent_id: int
    """Span id of the caller; 0 where the trace begins here."""
    base_ns: int
    spans: tuple[Span, ...]


Sink: TypeAlias = Callable[[Finished], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Which requests are recorded: `ratio` (0 to 1) of those that begin here; `parent_based`: a caller's own word
    counts for the others."""

    ratio: float = 1.0
    parent_based: bool = True

    def takes(self, trace_id: int, parent: TraceContext | None) -> bool:
        """The same verdict in every process that sees this trace with this ratio."""
        if parent is not None and self.parent_based:
            return parent.sampled
        return (trace_id & _LOW_64) < self.ratio * (1 << 64)


class Trace:
    """The spans of one request; `root` is the first and the others' parent unless said otherwise."""

    __slots__ = ("_base_ns", "_clock", "_rng", "_sink", "_spans", "parent", "root", "state", "trace_id")

    def __init__(
        self, *, trace_id: int, parent: TraceContext | None, name: str, sink: Sink, rng: random.Random, clock: Clock
    ) -> None:
        self.trace_id = trace_id
        self.parent = parent
        self.state = b"" if parent is None else parent.state
        self._sink = sink
        self._rng = rng
        self._clock = clock
        self._spans: list[Span] = []
        now = clock()
        self._base_ns = time.time_ns() - int(now * 1e9)
        self.root = self.span(name, now, kind=Kind.SERVER, parent_id=0 if parent is None else parent.span_id)

    @property
    def id(self) -> str:
        """The trace id as people write it."""
        return f"{self.trace_id:032x}"

    def span(
        self,
        name: str,
        began: float | None = None,
        *,
        kind: Kind = Kind.INTERNAL,
        parent_id: int | None = None,
    ) -> Span:
        """Begins a span, now unless `began` says when."""
        span = Span(
            name=name,
            kind=kind,
            span_id=new_id(self._rng, 64),
            parent_id=self.root.span_id if parent_id is None else parent_id,
            began=self._clock() if began is None else began,
        )
        self._spans.append(span)
        return span

    def now(self) -> float:
        """Seconds of the trace's clock."""
        return self._clock()

    def context(self, span: Span) -> TraceContext:
        """What a callee is told whose work `span` waits for."""
        flags = SAMPLED if self.parent is None else self.parent.flags | SAMPLED
        return TraceContext(trace_id=self.trace_id, span_id=span.span_id, flags=flags, state=self.state)

    def finish(self) -> None:
        """Ends what is still open and hands everything over."""
        now = self._clock()
        for span in self._spans:
            if span.ended is None:
                span.ended = now
        self._sink(
            Finished(
                trace_id=self.trace_id,
                state=self.state,
                remote_parent_id=0 if self.parent is None else self.parent.span_id,
                base_ns=self._base_ns,
                spans=tuple(self._spans),
            )
        )


Clock: TypeAlias = Callable[[], float]


class Tracer:
    """Begins traces as `sampling` says and gives finished ones to `sink`, which must return at once.

    `rng` makes the ids: seeded by the machine, for ids of two processes must not meet.
    """

    def __init__(
        self,
        sink: Sink,
        sampling: Sampling | None = None,
        *,
        rng: random.Random | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._sink = sink
        self._sampling = Sampling() if sampling is None else sampling
        self._rng = random.Random() if rng is None else rng
        self._clock = clock

    def begin(self, headers: Iterable[tuple[bytes, bytes]], name: str) -> Trace | TraceContext:
        """The request's trace; where it is not recorded, the context that tells callees so. Header names are
        lower-case."""
        parent = context_of(headers)
        trace_id = new_id(self._rng, 128) if parent is None else parent.trace_id
        if self._sampling.takes(trace_id, parent):
            return Trace(trace_id=trace_id, parent=parent, name=name, sink=self._sink, rng=self._rng, clock=self._clock)
        if parent is not None and not parent.sampled:
            return parent
        span_id = new_id(self._rng, 64) if parent is None else parent.span_id
        return TraceContext(trace_id=trace_id, span_id=span_id, flags=0, state=b"" if parent is None else parent.state)


def new_id(rng: random.Random, bits: int) -> int:
    """A random id; zero is none."""
    return rng.getrandbits(bits) or 1
