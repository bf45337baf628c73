"""What a request costs a router in CPU: a stand-in engine that answers at once, a steady rate, the kernel's books."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

MODEL = "stand-in"
RATE = 300.0
"""Requests a second that are asked for."""
ANSWER = json.dumps({"id": "a", "object": "text_completion", "choices": [{"index": 0, "text": "b"}]}).encode()
LIST = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds that all threads of these processes ran so far, by the scheduler's own count: finer than ticks."""
    spent_ns = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            spent_ns += int((task / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


class _Engine(asyncio.Protocol):
    """HTTP as far as a router speaks it: one request after the other, bodies by content-length."""

    def __init__(self, open_: set[asyncio.BaseTransport]) -> None:
        self._open = open_

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = b""
        self._open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, rest = self._data.split(b"\r\n\r\n", 1)
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ),
                0,
            )
            if len(rest) < length:
                return
            self._data = rest[length:]
            path = head.split(b" ", 2)[1]
            body = LIST if path == b"/v1/models" else ANSWER
            status = b"404 Not Found" if path == b"/health" else b"200 OK"
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.write(
                b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (status, len(body), body)
            )


@contextmanager
def engine() -> Iterator[str]:
    """The stand-in's URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> asyncio.Server:
        return await loop.create_server(lambda: _Engine(connections), "127.0.0.1", 0)

    async def end() -> None:
        server.close()
        for connection in list(connections):
            connection.close()
        await server.wait_closed()

    connections: set[asyncio.BaseTransport] = set()
    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _drive(url: str, seconds: float) -> float:
    body = json.dumps({"model": MODEL, "prompt": "How much is a request? " * 8, "max_tokens": 1}).encode()
    done = 0

    async def one(http: aiohttp.ClientSession) -> None:
        nonlocal done
        async with http.post(
            url + "/v1/completions", data=body, headers={"content-type": "application/json"}
        ) as answer:
            await answer.read()
            assert answer.status == 200, await answer.text()
            done += 1

    connector = aiohttp.TCPConnector(limit=32)
    async with aiohttp.ClientSession(connector=connector) as http:
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks = []
        for number in range(int(seconds * RATE)):
            await asyncio.sleep(max(0.0, began + number / RATE - loop.time()))
            tasks.append(asyncio.ensure_future(one(http)))
        await asyncio.gather(*tasks)
        return done / (loop.time() - began)


def drive(url: str, seconds: float) -> float:
    """Requests at the rate; returns how many a second were answered."""
    return asyncio.run(_drive(url, seconds))


def idle_share(pids: Sequence[int], seconds: float) -> float:
    """CPU seconds a second of these processes while nobody asks."""
    began = cpu_s(pids)
    time.sleep(seconds)
    return (cpu_s(pids) - began) / seconds


def cost_us(url: str, pids: Sequence[int], idle: float, seconds: float) -> tuple[float, float]:
    """(CPU microseconds of these processes for each request, what they take idle subtracted; requests a second)."""
    before, at = cpu_s(pids), time.monotonic()
    rate = drive(url, seconds)
    spent, took = cpu_s(pids) - before, time.monotonic() - at
    return (spent - idle * took) / (rate * took) * 1e6, rate
