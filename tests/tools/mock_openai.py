"""An OpenAI server that says nothing, fast: to measure and test the load generator without a model.

`python -m tests.tools.mock_openai --port 9000 --gap-ms 5`. Tokens are 4 bytes of prompt; a cache of whole 64-byte
blocks tells what a server without eviction would have reused. A chunk per token, each written by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, cast

import httptools
import msgspec

TOKEN_BYTES = 4
BLOCK_BYTES = 64


@dataclass(kw_only=True)
class Options:
    """How the mock behaves."""

    model: str = "mock"
    first_ms: float = 0.0
    gap_ms: float = 5.0
    usage: bool = True
    cached: bool = True
    workers: tuple[str, ...] = ("w0", "w1")
    """Named in turn; empty: not named, as by servers that are not ours."""
    role_event: bool = True
    done_mark: bool = True
    crlf: bool = False
    close_after: int = 0
    """Requests after which a connection is closed without a word; 0: never."""
    tokens_max: int = 0
    """Answers are no longer than this, whatever was asked; 0: as asked."""
    trouble: dict[int, str] = field(default_factory=dict)
    """What goes wrong with the n-th completion (from 0): an HTTP status, cut, error, garbage, hang or refuse."""
    stats: dict[str, int] = field(
        default_factory=lambda: {"completions": 0, "flushes": 0, "hints": 0, "connections": 0}
    )
    bodies: list[dict[str, Any]] | None = None
    """Filled with what was asked, if a list."""
    headers: list[dict[str, str]] = field(default_factory=list)


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Turn(msgspec.Struct):
    role: str
    content: str


class _Body(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Turn] | None = None
    max_tokens: int = 16
    stream: bool = False
    stream_options: _StreamOptions | None = None


_decode = msgspec.json.Decoder(_Body).decode


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass(slots=True)
class _Stream:
    connection: Connection
    left: int
    tail: bytes
    event: bytes
    trouble: str | None


class Server:
    """Bind it with `listen`; one per event loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.blocks: set[bytes] = set()
        self._due: deque[tuple[float, _Stream]] = deque()
        self._ticking = False
        end = b"\r\n\r\n" if options.crlf else b"\n\n"
        self.end = end
        self.chat_event = self._event({"index": 0, "delta": {"content": " word"}, "finish_reason": None}, True)
        self.text_event = self._event({"index": 0, "text": " word", "finish_reason": None}, False)
        self.role_event = self._event({"index": 0, "delta": {"role": "assistant", "content": ""}}, True)

    def _event(self, choice: dict[str, Any], chat: bool) -> bytes:
        return _chunk(self.data({"choices": [choice]}, chat))

    def data(self, value: dict[str, Any], chat: bool) -> bytes:
        """One server-sent event."""
        kind = "chat.completion.chunk" if chat else "text_completion"
        whole = {"id": "mock", "object": kind, "created": 0, "model": self.options.model} | value
        return b"data: " + json.dumps(whole, separators=(",", ":")).encode() + self.end

    async def listen(self, port: int = 0) -> asyncio.Server:
        """On loopback."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Connection(self), "127.0.0.1", port, backlog=1024)

    def start(self, stream: _Stream) -> None:
        """Its first event comes after `first_ms`, the next ones `gap_ms` apart."""
        due = monotonic() + self.options.first_ms / 1e3
        if self.options.first_ms:
            asyncio.get_running_loop().call_later(self.options.first_ms / 1e3, self._join, due, stream)
        else:
            self._join(due, stream)

    def _join(self, due: float, stream: _Stream) -> None:
        # All streams have the same gap, so the queue is in order of time.
        if self._write(stream):
            self._due.append((due + self.options.gap_ms / 1e3, stream))
            if not self._ticking:
                self._ticking = True
                asyncio.get_running_loop().call_later(0.001, self._tick)

    def _tick(self) -> None:
        now, gap = monotonic(), self.options.gap_ms / 1e3
        while self._due and self._due[0][0] <= now:
            due, stream = self._due.popleft()
            if self._write(stream):
                self._due.append((due + gap, stream))
        self._ticking = bool(self._due)
        if self._ticking:
            asyncio.get_running_loop().call_later(0.001, self._tick)

    def _write(self, stream: _Stream) -> bool:
        transport = stream.connection.transport
        if transport.is_closing():
            return False
        stream.left -= 1
        if stream.trouble == "cut" and stream.left <= 1:
            transport.close()
            return False
        if stream.trouble == "garbage" and stream.left <= 1:
            transport.write(_chunk(b"data: {never" + self.end))
        if stream.trouble == "error" and stream.left <= 1:
            transport.write(
                _chunk(b"event: error\n" + self.data({"error": {"message": "worker died"}}, True)) + b"0\r\n\r\n"
            )
            return False
        if stream.left > 0:
            transport.write(stream.event)
            return True
        transport.write(stream.event + stream.tail)
        stream.connection.answered()
        return False

    def cached_tokens(self, prompt: bytes) -> int:
        """Tokens of leading blocks seen before; the last token of a prompt is always computed."""
        hit, held = 0, True
        for end in range(BLOCK_BYTES, len(prompt) + 1, BLOCK_BYTES):
            held = held and prompt[:end] in self.blocks
            hit = end if held else hit
            self.blocks.add(prompt[:end])
        return min(hit, len(prompt) - 1) // TOKEN_BYTES


class Connection(asyncio.Protocol):
    """One client."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self._parser = httptools.HttpRequestParser(self)
        self._requests = 0
        self.url = b""
        self.content = b""
        self.headers: dict[str, str] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.server.options.stats["connections"] += 1

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.content, self.headers = b"", b"", {}

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.content = self.content + body if self.content else body

    def on_message_complete(self) -> None:
        path = self.url.split(b"?")[0]
        if path in (b"/v1/chat/completions", b"/v1/completions"):
            self._complete(path == b"/v1/chat/completions")
        else:
            self._other(path.decode())

    def answered(self) -> None:
        """A whole answer went out."""
        self._requests += 1
        if self._requests == self.server.options.close_after:
            self.transport.close()

    def send(self, status: int, body: bytes, content_type: str = "application/json", extra: str = "") -> None:
        """A whole answer."""
        head = f"HTTP/1.1 {status} -\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
        self.transport.write(head.encode() + body)
        self.answered()

    def _other(self, path: str) -> None:
        options = self.server.options
        if path == "/v1/models":
            self.send(200, json.dumps({"object": "list", "data": [{"id": options.model}]}).encode())
        elif path == "/workers" and options.workers:
            host = self.headers["host"]
            rows = [
                {"id": name, "url": f"http://{host}", "load": {"kv_total_tokens": 1_000_000}}
                for name in options.workers
            ]
            self.send(200, json.dumps({"workers": rows}).encode())
        elif path == "/cache/flush":
            self.server.blocks.clear()
            options.stats["flushes"] += 1
            self.send(200, b'{"flushed_tokens": 1}')
        elif path == "/cache/prefix":
            options.stats["hints"] += 1
            self.send(200, b'{"object": "cache.prefix"}')
        elif path == "/metrics":
            text = f"# TYPE mock_requests_total counter\nmock_requests_total {options.stats['completions']}\n"
            text += f'trieway_worker_running_requests 3\nmock_cache{{state="a"}} {len(self.server.blocks)}\n'
            self.send(200, text.encode(), "text/plain")
        elif path == "/tree":
            leaf = {"hash": "b" * 16, "blocks": 2, "usable": 48, "workers": ["w1"], "forks": 0, "children": []}
            root = {
                "hash": "a" * 16,
                "blocks": 5,
                "usable": 16,
                "workers": ["w0", "w1"],
                "forks": 1,
                "children": [leaf],
            }
            self.send(200, json.dumps({"dump": {"mock": [root]}}).encode())
        else:
            self.send(404, b'{"error": {"message": "no such thing"}}')

    def _complete(self, chat: bool) -> None:
        options, number = self.server.options, self.server.options.stats["completions"]
        options.stats["completions"] += 1
        if options.bodies is not None:
            options.bodies.append(json.loads(self.content))
            options.headers.append(self.headers)
        trouble = options.trouble.get(number)
        if trouble == "hang":
            return
        if trouble == "refuse":
            self.transport.abort()
            return
        if trouble is not None and trouble.isdigit():
            self.send(int(trouble), b'{"error": {"message": "told to fail", "type": "mock"}}')
            return
        body = _decode(self.content)
        if chat:
            prompt = "".join([f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in body.messages or ()])
        else:
            prompt = body.prompt or ""
        data = prompt.encode()
        tokens = min(body.max_tokens, options.tokens_max or body.max_tokens)
        usage: dict[str, Any] = {"prompt_tokens": max(len(data) // TOKEN_BYTES, 1), "completion_tokens": tokens}
        if options.cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self.server.cached_tokens(data)}
        extra = ""
        if options.workers:
            worker = options.workers[number % len(options.workers)]
            extra = f"x-trieway-worker: {worker}\r\nx-trieway-predicted-tokens: 4\r\n"
        if body.stream:
            self._stream(body, chat, tokens, usage, extra, trouble)
        else:
            words = " word" * tokens
            choice = {"message": {"role": "assistant", "content": words}} if chat else {"text": words}
            kind = "chat.completion" if chat else "text_completion"
            whole: dict[str, Any] = {"object": kind, "choices": [choice | {"index": 0, "finish_reason": "length"}]}
            if options.usage:
                whole["usage"] = usage
            self.send(200, json.dumps(whole).encode(), extra=extra)

    def _stream(
        self, body: _Body, chat: bool, tokens: int, usage: dict[str, Any], extra: str, trouble: str | None
    ) -> None:
        server, options = self.server, self.server.options
        last = {"delta": {}} if chat else {"text": ""}
        tail = server.data({"choices": [last | {"index": 0, "finish_reason": "length"}]}, chat)
        if options.usage and body.stream_options is not None and body.stream_options.include_usage:
            tail += server.data({"choices": [], "usage": usage}, chat)
        if options.done_mark:
            tail += b"data: [DONE]" + server.end
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{extra}\r\n".encode()
        )
        self.transport.write(head + server.role_event if chat and options.role_event else head)
        event = server.chat_event if chat else server.text_event
        server.start(_Stream(self, tokens, _chunk(tail) + b"0\r\n\r\n", event, trouble))


async def _serve(options: Options, port: int) -> None:
    server = await Server(options).listen(port)
    print(f"mock ready on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    # Whoever started us holds our standard input: we end with them.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """The process."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first-ms", type=float, default=0.0)
    parser.add_argument("--gap-ms", type=float, default=5.0)
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--no-workers", action="store_true")
    asked = parser.parse_args()
    options = Options(first_ms=asked.first_ms, gap_ms=asked.gap_ms, usage=not asked.no_usage)
    if asked.no_workers:
        options.workers = ()
    uvloop.run(_serve(options, asked.port))


if __name__ == "__main__":
    main()
