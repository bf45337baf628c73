"""The hot path's own client: pooled connections to workers at the asyncio Protocol level.

Keeps true: the body is sent byte for byte, no header is added but Host and Content-Length, nothing is decoded, no
redirect followed; an idle connection is let go before a worker would. HTTPS and names beyond ASCII are left to the
general client (upstream.py). Does not know workers, bookings or retries.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from trieway.router.carrier import Answer, Carrier
from trieway.router.hot_path import HeaderList
from trieway.router.upstream import KEEP_ALIVE_S, Broke, ConnectFailed
from trieway.router.wire_connection import WireConnection

SWEEP_S = 1.0
"""How exactly idle connections are let go."""
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(kw_only=True, slots=True)
class _Origin:
    """One worker's address. `idle`: the connection used last comes last."""

    host: str
    port: int
    path: bytes
    """What comes before the target."""
    middle: bytes
    """What follows it."""
    idle: list[WireConnection] = field(default_factory=list)
    connecting: int = 0
    open: set[WireConnection] = field(default_factory=set)


class WireUpstream:
    """Create it inside the event loop. `general` carries what this one does not."""

    def __init__(self, general: Carrier, *, connect_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._general = general
        self._connect_timeout_s = connect_timeout_s
        self._origins: dict[str, _Origin] = {}
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    async def open(
        self, base_url: str, target: str, headers: HeaderList, body: bytes | None, *, silence_max_s: float | None = None
    ) -> Answer:
        """See `Carrier.open`."""
        origin = self._origins.get(base_url)
        if origin is None:
            if not base_url.startswith("http:") or not base_url.isascii():
                return await self._general.open(base_url, target, headers, body, silence_max_s=silence_max_s)
            origin = self._origins[base_url] = _origin(base_url)
        connection = self._kept(origin)
        if connection is None:
            connection = await self._connect(origin)
        method, length = (b"GET ", None) if body is None else (b"POST ", len(body))
        request = method + origin.path + target.encode("latin-1") + origin.middle + head_lines(headers, length)
        exchange = connection.ask(request, body or b"", silence_max_s)
        try:
            await exchange.head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    def _kept(self, origin: _Origin) -> WireConnection | None:
        idle = origin.idle
        while idle:
            connection = idle.pop()
            if connection.open and self._loop.time() - connection.idle_since < KEEP_ALIVE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: _Origin) -> WireConnection:
        factory = partial(WireConnection, self._loop, partial(self._idle, origin), origin.open.discard)
        origin.connecting += 1
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(factory, origin.host, origin.port)
        except TimeoutError:
            raise ConnectFailed(f"no connection within {self._connect_timeout_s} s") from None
        except OSError as error:
            raise ConnectFailed(str(error), refused=isinstance(error, ConnectionRefusedError)) from error
        finally:
            origin.connecting -= 1
        if not connection.open:
            raise Broke("the worker closed the connection at once")
        origin.open.add(connection)
        return connection

    def _idle(self, origin: _Origin, connection: WireConnection) -> None:
        connection.idle_since = self._loop.time()
        origin.idle.append(connection)

    def _sweep(self) -> None:
        """Lets go of connections that have idled too long, and of addresses without any."""
        due = self._loop.time() - KEEP_ALIVE_S
        for url, origin in list(self._origins.items()):
            for connection in [each for each in origin.idle if not each.open or each.idle_since <= due]:
                origin.idle.remove(connection)
                connection.abort()
            if not origin.open and not origin.connecting:
                del self._origins[url]
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    async def close(self) -> None:
        """Closes every connection."""
        self._sweeper.cancel()
        for origin in self._origins.values():
            for connection in list(origin.open):
                connection.abort()
        self._origins.clear()
        await asyncio.sleep(0)  # let transports say goodbye before the loop goes

    def check(self) -> None:
        """Idle connections are open ones, each once."""
        for origin in self._origins.values():
            assert len(set(origin.idle)) == len(origin.idle), "a connection idles twice"
            assert all(each in origin.open or not each.open for each in origin.idle), "an unknown connection idles"


def _origin(base_url: str) -> _Origin:
    parts = urlsplit(base_url)
    assert parts.scheme == "http", "checked where the worker was registered"
    assert parts.hostname is not None, "checked where the worker was registered"
    return _Origin(
        host=parts.hostname,
        port=parts.port or 80,
        path=parts.path.encode("ascii"),
        middle=b" HTTP/1.1\r\nhost: " + parts.netloc.encode("ascii") + b"\r\n",
    )


def head_lines(headers: HeaderList, length: int | None) -> bytes:
    """The rest of a head, from the second line on. What HTTP does not allow in a value is left out with its header."""
    if _CONTROL.search(b"".join([value for _, value in headers])):
        headers = [(name, value) for name, value in headers if not _CONTROL.search(value)]
    lines = [] if length is None else [b"content-length: %d\r\n" % length]
    lines += [b"%b: %b\r\n" % pair for pair in headers]
    lines.append(b"\r\n")
    return b"".join(lines)
