"""One attempt to have a request answered by one worker: from its booking to its release.

Keeps true: the booking is released exactly once with what really happened, on every path, a cancel at any await
included; nothing goes to the client before the worker's first byte (a stream) or its whole answer (anything else), so
that until then the request can be tried elsewhere; a stream that breaks after that ends with an error event. Does not
know which worker comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from trieway.router.carrier import Answer, Carrier, PumpedAnswer
from trieway.router.core import Booking, Choice, FirstByte, Outcome, Query, RouterCore
from trieway.router.forwarding import Onward, request_headers, response_headers
from trieway.router.hot_path import HeaderList
from trieway.router.links import Lease, Link
from trieway.router.metrics import RouterMetrics
from trieway.router.questions import Question
from trieway.router.reply import Reply, last_words
from trieway.router.sse import LineHold
from trieway.router.upstream import Broke, ConnectFailed, StaleConnection, TimedOut, UpstreamError
from trieway.serving import headers as names
from trieway.serving.errors import ApiError, Timeout, Unavailable, sse_error
from trieway.serving.errors import Upstream as UpstreamFailure
from trieway.serving.router_trace import UNTRACED, RequestTrace

_WORKER = names.WORKER.encode()
_PREDICTED = names.PREDICTED_TOKENS.encode()
_ATTEMPTS = names.ATTEMPTS.encode()
_REQUEST_ID = names.REQUEST_ID.encode()
_CACHED = names.CACHED_TOKENS.encode()
_RECEIPT = names.RECEIPT.encode()
_RETRY_STATUSES = frozenset((429, 502, 503))


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A worker's refusal, whole, kept in case no other worker does better."""

    status: int
    headers: HeaderList
    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The attempt failed and the client has seen nothing. `reason` is a fixed word; `final`: try nobody else."""

    reason: str
    error: ApiError
    held: Held | None = None
    final: bool = False


@dataclass(kw_only=True, slots=True)
class Attempt:
    """`number` counts from 1. `run` may be called once.

    `whole_max_bytes`: a longer answer goes on as it comes, and can then no longer be tried elsewhere.
    """

    core: RouterCore
    upstream: Carrier
    metrics: RouterMetrics
    link: Link
    question: Question
    query: Query
    choice: Choice
    number: int
    reply: Reply
    lease: Lease
    whole_max_bytes: int
    clock: Callable[[], float]
    trace: RequestTrace = UNTRACED
    _outcome: Outcome = Outcome.CANCELLED
    _booking: Booking | None = None
    _settled: bool = False
    _exchange: Answer | None = None
    _writing: bool = False
    _cached: bytes | None = None
    _hold: LineHold = field(default_factory=LineHold)

    async def run(self) -> Failed | None:
        """None once the client has its answer (complete or ended by an error event)."""
        booking = self._booking = self.core.book(self.query, self.choice, self.clock())
        lease = self.lease
        self.trace.sends(self.link.worker, self.number)
        try:
            with self.link.lend(lease):
                return await self._carry()
        except UpstreamError as error:
            return await self._broken(error)
        except TimeoutError:
            lost = Broke("the worker was lost") if lease.lost else TimedOut("the worker was silent for too long")
            return await self._broken(lost)
        except asyncio.CancelledError:
            # The client is gone and hears nothing, or this router ends and its streams with it.
            if not self._writing:
                await last_words(self._end_stream(Unavailable("the router is stopping", code="stopping")))
            raise
        finally:
            if self._exchange is not None:
                self._exchange.close()
            self.core.release(booking.id, self._outcome, self.clock())
            self.trace.attempt_ended(self._outcome)

    async def _carry(self) -> Failed | None:
        exchange = self._exchange = await self._open()
        self.trace.answered(exchange.status, exchange.headers)
        if self.link.fleet:
            self._settle(_first_byte(exchange))
        if exchange.content_type == b"text/event-stream" and exchange.status < 400:
            await self._stream(exchange)
            return None
        return await self._whole(exchange)

    async def _open(self) -> Answer:
        question = self.question
        headers = request_headers(
            question.headers,
            Onward(
                request_id=question.request_id,
                fleet_token=self.link.fleet_token,
                tenant=question.tenant,
                render_time_s=question.render_time_s if self.link.reads_clock else None,
                keep_credentials=question.keep_credentials,
                trace=self.trace.onward(),
            ),
        )
        try:
            return await self.upstream.open(self.link.url, question.target, headers, question.body)
        except StaleConnection:
            # The worker closed an idle connection as we wrote to it. A fresh one tells whether it is well.
            return await self.upstream.open(self.link.url, question.target, headers, question.body)

    async def _stream(self, exchange: Answer) -> None:
        hold = self._hold
        async for chunk in exchange.chunks():
            self.lease.heard()
            if data := hold.feed(chunk):
                await self._begin(exchange)
                await self._write(data)
                if self.reply.direct is not None and hasattr(exchange, "pump"):
                    await cast("PumpedAnswer", exchange).pump(self._put, self._room)
                    break
        if not exchange.delimited and not hold.finished:
            raise Broke("the stream ended without its last event")
        await self._begin(exchange)
        self._outcome = Outcome.OK
        await self.reply.write(hold.rest(), last=True)

    def _put(self, chunk: bytes) -> bool:
        """An arrival of a stream that has begun; False: the client is behind."""
        self.lease.heard()
        data = self._hold.feed(chunk)
        direct = self.reply.direct
        assert direct is not None
        return direct.put(data) if data else True

    async def _room(self) -> None:
        """Waits for the client; that it reads too slowly is not the worker's fault."""
        direct = self.reply.direct
        assert direct is not None
        self._writing = True
        await direct.room()
        self._writing = False

    async def _whole(self, exchange: Answer) -> Failed | None:
        parts: list[bytes] = []
        size = 0
        async for chunk in exchange.chunks():
            self.lease.heard()
            if self.reply.started:
                await self._write(chunk)
                continue
            parts.append(chunk)
            size += len(chunk)
            if size > self.whole_max_bytes:
                await self._begin(exchange)
                await self._write(b"".join(parts))
        self._outcome = _outcome(exchange.status)
        if self.reply.started:
            await self.reply.write(b"", last=True)
            return None
        body = b"".join(parts)
        if exchange.status in _RETRY_STATUSES:
            return self._refused(exchange, body)
        if not self.link.fleet and exchange.status == 200:
            self._cached = cached_of(body)
        await self._begin(exchange, length=len(body))
        await self.reply.write(body, last=True)
        return None

    def _refused(self, exchange: Answer, body: bytes) -> Failed:
        held = Held(status=exchange.status, headers=self._headers(exchange, len(body)), body=body)
        error = UpstreamFailure(f"the worker answered {exchange.status}")
        return Failed(reason=f"http_{exchange.status}", error=error, held=held)

    async def _write(self, data: bytes) -> None:
        """To the client; a client that reads too slowly is not the worker's fault."""
        self._writing = True
        await self.reply.write(data)
        self._writing = False

    async def _begin(self, exchange: Answer, length: int | None = None) -> None:
        """The first byte is here: settle the booking's receipt and start the answer."""
        if not self.reply.started:
            if not self._settled and length is None:
                self._settle(FirstByte())
            await self.reply.start(exchange.status, self._headers(exchange, length))

    def _settle(self, first: FirstByte | None) -> None:
        if first is not None and self._booking is not None:
            self._settled = True
            settled = self.core.receipt(self._booking.id, first, self.clock())
            self.metrics.settled(settled)

    def _headers(self, exchange: Answer, length: int | None) -> HeaderList:
        ours: HeaderList = [
            (_WORKER, self.link.worker.encode()),
            (_PREDICTED, b"%d" % self.choice.predicted_tokens),
            (_ATTEMPTS, b"%d" % self.number),
            (_REQUEST_ID, self.question.request_id.encode()),
        ]
        cached = self._cached if self._cached is not None else _header(exchange.headers, _CACHED)
        if cached is not None:
            ours.append((_CACHED, cached))
        if length is not None:
            ours.append((b"content-length", b"%d" % length))
        return response_headers(exchange.headers, ours)

    async def _broken(self, error: UpstreamError) -> Failed | None:
        timed_out = isinstance(error, TimedOut)
        self.trace.attempt_failed(error.reason)
        if not self._writing:
            self._outcome = Outcome.TIMEOUT if timed_out else Outcome.WORKER_ERROR
        if isinstance(error, ConnectFailed | Broke):
            self.link.suspect()
        api: ApiError = Timeout("the worker was silent for too long") if timed_out else UpstreamFailure(_say(error))
        if not self.reply.started:
            return Failed(reason=error.reason, error=api, final=timed_out)
        self.metrics.broken_stream(self.link.worker)
        self.trace.broke()
        await self._end_stream(api)
        return None

    async def _end_stream(self, error: ApiError) -> None:
        if self.reply.started:
            await self.reply.cut(self._hold.seam() + sse_error(error))


