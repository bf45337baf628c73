"""A pumped answer: all that came, then its end; nothing while the sink is full."""

from __future__ import annotations

import asyncio

import pytest

from tests.router.harness import in_loop
from tests.router.scripted import calling, fine, raw
from tests.router.wire import Seen, Wire
from trieway.router.carrier import Answer
from trieway.router.upstream import Broke
from trieway.router.wire_connection import WireExchange


class Sink:
    """Takes what is pumped; says that it is full after each `every` arrivals."""

    def __init__(self, every: int = 0) -> None:
        self.got: list[bytes] = []
        self.waits = 0
        self._every = every

    def put(self, data: bytes) -> bool:
        self.got.append(data)
        return not self._every or len(self.got) % self._every != 0

    async def room(self) -> None:
        self.waits += 1
        count = len(self.got)
        await asyncio.sleep(0.01)
        assert len(self.got) == count, "nothing comes while the sink waits"


async def pump(answer: Answer, sink: Sink) -> None:
    assert isinstance(answer, WireExchange)
    try:
        await answer.pump(sink.put, sink.room)
    finally:
        answer.close()


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("ending", ["whole", "cut", "close"])
def test_a_pump_gives_all_that_came_and_then_its_end(every: int, ending: str) -> None:
    @in_loop
    async def run() -> None:
        async def streams(seen: Seen, wire: Wire) -> None:
            if ending == "close":
                await wire.raw(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                await wire.begin()
            for at in range(20):
                piece = b"event %d\n" % at
                await (wire.raw(piece) if ending == "close" else wire.chunk(piece))
                await asyncio.sleep(0.001 * (at % 3))
            if ending == "whole":
                await wire.end()
            elif ending == "close":
                wire.finish()
            else:
                await asyncio.sleep(0.05)
                wire.cut()

        sink = Sink(every)
        async with calling() as calls:
            calls.script[:] = [streams]
            answer = await calls.post()
            if ending == "cut":
                with pytest.raises(Broke):
                    await pump(answer, sink)
            else:
                await pump(answer, sink)
        assert b"".join(sink.got) == b"".join(b"event %d\n" % at for at in range(20))
        assert sink.waits == (len(sink.got) // every if every else 0)

    run()


@in_loop
async def test_a_sink_that_fails_is_told_where_it_pumps() -> None:
    def fails(data: bytes) -> bool:
        raise ConnectionResetError

    async with calling() as calls:
        calls.script[:] = [raw(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhalf"), fine]
        answer = await calls.post()
        assert isinstance(answer, WireExchange)
        with pytest.raises(ConnectionResetError):
            await answer.pump(fails, Sink().room)
        answer.close()
        assert await calls.whole() == b"ok"
