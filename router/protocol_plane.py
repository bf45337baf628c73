"""The fast data plane: completions served on the connection itself, below ASGI, on the same port.

A subclass of the servers' HTTP protocol (serving/protocol.py, over uvicorn's): plain POSTs to the hot path become a
`HotCycle`, which uvicorn takes for one of its own; everything else goes to the ASGI app as before. So uvicorn keeps the
listening, the pipeline, the draining at the end and the control plane.

Keeps true: answers go out in the order of their requests; a body over the bound is refused without being kept; a client
that goes away cancels its requests, waiting ones too; a client that reads slowly makes the worker wait. Does not know
how a worker is chosen or reached (hot_path.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trieway.router.hot_path import HOT_PATHS, HeaderList, HotPath, HotRequest, Kind
from trieway.serving.errors import ApiError, error_body
from trieway.serving.http import encode_headers, too_large
from trieway.serving.protocol import BoundedProtocol

log = logging.getLogger(__name__)

_PATHS: dict[bytes, Kind | None] = {path.encode(): kind for path, kind in HOT_PATHS.items()}
WAITING_BYTES_MAX = 1 << 20
"""Heads and bodies of requests that wait behind another on one connection: beyond this the client has to wait too."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Silent:
    """Stands where uvicorn's cycle has its event: nobody waits for it."""

    def set(self) -> None: ...


class HotCycle:
    """One completions request and its answer. A `Responder`, and what uvicorn's protocol expects of a cycle."""

    __slots__ = (
        *("_body", "_chunked", "_expects", "_head", "_kind", "_protocol", "_refusal", "_size", "_target"),
        *(
            "_headers",
            "_task",
            "_turn",
            "_whole",
            "disconnected",
            "head_bytes",
            "keep_alive",
            "old",
            "response_complete",
        ),
        "response_started",
    )

    message_event = _Silent()

    def __init__(self, protocol: HotProtocol, kind: Kind | None, *, old: bool, keep_alive: bool) -> None:
        """`old`: an HTTP/1.0 client, which knows no chunks."""
        self._protocol = protocol
        self._kind = kind
        self._target = protocol.url
        self._headers = protocol.headers
        self._expects = protocol.expect_100_continue
        self._body: list[bytes] = []
        self._size = 0
        self._whole = False
        self._turn = False
        self._refusal: ApiError | None = None
        self._task: asyncio.Task[None] | None = None
        self._head = b""
        self._chunked = False
        self.old = old
        self.head_bytes = 0
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_started = False
        self.response_complete = False

    # The request.

    def take(self, data: bytes, body_max_bytes: int) -> None:
        """A piece of the body."""
        if self._refusal is not None:
            return
        self._size += len(data)
        if self._size > body_max_bytes:
            self.refuse(too_large(body_max_bytes))
        else:
            self._body.append(data)

    @property
    def held_bytes(self) -> int:
        """What is held of a waiting request."""
        return self.head_bytes + (0 if self._refusal is not None else self._size)

    def refuse(self, error: ApiError) -> None:
        """Answers with an error in place of serving, as soon as it is its turn."""
        self._refusal = error
        self._body = []
        self._go()

    def end(self) -> None:
        """The body is whole."""
        self._whole = True
        self._go()

    def turn(self) -> None:
        """Earlier requests on this connection have their answers."""
        self._turn = True
        if self._refusal is not None:
            self._protocol.loop.call_soon(self._go)  # a whole pipeline of them must not become a deep recursion
        else:
            if self._expects and not self._whole and not self.old:
                self._protocol.transport.write(_CONTINUE)
            self._go()

    def _go(self) -> None:
        if not self._turn or self._task is not None or self.response_complete or self.disconnected:
            return
        if self._refusal is not None:
            self._answer(self._refusal)
        elif self._whole:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body = []
            request = HotRequest(
                kind=self._kind, target=self._target.decode("latin-1"), headers=self._headers, body=body
            )
            self._task = self._protocol.spawn(self._serve(request))

    async def _serve(self, request: HotRequest) -> None:
        try:
            await self._protocol.hot.serve(request, self)
        except asyncio.CancelledError:
            task = self._task
            assert task is not None
            # Swallow our own cancel only; another one (shutdown) goes on.
            if not self.disconnected or task.uncancel() > 0:
                raise
        except Exception:
            log.exception("a request failed beyond its answer")
        finally:
            if not self.response_complete and not self.disconnected:
                self._protocol.transport.close()  # without its end: it must not look whole

    def gone(self) -> None:
        """The client has hung up."""
        self.disconnected = True
        self._body = []
        if self._task is not None and not self.response_complete:
            self._task.cancel()

    # The answer.

    async def start(self, status: int, headers: HeaderList) -> None:
        """See `Responder.start`. The head goes out with the first bytes."""
        assert not self.response_started
        self.response_started = True
        lines = [self._protocol.first_lines(status)]
        sized = status in (204, 304)
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            sized = sized or name == b"content-length"
        if not sized:
            if self.old:
                self.keep_alive = False  # the end of the connection is the end of the answer
            else:
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """See `Responder.write`."""
        protocol = self._protocol
        if protocol.flow.write_paused and not self.disconnected:
            await protocol.flow.drain()
        if self.disconnected:
            return
        assert not self.response_complete
        head, self._head = self._head, b""
        if self._chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if last:
                data += b"0\r\n\r\n"
        if head or data:
            protocol.transport.write(head + data)
        if last:
            self._complete()

    def put(self, data: bytes) -> bool:
        """See `DirectResponder.put`."""
        protocol = self._protocol
        if self.disconnected:
            return True
        assert not self._head, "the head goes out with a first `write`"
        if self._chunked:
            protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            protocol.transport.write(data)
        return not protocol.flow.write_paused

    async def room(self) -> None:
        """See `DirectResponder.room`."""
        await self._protocol.flow.drain()

    def _answer(self, error: ApiError) -> None:
        """A whole error answer, without any waiting."""
        body = error_body(error)
        own = [("content-type", "application/json"), ("content-length", str(len(body))), *error.headers]
        lines = [self._protocol.first_lines(error.status)]
        lines += [b"%b: %b\r\n" % pair for pair in encode_headers(own)]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self.response_started = True
        self._protocol.transport.write(b"".join([*lines, b"\r\n", body]))
        self._complete()

    def _complete(self) -> None:
        self.response_complete = True
        protocol = self._protocol
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


