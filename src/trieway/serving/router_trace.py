"""What a router records of a request: the decision and the attempts, whichever of its data planes serves.

A data plane calls these in order: `begin`; for each attempt `chose` (or `rejected`), `sends`, `onward`, `answered`,
`attempt_ended`; `end` on every path. `broke` says that an answer was cut after its start. Without tracing `begin` gives
`UNTRACED`, whose methods do nothing.

Keeps true: the `traceparent` that goes to a worker names the attempt's span; no attribute holds what a client wrote,
but for its request id. Does not know cores, sockets or how an attempt goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from trieway.serving import headers as names
from trieway.serving.trace_context import TraceContext
from trieway.serving.tracing import Kind, Span, Trace, Tracer

HeaderList: TypeAlias = list[tuple[bytes, bytes]]
_CACHED = names.CACHED_TOKENS.encode()


class Chosen(Protocol):
    """What is recorded of a decision; the router core's `Choice` has it."""

    @property
    def worker(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def predicted_tokens(self) -> int: ...
    @property
    def available_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def predicted_ttft_ms(self) -> float: ...
    @property
    def rows(self) -> Sequence[object]: ...


class RequestTrace:
    """A request that is not recorded. `passed_on`: the trace headers for workers, None for the client's own."""

    __slots__ = ("_passed_on",)

    def __init__(self, passed_on: HeaderList | None = None) -> None:
        self._passed_on = passed_on

    @property
    def id(self) -> str:
        """The trace id for logs; empty where nothing is recorded."""
        return ""

    def answer_headers(self) -> HeaderList:
        """What the client's answer says of the trace."""
        return []

    def chose(self, choice: Chosen, model: str, attempt: int) -> None:
        """The decision is made. `model` is a name that the fleet serves."""

    def rejected(self, reason: str, attempt: int) -> None:
        """The decision went against the request; `reason` is a fixed word."""

    def sends(self, worker: str, attempt: int) -> None:
        """An attempt begins; `attempt` counts from 1."""

    def onward(self) -> HeaderList | None:
        """The trace headers of the attempt's request; None: the client's own go on."""
        return self._passed_on

    def answered(self, status: int, headers: HeaderList) -> None:
        """The head of the worker's answer is here."""

    def attempt_failed(self, reason: str) -> None:
        """The attempt broke; `reason` is a fixed word."""

    def attempt_ended(self, outcome: str) -> None:
        """The attempt is over; `outcome` is a fixed word."""

    def broke(self) -> None:
        """The answer was cut after its start."""

    def end(self, status: int) -> None:
        """The request is over, with `status` as the client got it (499: it went first). Call it once."""


UNTRACED = RequestTrace()


def begin(tracer: Tracer | None, headers: HeaderList, route: str, request_id: str) -> RequestTrace:
    """The trace of a request. `route` is a path of ours, never the client's."""
    if tracer is None:
        return UNTRACED
    found = tracer.begin(headers, f"POST {route}")
    if isinstance(found, TraceContext):
        return RequestTrace(found.headers())
    return Recorded(found, route, request_id)


class Recorded(RequestTrace):
    """A request that is recorded."""

    __slots__ = ("_attempt", "_free_at", "_trace")

    def __init__(self, trace: Trace, route: str, request_id: str) -> None:
        super().__init__()
        self._trace = trace
        self._attempt: Span | None = None
        # A decision begins where the last attempt ended; the first one with the request: reading, rendering and hashing
        # are part of it.
        self._free_at = trace.root.began
        trace.root.attributes = {
            "http.request.method": "POST",
            "http.route": route,
            "trieway.request_id": request_id,
        }

    @property
    def id(self) -> str:
        return self._trace.id

    def answer_headers(self) -> HeaderList:
        return [(names.TRACE_ID.encode(), self._trace.id.encode())]

    def chose(self, choice: Chosen, model: str, attempt: int) -> None:
        self._decided(attempt).attributes |= {
            "trieway.worker": choice.worker,
            "trieway.reason": choice.reason,
            "trieway.candidates": len(choice.rows),
            "trieway.prompt_tokens": choice.prompt_tokens,
            "trieway.predicted_tokens": choice.predicted_tokens,
            "trieway.available_tokens": choice.available_tokens,
            "trieway.predicted_ttft_ms": round(choice.predicted_ttft_ms, 3),
        }
        self._trace.root.attributes["gen_ai.request.model"] = model

    def rejected(self, reason: str, attempt: int) -> None:
        span = self._decided(attempt)
        span.attributes["trieway.rejection"] = span.error = reason

    def _decided(self, attempt: int) -> Span:
        """The decision's span, ended now."""
        span = self._trace.span("decide", self._free_at)
        span.ended = self._trace.now()
        span.attributes = {"trieway.attempt": attempt}
        return span

    def sends(self, worker: str, attempt: int) -> None:
        span = self._attempt = self._trace.span("attempt", kind=Kind.CLIENT)
        span.attributes = {"trieway.worker": worker, "trieway.attempt": attempt}
        self._trace.root.attributes["trieway.attempts"] = attempt

    def onward(self) -> HeaderList | None:
        assert self._attempt is not None, "an attempt that has not begun"
        return self._trace.context(self._attempt).headers()

    def answered(self, status: int, headers: HeaderList) -> None:
        span = self._attempt
        assert span is not None, "an attempt that has not begun"
        span.attributes["http.response.status_code"] = status
        span.attributes["trieway.first_byte_ms"] = round((self._trace.now() - span.began) * 1e3, 3)
        cached = next((value for name, value in headers if name == _CACHED), b"")
        cached_tokens = names.token_count(cached.decode("latin-1"))
        if cached_tokens is not None:
            span.attributes["trieway.cached_tokens"] = cached_tokens
        if status >= 400:
            span.error = str(status)

    def attempt_failed(self, reason: str) -> None:
        if self._attempt is not None:
            self._attempt.error = reason

    def attempt_ended(self, outcome: str) -> None:
        if self._attempt is not None:
            self._attempt.attributes["trieway.outcome"] = outcome
            self._attempt.ended = self._free_at = self._trace.now()
            self._attempt = None

    def broke(self) -> None:
        self._trace.root.error = "broken"

    def end(self, status: int) -> None:
        root = self._trace.root
        root.attributes["http.response.status_code"] = status
        if status >= 500:
            root.error = str(status)
        self._trace.finish()
