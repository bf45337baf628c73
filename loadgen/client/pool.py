"""Connections to one server: exchanges go out at once on an idle connection, or on a new one, or wait for a place.

Keeps true (`check`): exchanges under way never exceed `connections_max`, the others wait; each ends once. A kept
connection that the server closed before a byte of the answer is tried again on a new one, once, as every HTTP client
does. Does not know calls or pacing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterable
from time import monotonic

from trieway.loadgen.client.exchange import CONNECT, TIMEOUT, Exchange
from trieway.loadgen.client.url import Url
from trieway.loadgen.client.wire import Connection

KEEP_ALIVE_S = 4.0
"""Shorter than the 5 s after which uvicorn closes an idle connection: we let go first."""
CONNECT_TIMEOUT_S = 10.0
SWEEP_S = 0.25
"""How exactly deadlines are kept."""


class Pool:
    """Use it inside one event loop; `close` it."""

    def __init__(self, url: Url, *, connections_max: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._url = url
        self._loop = loop or asyncio.get_running_loop()
        self._tls = ssl.create_default_context() if url.tls else None
        self._connections_max = connections_max
        self._idle: list[tuple[Connection, float]] = []
        self._busy: dict[Exchange, Connection | None] = {}
        """None: its connection is being made."""
        self._waiting: deque[Exchange] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = self._loop.call_later(SWEEP_S, self._sweep)
        self.connections_most = 0

    @property
    def in_flight(self) -> int:
        """Exchanges that have not ended."""
        return len(self._busy) + len(self._waiting)

    def send(self, exchange: Exchange) -> None:
        """Begin it as soon as a connection allows; its end comes through its own callback."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.idle and monotonic() - since < KEEP_ALIVE_S:
                self._ask(connection, exchange)
                return
            connection.close()
        if len(self._busy) < self._connections_max:
            self._connect(exchange)
        else:
            self._waiting.append(exchange)

    def ended(self, exchange: Exchange) -> None:
        """The caller's duty from the exchange's own callback: give its connection back."""
        connection = self._busy.pop(exchange, None)
        if connection is not None:
            if connection.open and not connection.idle:
                connection.close()  # ended before its response was: the rest of it is nobody's
            elif connection.idle and not self._waiting:
                self._idle.append((connection, monotonic()))
                return
        self._next(connection if connection is not None and connection.idle else None)

    def _next(self, connection: Connection | None) -> None:
        while self._waiting and len(self._busy) < self._connections_max:
            exchange = self._waiting.popleft()
            if exchange.over:
                continue
            if connection is not None:
                self._ask(connection, exchange)
                connection = None
            else:
                self._connect(exchange)

    def _ask(self, connection: Connection, exchange: Exchange) -> None:
        self._busy[exchange] = connection
        exchange.tries += 1
        if exchange.sent_s is None:
            exchange.sent_s = monotonic()
        connection.ask(exchange.request, _Retrying(self, exchange) if connection.used else exchange)

    def _connect(self, exchange: Exchange) -> None:
        self._busy[exchange] = None
        self.connections_most = max(self.connections_most, len(self._busy))
        if exchange.sent_s is None:
            exchange.sent_s = monotonic()  # making the connection is the server's time, not the generator's
        task = self._loop.create_task(self._open(exchange))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, exchange: Exchange) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    Connection, self._url.host, self._url.port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:
            if not exchange.over:
                exchange.end(CONNECT, message=str(error) or "no connection in time")
            return
        if exchange.over:
            connection.close()
        elif not connection.open:
            exchange.end(CONNECT, message="the server closed the connection at once")
        else:
            self._ask(connection, exchange)

    def _sweep(self) -> None:
        now = monotonic()
        for exchange in [*self._busy, *self._waiting]:
            if exchange.deadline_s <= now and not exchange.over:
                exchange.end(TIMEOUT, now)
        self._waiting = deque(each for each in self._waiting if not each.over)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def again(self, exchange: Exchange) -> None:
        """A kept connection was stale: once more, on a new one."""
        del self._busy[exchange]
        self._connect(exchange)

    def interrupt(self) -> Iterable[Exchange]:
        """End all that runs; returns what was cut."""
        cut = [exchange for exchange in [*self._busy, *self._waiting] if not exchange.over]
        self._waiting.clear()
        for exchange in cut:
            exchange.interrupt()
        return cut

    async def close(self) -> None:
        """Drop every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.interrupt()
        for task in list(self._opening):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for connection, _ in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # let transports say goodbye before the loop goes

    def check(self) -> None:
        """Prove what the module promises."""
        assert len(self._busy) <= self._connections_max, "too many connections"
        assert not self._waiting or len(self._busy) == self._connections_max, "somebody waits in vain"
        assert all(not exchange.over for exchange in self._busy), "an exchange is over and still busy"
        assert all(connection is None or not connection.idle for connection in self._busy.values())


class _Retrying:
    """Listens for an exchange on a kept connection: if that was closed before any byte, it was stale."""

    __slots__ = ("_exchange", "_pool", "body", "done", "head")

    def __init__(self, pool: Pool, exchange: Exchange) -> None:
        self._pool = pool
        self._exchange = exchange
        self.head = exchange.head
        self.body = exchange.body
        self.done = exchange.done

    def broke(self, reason: str, now: float, *, heard: bool) -> None:
        """There will be no whole response on this connection."""
        if not heard and self._exchange.tries == 1 and not self._exchange.over:
            self._pool.again(self._exchange)
        else:
            self._exchange.broke(reason, now, heard=heard)