class HotProtocol(BoundedProtocol):
    """One connection. Give `hot` and `body_max_bytes` through `functools.partial`."""

    # uvicorn's own cycles or ours.
    cycle: Any
    pipeline: deque[tuple[Any, Any]]

    def __init__(self, *args: Any, hot: HotPath, body_max_bytes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hot = hot
        self._body_max_bytes = body_max_bytes
        self._length = b""
        self._running: HotCycle | None = None
        """The one whose turn it is, until its answer is complete."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we have closed the connection."""
        super().connection_lost(exc)
        waiting = [cycle for cycle, _ in self.pipeline if isinstance(cycle, HotCycle)]
        for cycle in (self._running, *waiting):
            if cycle is not None:
                cycle.gone()
        self._running = None

    def spawn(self, work: Any) -> asyncio.Task[None]:
        """A task that the server waits for, or cancels, at its end."""
        task: asyncio.Task[None] = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def first_lines(self, status: int) -> bytes:
        """Status line and the server's own headers."""
        return STATUS_LINE[status] + _lines(self.server_state.default_headers)

    # What the parser finds. The first three are the base classes' work in one call each: they run for every header.

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._length = b""
        self._progress += 1
        self._head_bytes = 0
        self._in_head = True
        self._due = (self.head_timeout_s,)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if not self._in_head:
            return  # trailers are nobody's headers
        name = name.lower()
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"content-length":
            self._length = value
        self.headers.append((name, value))

    def _common(self) -> None:
        """Hands the request to the ASGI app, as uvicorn would have done."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        headers_of_scope = self.headers
        headers_of_scope += headers
        self.url, self.expect_100_continue = url, expects
        super().open_request()

    def open_request(self) -> None:
        """The head is whole: a completion is ours, all else goes the common way."""
        path, _, query = self.url.partition(b"?")
        parser = self.parser
        if path not in _PATHS or parser.get_method() != b"POST" or b"#" in query or self.limit_concurrency is not None:
            self._common()
            return
        old = parser.get_http_version() == "1.0"
        before = self.cycle
        cycle = HotCycle(self, _PATHS[path], old=old, keep_alive=not old and parser.should_keep_alive())
        self.cycle = cycle
        length = self._length
        if len(length) > 18 or (length.isdigit() and int(length) > self._body_max_bytes):
            cycle.refuse(too_large(self._body_max_bytes))
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            cycle.head_bytes = sum([len(name) + len(value) for name, value in self.headers])
            self.pipeline.appendleft((cycle, self.app))
            self._bound_waiting()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, HotCycle):
            self._running = cycle
            cycle.turn()
        else:
            super()._start_asgi_task(cycle, app)

    def take_body(self, body: bytes) -> None:
        """A piece of the body of the request read last."""
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            cycle.take(body, self._body_max_bytes)
            if self.pipeline:
                self._bound_waiting()
        else:
            super().take_body(body)

    def _bound_waiting(self) -> None:
        """Reads no more until the next answer is complete, if much waits; a hang-up is not seen meanwhile."""
        if sum(cycle.held_bytes for cycle, _ in self.pipeline if isinstance(cycle, HotCycle)) > WAITING_BYTES_MAX:
            self.flow.pause_reading()

    def close_request(self) -> None:
        """The request read last is whole."""
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            cycle.end()
        else:
            super().close_request()

    def on_response_complete(self) -> None:
        """An answer is complete: the next in line, or an idle connection."""
        self._running = None
        super().on_response_complete()


_rendered: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Header lines; uvicorn makes the list anew once a second."""
    global _rendered
    if _rendered[0] is not headers:
        _rendered = (headers, b"".join(b"%b: %b\r\n" % pair for pair in headers))
    return _rendered[1]
