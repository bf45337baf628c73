"""A client of raw bytes, for what no HTTP library would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit


def post(body: bytes, *headers: str, path: str = "/v1/completions", version: str = "1.1") -> bytes:
    """A whole request with its length."""
    lines = [f"POST {path} HTTP/{version}", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*pieces: bytes, headers: tuple[str, ...] = (), path: str = "/v1/completions") -> bytes:
    """A whole request in chunks."""
    lines = [f"POST {path} HTTP/1.1", "host: x", "transfer-encoding: chunked", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (*pieces, b""))


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """The error's code; OpenAI's shape."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(pause_s)

    async def head(self) -> tuple[int, dict[str, str]]:
        data = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        first, *lines = data.decode("latin-1").split("\r\n")[:-2]
        pairs = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def answer(self) -> Answer:
        """One whole answer, interim ones passed over."""
        status, headers = await self.head()
        while status < 200:
            status, headers = await self.head()
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await self.reader.readline()).strip(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        else:
            body = await self.reader.read()
        return Answer(status, headers, body)

    async def closed(self) -> bool:
        """Whether the server closes without another word."""
        return await asyncio.wait_for(self.reader.read(), 10) == b""


@asynccontextmanager
async def connected(url: str, limit: int = 1 << 16) -> AsyncIterator[RawClient]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=limit)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
