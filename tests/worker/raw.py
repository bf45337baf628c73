"""A client at the level of sockets: sees how an answer is cut into writes, and can hang up at any moment."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class RawAnswer:
    """One request's connection."""

    sock: socket.socket
    buffer: bytes = b""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def read_head(self) -> None:
        """Waits for status and headers."""
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}

    def read_chunk(self) -> bytes:
        """The next chunk of a chunked body: what the server wrote at once; b'' at the end."""
        while b"\r\n" not in self.buffer:
            self._more()
        size = int(self.buffer.split(b"\r\n", 1)[0], 16)
        start = self.buffer.index(b"\r\n") + 2
        while len(self.buffer) < start + size + 2:
            self._more()
        chunk, self.buffer = self.buffer[start : start + size], self.buffer[start + size + 2 :]
        return chunk

    def chunks(self) -> Iterator[bytes]:
        """All chunks that are left."""
        while chunk := self.read_chunk():
            yield chunk

    def silent(self) -> bool:
        """Whether nothing has come."""
        self.sock.setblocking(False)
        try:
            self.buffer += self.sock.recv(65536)
        except BlockingIOError:
            pass
        finally:
            self.sock.settimeout(30)
        return not self.buffer

    def hang_up(self) -> None:
        self.sock.close()

    def _more(self) -> None:
        data = self.sock.recv(65536)
        assert data, "the server closed the connection"
        self.buffer += data


@contextmanager
def raw_post(url: str, path: str, body: dict[str, Any] | bytes, **headers: str) -> Iterator[RawAnswer]:
    """Sends a POST and gives the connection."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = urlsplit(url)
    lines = [f"POST {path} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sock = socket.create_connection((parts.hostname, parts.port), timeout=30)
    try:
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        yield RawAnswer(sock)
    finally:
        sock.close()
