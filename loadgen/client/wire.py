"""One HTTP/1.1 client connection: bytes out, a response parsed as it comes.

Keeps true: one exchange at a time; whoever asked hears exactly one end (`done` or `broke`); a connection is offered for
reuse only after a whole response that allows it. Does not know OpenAI, pools or retries.

asyncio's protocol level with httptools: several times the requests per core of any client built on streams.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol, cast

import httptools


class Listener(Protocol):
    """Who asked. Times are time.monotonic()."""

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        """The response begins; names in lower case."""

    def body(self, data: bytes, now: float) -> None:
        """A piece of the body, as it came."""

    def done(self, now: float) -> None:
        """The response is whole."""

    def broke(self, reason: str, now: float, *, heard: bool) -> None:
        """There will be no whole response. `heard`: some of it had come."""


class Connection(asyncio.Protocol):
    """`idle` is called each time the connection may be asked again."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.used = 0
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._listener: Listener | None = None
        self._heard = False
        self._headers: dict[bytes, bytes] = {}
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._keep = True
        self._until_close = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._now = monotonic()
        if self._listener is None:
            self.close()  # nobody asked: whatever this is, the connection is out of step
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # A callback of ours that raises arrives here too: ours is not the server's fault.
            cause = error.__context__
            if cause is not None and not isinstance(cause, httptools.HttpParserError):
                raise cause from None
            self._end(f"no HTTP: {error}")

    def eof_received(self) -> None:
        return None  # close; connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        listener = self._listener
        if listener is None:
            return
        self._now = monotonic()
        if self._until_close and exc is None:
            self._listener = None
            listener.done(self._now)
        else:
            self._end(f"the connection broke: {exc}" if exc else "the server closed the connection")

    # The asker's side

    def ask(self, request: bytes, listener: Listener) -> None:
        """Send a whole request. The connection must be open and idle."""
        assert self.open, "the connection is closed"
        assert self._listener is None, "one exchange at a time"
        assert self._transport is not None
        self._listener = listener
        self._heard = False
        self._keep = True
        self._until_close = False
        self.used += 1
        self._transport.write(request)

    @property
    def idle(self) -> bool:
        """Whether it may be asked."""
        return self.open and self._listener is None

    def close(self) -> None:
        """Drop it; a listener hears nothing more."""
        self._listener = None
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    # httptools' side

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._listener is not None:
            headers = self._headers
            self._keep = self._parser.should_keep_alive()
            self._until_close = (
                b"content-length" not in headers and b"chunked" not in headers.get(b"transfer-encoding", b"")
                and status not in (204, 304)
            )  # fmt: skip
            self._listener.head(status, headers)

    def on_body(self, data: bytes) -> None:
        if self._listener is not None:
            self._listener.body(data, self._now)

    def on_message_complete(self) -> None:
        listener = self._listener
        if self._parser.get_status_code() < 200 or listener is None:
            return
        self._listener = None
        self.idle_since = self._now
        if not self._keep:
            self.close()
        listener.done(self._now)

    def _end(self, reason: str) -> None:
        listener, heard, now = self._listener, self._heard, self._now
        self.close()
        if listener is not None:
            listener.broke(reason, now, heard=heard)
