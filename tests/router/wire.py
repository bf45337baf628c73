"""A raw HTTP/1.1 server for tests: every byte, pause and cut is the handler's own choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """A request as the server got it. Header names are lower-case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        pairs = (part.partition("=") for part in self.target.partition("?")[2].split("&") if part)
        return {name: value for name, _, value in pairs}

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Wire:
    """One connection, while one request is answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole answer with its length."""
        lines = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self.raw(_head(status, lines) + body)

    async def json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        await self.send(status, json.dumps(value).encode(), headers)

    async def begin(self, headers: dict[str, str] | None = None, status: int = 200) -> None:
        """The head of a chunked answer."""
        lines = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **(headers or {})}
        await self.raw(_head(status, lines))

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def cut(self) -> None:
        """Reset: what a killed process leaves behind."""
        self._writer.transport.abort()

    def finish(self) -> None:
        """An orderly close once all is sent."""
        self._writer.close()

    async def gone(self) -> None:
        """Returns when the other side has hung up."""
        try:
            await self._reader.read(1)
        except ConnectionError:
            pass


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


Handler = Callable[[Seen, Wire], Awaitable[None]]


@dataclass
class RawServer:
    """Serves `handler` on loopback. `stop` aborts every connection and frees the port, as a kill would."""

    handler: Handler
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _paths: dict[asyncio.Task[None], str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drop(self, path: str) -> None:
        """Cuts the connections that carry this path."""
        for task in [task for task, carried in self._paths.items() if carried == path]:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (seen := await _read(reader)) is not None:
                self.seen.append(seen)
                self._paths[task] = seen.path
                await self.handler(seen, Wire(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            self._paths.pop(task, None)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return Seen(method, target, headers, await reader.readexactly(length))
