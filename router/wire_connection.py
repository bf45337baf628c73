"""One connection to a worker at the asyncio Protocol level, and the exchange that it carries.

Keeps true: one exchange at a time; whoever reads it sees its end exactly once, whole or as an `UpstreamError`; what has
arrived and is not read yet is bounded, for the socket is not read meanwhile; only a whole answer that allows it gives
the connection back. Does not know pools (wire_upstream.py), workers or retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

from trieway.router.hot_path import HeaderList
from trieway.router.upstream import Broke, StaleConnection, TimedOut, UpstreamError

HEAD_BYTES_MAX = 128 << 10
"""Longest head of an answer, and longest trailers."""
UNREAD_BYTES_MAX = 256 << 10
"""So much may have arrived unread before the socket is left alone."""


class WireExchange:
    """One answer under way: iterate over it for the body, `close` it on every path. One reader at a time."""

    __slots__ = (
        *("_failed", "_full", "_put", "_silence_max_s"),
        *("_connection", "_done", "_error", "_parts", "_paused", "_unread", "_waiter", "content_type", "delimited"),
        *("headers", "status"),
    )

    def __init__(self, connection: WireConnection, silence_max_s: float | None = None) -> None:
        self._connection = connection
        self._silence_max_s = silence_max_s
        self._parts: list[bytes] = []
        self._unread = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._done = False
        self._error: UpstreamError | None = None
        self._put: Callable[[bytes], bool] | None = None
        self._full = False
        self._failed: Exception | None = None
        self.status = 0
        self.headers: HeaderList = []
        self.content_type = b""
        self.delimited = False

    async def head(self) -> None:
        """Until status and headers are here. Raises UpstreamError."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._more()

    def chunks(self) -> WireExchange:
        """See `Answer.chunks`."""
        return self

    def __aiter__(self) -> WireExchange:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._done:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._more()
        return self._take()

    def _take(self) -> bytes:
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        self._unread = 0
        self._resume()
        return data

    async def pump(self, put: Callable[[bytes], bool], room: Callable[[], Awaitable[None]]) -> None:
        """See `PumpedAnswer.pump`."""
        self._put = put
        try:
            while True:
                self._pour()
                if self._failed is not None:
                    raise self._failed
                if self._full:
                    self._pause()
                    await room()
                    self._full = False
                elif self._done:
                    return
                elif self._error is not None:
                    raise self._error
                else:
                    self._resume()
                    await self._more()
        finally:
            self._put = None

    def _pour(self) -> None:
        """Gives the sink what has arrived, unless the sink is full."""
        parts = self._parts
        if self._full or not parts or self._put is None:
            return
        self._parts, self._unread = [], 0
        try:
            self._full = not self._put(parts[0] if len(parts) == 1 else b"".join(parts))
        except Exception as error:  # the reader's own: raised where it reads
            self._failed = error

    def _pause(self) -> None:
        """Leaves the socket alone: the other side must wait."""
        if not self._paused and not self._done:
            self._paused = True
            self._connection.pause()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._done:
                self._connection.resume()

    async def _more(self) -> None:
        loop = self._connection.loop
        waiter = self._waiter = loop.create_future()
        timer = None if self._silence_max_s is None else loop.call_later(self._silence_max_s, self._silent)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _silent(self) -> None:
        """Nothing came for too long, while somebody waited."""
        self._error = TimedOut("the worker was silent for too long")
        self.wake()

    def close(self) -> None:
        """Ends it; the connection is kept only if the answer was whole."""
        if not self._done:
            self._connection.drop(self)

    # The connection's side.

    def began(self, status: int, headers: HeaderList) -> None:
        """The head is here."""
        self.status, self.headers = status, headers
        for name, value in headers:
            if name == b"content-type":
                if not self.content_type:
                    self.content_type = value.split(b";", 1)[0].strip().lower()
            elif name == b"content-length" or name == b"transfer-encoding":
                self.delimited = True

    def came(self, data: bytes) -> None:
        """A piece of the body."""
        self._parts.append(data)
        self._unread += len(data)

    def wake(self) -> None:
        """All that has arrived is here: whoever reads may go on."""
        if self._put is not None:
            self._pour()
            if self._full:
                self._pause()
            elif not self._done and self._error is None and self._failed is None:
                return
        elif self._unread > UNREAD_BYTES_MAX:
            self._pause()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def ended(self, error: UpstreamError | None) -> None:
        """The answer is whole, or broke."""
        if error is None:
            self._done = True
        else:
            self._error = error


