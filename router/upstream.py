"""The client that carries requests to workers: raw bytes both ways over kept-alive connections.

Keeps true: the body is sent byte for byte, the answer is neither decompressed nor decoded, no header is added but Host
and Content-Length, redirects are not followed, no proxy or cookie of this machine is used. A closed `Exchange` never
returns a half-read connection to the pool. Does not know about workers, bookings or retries.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import lru_cache
from types import SimpleNamespace

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from trieway.router.hot_path import HeaderList

_PIECE_BYTES = 256 << 10
_SKIP_AUTO_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
KEEP_ALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn servers close an idle connection: we let go first."""


class UpstreamError(Exception):
    """A worker did not answer as HTTP wants it. `reason` is a fixed word for metrics."""

    reason = "broken"


class ConnectFailed(UpstreamError):
    """No connection: refused, unreachable, unknown name, or not made in time.

    `refused`: the host says that nobody listens there.
    """

    reason = "connect"

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Broke(UpstreamError):
    """The connection ended, or what came over it was no HTTP, before the answer was whole."""

    reason = "broken"


class StaleConnection(Broke):
    """A kept-alive connection was closed before any byte of the answer; most likely it idled out under us."""

    reason = "stale"


class TimedOut(UpstreamError):
    """Nothing came for longer than the silence allowed."""

    reason = "timeout"


class Exchange:
    """One answer under way. `headers` are the raw ones; read it through `chunks`, and `close` on every path."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: HeaderList = [(name.lower(), value) for name, value in response.raw_headers]

    @property
    def content_type(self) -> bytes:
        """The media type, lower case, without parameters."""
        for name, value in self.headers:
            if name == b"content-type":
                return value.split(b";", 1)[0].strip().lower()
        return b""

    @property
    def delimited(self) -> bool:
        """Whether the answer says where it ends; without that, a cut looks like an end."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes: each item is all that has arrived. Raises `UpstreamError` where it is cut."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _translate(error, reused=False) from error

    async def read(self, body_max_bytes: int) -> bytes:
        """The whole body. Raises `UpstreamError` where it is cut or too long."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            parts.append(chunk)
            size += len(chunk)
            if size > body_max_bytes:
                raise Broke(f"the answer is over {body_max_bytes} bytes")
        return b"".join(parts)

    def close(self) -> None:
        """Ends the exchange; the connection is kept only if the answer was read to its end."""
        self._response.close()


class Upstream:
    """A pool of connections to workers. Create it inside the event loop."""

    def __init__(self, *, connect_timeout_s: float, connections_max: int = 0) -> None:
        self._connect_timeout_s = connect_timeout_s
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections_max, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIP_AUTO_HEADERS,
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
            max_line_size=65536,
            max_field_size=65536,
        )

    async def open(
        self, base_url: str, target: str, headers: HeaderList, body: bytes | None, *, silence_max_s: float | None = None
    ) -> Exchange:
        """Posts `body` (None: gets) and returns once the answer's headers are here. The caller bounds the time.

        `silence_max_s`: longest wait for the next bytes, here and in `chunks`.

        Raises:
            UpstreamError: no answer; the exact kind says whether it was the connection, a cut or a silence.
        """
        note = SimpleNamespace(reused=False)
        try:
            response = await self._session.request(
                "GET" if body is None else "POST",
                _url(base_url, target),
                headers=_multidict(headers, body),
                data=body if body is None or len(body) <= _PIECE_BYTES else _pieces(body),
                allow_redirects=False,
                trace_request_ctx=note,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._connect_timeout_s, sock_read=silence_max_s
                ),
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _translate(error, reused=note.reused) from error
        if not 200 <= response.status <= 599:  # no status that an answer can have: nothing that can be passed on
            response.close()
            raise Broke(f"an answer of status {response.status}")
        return Exchange(response)

    async def get(
        self, base_url: str, target: str, headers: HeaderList, *, timeout_s: float, body_max_bytes: int
    ) -> tuple[int, HeaderList, bytes]:
        """A whole small answer: status, headers, body.

        Raises:
            UpstreamError: no answer within `timeout_s`, or one over `body_max_bytes`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    exchange = await self.open(base_url, target, headers, None)
                except StaleConnection:
                    exchange = await self.open(base_url, target, headers, None)
                try:
                    return exchange.status, exchange.headers, await exchange.read(body_max_bytes)
                finally:
                    exchange.close()
        except TimeoutError:
            raise TimedOut(f"no answer within {timeout_s} s") from None

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()


def _url(base_url: str, target: str) -> URL:
    # A query is the client's own text: remembering those would let clients fill the memory.
    return _plain_url(base_url, target) if "?" not in target else URL(base_url + target, encoded=True)


@lru_cache(maxsize=4096)
def _plain_url(base_url: str, target: str) -> URL:
    return URL(base_url + target, encoded=True)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A large body bit by bit, so that sending it does not hold up everybody else."""
    view = memoryview(body)
    for start in range(0, len(view), _PIECE_BYTES):
        yield bytes(view[start : start + _PIECE_BYTES])


def _multidict(headers: HeaderList, body: bytes | None) -> CIMultiDict[str]:
    out: CIMultiDict[str] = CIMultiDict()
    if body is not None:
        out["content-length"] = str(len(body))
    for name, value in headers:
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            continue  # the client library writes UTF-8 only: another encoding cannot be passed on unchanged
        if text.isprintable() or not _CONTROL.search(text):
            out.add(name.decode("ascii"), text)
    return out


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Never legal in a header's value; the client library refuses the whole request for one."""


async def _note_reuse(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.reused = True


def _translate(error: BaseException, *, reused: bool) -> UpstreamError:
    if isinstance(error, (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError)):
        return ConnectFailed(str(error), refused=isinstance(getattr(error, "os_error", None), ConnectionRefusedError))
    if isinstance(error, (aiohttp.ServerTimeoutError, asyncio.TimeoutError)):
        return TimedOut("the worker was silent for too long")
    if reused and isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, OSError)):
        return StaleConnection(str(error))
    return Broke(f"{type(error).__name__}: {error}")
