"""HTTP/1.1 on one connection as both servers speak it: uvicorn's protocol with bounds that it lacks.

Keeps true: a request's head, its trailers and the requests waiting behind it are bounded; a connection that does not
get on with its request is closed; an offer to upgrade (h2c, as Java's client makes with every first request) is passed
over and the request served as it is; what cannot be read is refused in OpenAI's shape. Does not know routes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trieway.serving.errors import ApiError, BadRequest, HeadTooLarge, SlowRequest, error_body


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Its bounds are class attributes."""

    head_bytes_max = 128 << 10
    """Longest request line and headers together; trailers as well."""
    pipeline_max = 256
    """Most requests that wait for the answer to an earlier one."""
    head_timeout_s = 30.0
    """Longest time from a head's first byte to its last."""
    body_timeout_s = 300.0
    """Longest time from a head's last byte to the body's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._unread_bytes = 0
        self._progress = 0
        self._in_head = False
        self._refusal: ApiError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: tuple[float | None] | None = None
        """What the timer is to be set to (None in it: off) once all that has come is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_timer(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, which calls the methods below."""
        self._unset_keepalive_if_required()
        progress = self._progress
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._pass_over_upgrade(data[offer.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal or BadRequest("The request is not valid HTTP.", code="invalid_http"))
            return
        self._unread_bytes = self._unread_bytes + len(data) if self._progress == progress else 0
        if self._unread_bytes > self.head_bytes_max:
            self._refuse(self._head_too_large())
        elif self._due is not None:
            self._set_timer(*self._due)
        if self._timer is None and self.timeout_keep_alive_task is None and self._idle:
            self._set_timer(self.timeout_keep_alive)  # bytes that begin no request

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # What the parser finds.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._progress += 1
        self._head_bytes = 0
        self._in_head = True
        self._due = (self.head_timeout_s,)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self._in_head:  # trailers are nobody's headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._progress += 1
        self._in_head = False
        self._head_bytes = 0
        if self.parser.should_upgrade():
            return
        if len(self.pipeline) >= self.pipeline_max:
            self._refusal = BadRequest("Too many requests wait on this connection.", code="pipeline_full")
            raise self._refusal
        self._due = (self.body_timeout_s,)
        self.open_request()

    def on_body(self, body: bytes) -> None:
        self._progress += 1
        self.take_body(body)

    def on_message_complete(self) -> None:
        self._progress += 1
        if self.parser.should_upgrade():
            return
        self._due = (None,)
        self.close_request()

    # What becomes of it; a subclass may serve some requests in its own way.

    def open_request(self) -> None:
        """The head is whole and within its bounds."""
        super().on_headers_complete()

    def take_body(self, body: bytes) -> None:
        """A piece of the body of the request read last."""
        super().on_body(body)

    def close_request(self) -> None:
        """The request read last is whole."""
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.head_bytes_max:
            self._refusal = self._head_too_large()
            raise self._refusal

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"The request line and headers are larger than {self.head_bytes_max} bytes.")

    def _pass_over_upgrade(self, rest: bytes) -> None:
        """Reads the request anew without its offer, so that its body is taken for one."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(BadRequest("This is no proxy.", code="invalid_http"))
            return
        self.parser = httptools.HttpRequestParser(self)
        head = [method + b" " + self.url + b" HTTP/1.1\r\n"]
        head += [name + b": " + value + b"\r\n" for name, value in self.headers if name not in _OFFER]
        self.data_received(b"".join([*head, b"\r\n", rest]))

    # Ends.

    def _refuse(self, error: ApiError) -> None:
        """Answers where no answer is under way, and closes."""
        if self.transport.is_closing():
            return
        if self._idle or not self.cycle.response_started:
            body = error_body(error)
            own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            headers = [*self.server_state.default_headers, *own, (b"connection", b"close")]
            lines = b"".join(b"%s: %s\r\n" % pair for pair in headers)
            self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + body)
        self.transport.close()

    def _set_timer(self, timeout_s: float | None) -> None:
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if timeout_s is None else self.loop.call_later(timeout_s, self._expired)

    def _expired(self) -> None:
        self._timer = None
        if self.pipeline or (self._in_head and not self._idle):
            self._set_timer(self.body_timeout_s)  # an earlier request is being answered
        elif self._in_head or not self._idle:
            self._refuse(SlowRequest("The request did not arrive in time."))
        else:
            self.transport.close()


_OFFER = frozenset((b"connection", b"upgrade", b"http2-settings"))