class WireConnection(asyncio.Protocol):
    """`idle` is told each time the connection may be asked again, `lost` when it is no more."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle: Callable[[WireConnection], None],
        lost: Callable[[WireConnection], None],
    ) -> None:
        self.loop = loop
        self._on_idle = idle
        self._on_lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: WireExchange | None = None
        self._headers: HeaderList = []
        self._head_bytes = 0
        self._used = False
        self._heard = False
        self._until_close = False
        self.open = False
        self.idle_since = 0.0

    # The pool's side.

    def ask(self, request: bytes, body: bytes, silence_max_s: float | None = None) -> WireExchange:
        """Sends a whole request. The connection must be open and idle."""
        assert self.open, "the connection is closed"
        assert self._exchange is None, "one exchange at a time"
        assert self._transport is not None
        exchange = self._exchange = WireExchange(self, silence_max_s)
        self._heard = False
        self._until_close = False
        if len(body) <= _JOIN_BYTES_MAX:
            self._transport.write(request + body)
        else:
            self._transport.writelines((request, body))
        return exchange

    def drop(self, exchange: WireExchange) -> None:
        """`exchange` is given up: what still comes is nobody's."""
        if self._exchange is exchange:
            self.abort()

    def abort(self) -> None:
        """Closes at once; whoever reads hears nothing more."""
        self._exchange = None
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Leaves the socket alone: the other side must wait."""
        if self.open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.open and self._transport is not None:
            self._transport.resume_reading()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # nobody asked: whatever this is, the connection is out of step
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__
            if cause is not None and not isinstance(cause, httptools.HttpParserError):
                raise cause from None  # a bug of ours in a callback
            if self._exchange is not None:
                self._broke(Broke(f"the answer is no HTTP: {error}"))
            else:
                self.abort()
            return
        exchange.wake()

    def eof_received(self) -> None:
        return None  # close; connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        exchange = self._exchange
        if exchange is not None:
            if self._until_close and exc is None:
                self._exchange = None
                exchange.ended(None)
                exchange.wake()
            elif self._used and not self._heard:
                self._broke(StaleConnection("the worker closed a kept connection"))
            else:
                self._broke(Broke("the connection broke" if exc else "the worker closed the connection"))
        self._on_lost(self)

    def _broke(self, error: UpstreamError) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.ended(error)
            exchange.wake()

    # httptools' side.

    def on_message_begin(self) -> None:
        self._headers = []
        self._head_bytes = 0
        if self._exchange is None:
            self.abort()  # more than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise httptools.HttpParserError("the head is too long")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        status = self._parser.get_status_code()
        if exchange is None or (status < 200 and status != 101):
            return
        if not 200 <= status <= 599:  # no status that an answer can have: nothing that can be passed on
            raise httptools.HttpParserError(f"an answer of status {status}")
        exchange.began(status, self._headers)
        self._headers = []  # what follows are trailers
        self._head_bytes = 0
        self._until_close = not exchange.delimited and status not in (204, 304)

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.came(body)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or not exchange.status:
            return
        self._exchange = None
        exchange.ended(None)
        self._used = True
        transport = self._transport
        assert transport is not None
        if not self._parser.should_keep_alive() or transport.get_write_buffer_size():
            self.abort()  # or the worker answered before it had read all of the request
        else:
            self._on_idle(self)


_JOIN_BYTES_MAX = 16 << 10
"""Up to here one copy is cheaper than a second buffer."""