def _say(error: UpstreamError) -> str:
    if isinstance(error, ConnectFailed):
        return "the worker could not be reached"
    return "the worker broke off before its answer was complete"


def _outcome(status: int) -> Outcome:
    if status < 400:
        return Outcome.OK
    if status == 429:
        return Outcome.BUSY
    return Outcome.CLIENT_ERROR if status < 500 else Outcome.WORKER_ERROR


def _first_byte(exchange: Answer) -> FirstByte | None:
    receipt = names.Receipt.parse(_header(exchange.headers, _RECEIPT))
    if receipt is None:
        return None
    return FirstByte(
        prompt_tokens=receipt.prompt,
        cached_tokens=receipt.cached,
        epoch=receipt.epoch,
        number=receipt.number,
        queue_ms=receipt.queue_ms,
        prefill_ms=receipt.prefill_ms,
        waiting=receipt.waiting,
    )


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


def cached_of(body: bytes) -> bytes | None:
    """What a foreign engine says that it reused, out of a whole answer; None where it says nothing."""
    if b"cached_tokens" not in body:
        return None
    try:
        usage = msgspec.json.decode(body, type=_Answer).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    details = None if usage is None else usage.prompt_tokens_details
    return None if details is None or details.cached_tokens is None else b"%d" % details.cached_tokens


def _header(headers: HeaderList, key: bytes) -> bytes | None:
    for candidate, value in headers:
        if candidate == key:
            return value
    return None
