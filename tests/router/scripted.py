"""A server whose answers are scripted, and either client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.router.wire import RawServer, Seen, Wire
from trieway.router.carrier import Answer, Carrier
from trieway.router.upstream import StaleConnection, Upstream
from trieway.router.wire_upstream import WireUpstream

Step = Callable[[Seen, Wire], Awaitable[None]]


class Calls:
    """A server whose answers are scripted, and a client of it."""

    def __init__(self, carrier: Carrier, server: RawServer, script: list[Step]) -> None:
        self.carrier = carrier
        self.server = server
        self.script = script

    async def post(self, body: bytes = b"body", **kwargs: Any) -> Answer:
        return await self.carrier.open(self.server.url, "/x", [(b"a", b"b")], body, **kwargs)

    async def whole(self, body: bytes = b"body") -> bytes:
        try:
            answer = await self.post(body)
        except StaleConnection:
            answer = await self.post(body)
        try:
            return b"".join([chunk async for chunk in answer.chunks()])
        finally:
            answer.close()


@asynccontextmanager
async def calling(kind: str = "wire") -> AsyncIterator[Calls]:
    script: list[Step] = []

    async def handle(seen: Seen, wire: Wire) -> None:
        await script.pop(0)(seen, wire)

    server = RawServer(handle)
    await server.start()
    general = Upstream(connect_timeout_s=1.0)
    carrier: Carrier = WireUpstream(general, connect_timeout_s=1.0) if kind == "wire" else general
    try:
        yield Calls(carrier, server, script)
        if isinstance(carrier, WireUpstream):
            carrier.check()
    finally:
        await carrier.close()
        await general.close()
        await server.stop()


def connections(calls: Calls) -> int:
    return len(calls.server._tasks)


async def fine(seen: Seen, wire: Wire) -> None:
    await wire.send(200, b"ok")


def raw(data: bytes, *, close: bool = False) -> Step:
    async def step(seen: Seen, wire: Wire) -> None:
        await wire.raw(data)
        if close:
            wire.finish()

    return step
