"""A Trieway worker that computes nothing: handshake, feed and receipts are real, answers are canned.

`python -m tests.tools.mock_worker --gap-ms 2` serves until its standard input ends. Its cache never forgets. To a
router that has never heard of Trieway it is any OpenAI server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import cast

import httptools

from tests.tools.bench import TEMPLATE
from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION, FleetKey
from trieway.meta_tree.events import Stored
from trieway.meta_tree.frames import WorkerLoad, encode
from trieway.meta_tree.ids import Namespace
from trieway.meta_tree.publisher import Publisher
from trieway.serving.chat_template import RENDERER_VERSION, ChatTemplate
from trieway.serving.handshake import ModelCard, encode_card, vocabulary_digest
from trieway.serving.headers import Receipt
from trieway.serving.peek import peek
from trieway.serving.prompt_key import KeySource, prompt_keys

MODEL = "mock"
EVENTS = 64
TOKENS_PER_BLOCK = 16
EVENT = b'data: {"id":"m","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
WHOLE = (
    b'{"id":"m","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"%s"}}]}'
    % (b" word" * 16)
)
HEARTBEAT_S = 1.0


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Worker:
    """What all connections share."""

    def __init__(self, *, gap_ms: float) -> None:
        self.gap_s = gap_ms / 1e3
        self.key = FleetKey.from_secret(None)
        self.chain = self.key.chain(Namespace())
        self.source = KeySource(template=ChatTemplate(TEMPLATE))
        self.publisher = Publisher(epoch=1, seed_id=self.key.seed_id, group="bench")
        self.held: set[int] = set()
        self.feeds: list[Connection] = []

    def take(self, body: bytes, chat: bool) -> bytes:
        """The receipt for a body, as header lines; what it brings to the cache is announced."""
        text = prompt_keys(peek(body, "chat" if chat else "completion"), self.source, 0.0)[0].text
        hashes = self.chain.hashes(text)
        cached = next((at for at, block in enumerate(hashes) if block not in self.held), len(hashes))
        if cached < len(hashes):
            usable = tuple(TOKENS_PER_BLOCK * (at + 1) for at in range(len(hashes)))
            number = self.publisher.number
            root = self.chain.root
            self.publisher.publish([Stored(namespace_id=root, parent=root, hashes=tuple(hashes), usable=usable)])
            self.held.update(hashes)
            news = b"".join(_chunk(encode(frame)) for frame in self.publisher.after(number) or ())
            for feed in self.feeds:
                feed.transport.write(news)
        tokens = max(1, len(text) * TOKENS_PER_BLOCK // BLOCK_BYTES)
        receipt = Receipt(
            prompt=tokens,
            cached=min(cached * TOKENS_PER_BLOCK, tokens - 1),
            epoch=1,
            number=self.publisher.number,
            queue_ms=0.1,
            prefill_ms=1.0,
            waiting=0,
        )
        return f"x-trieway-receipt: {receipt.encode()}\r\nx-trieway-cached-tokens: {receipt.cached}\r\n".encode()

    def card(self) -> ModelCard:
        return ModelCard(
            wire=WIRE_VERSION, block_bytes=BLOCK_BYTES, seed_id=self.key.seed_id, model=MODEL, group="bench",
            weights_digest="w", template=TEMPLATE, template_digest="t", reads_clock=False, bos_token="", eos_token="",
            completion_prefix="", vocabulary_digest=vocabulary_digest([]), vocabulary_size=0,
            renderer_version=RENDERER_VERSION, epoch=1, page_size=1, context_tokens=1_000_000, kv_tokens=1_000_000,
        )  # fmt: skip

    def heartbeat(self) -> bytes:
        load = WorkerLoad(
            running=0, waiting=0, waiting_tokens=0, running_tokens=0, prefill_tokens_per_s=50_000.0, decode_step_ms=2.0,
            kv_free_tokens=500_000, kv_cached_tokens=500_000, kv_total_tokens=1_000_000,
        )  # fmt: skip
        return _chunk(encode(self.publisher.heartbeat(load)))

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            frame = self.heartbeat()
            for feed in self.feeds:
                feed.transport.write(frame)


class Connection(asyncio.Protocol):
    """One client."""

    transport: asyncio.Transport

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._worker.feeds:
            self._worker.feeds.remove(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.split(b"?")[0]
        if path.startswith(b"/v1/") and path.endswith(b"completions"):
            self._complete(b"".join(self._body), b"chat" in path)
        elif path == b"/cache/feed":
            frames = b"".join(_chunk(encode(frame)) for frame in self._worker.publisher.subscribe(None, None))
            self._begin(b"application/octet-stream", frames + self._worker.heartbeat())
            self._worker.feeds.append(self)
        elif path == b"/cache/model":
            self._send(encode_card(self._worker.card()))
        elif path == b"/v1/models":
            self._send(b'{"object":"list","data":[{"id":"%s","object":"model"}]}' % MODEL.encode())
        else:
            self._send(b"{}" if path in (b"/health", b"/readyz") else b'{"model_path":"%s"}' % MODEL.encode())

    def _send(self, body: bytes, extra: bytes = b"") -> None:
        head = b"HTTP/1.1 200 OK\r\nserver: trieway-worker\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        self.transport.write(head % len(body) + extra + b"\r\n" + body)

    def _begin(self, content_type: bytes, first: bytes, extra: bytes = b"") -> None:
        head = b"HTTP/1.1 200 OK\r\nserver: trieway-worker\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n"
        self.transport.write(head % content_type + extra + b"\r\n" + first)

    def _complete(self, body: bytes, chat: bool) -> None:
        receipt = self._worker.take(body, chat)
        if b'"stream":true' in body:
            self._begin(b"text/event-stream", _chunk(EVENT), receipt)
            asyncio.get_running_loop().call_later(self._worker.gap_s, self._next, EVENTS - 1)
        else:
            self._send(WHOLE, receipt)

    def _next(self, left: int) -> None:
        """Each event by itself, as an engine's steps give them."""
        if self.transport.is_closing():
            return
        if left:
            self.transport.write(_chunk(EVENT))
            asyncio.get_running_loop().call_later(self._worker.gap_s, self._next, left - 1)
        else:
            self.transport.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve(gap_ms: float) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    worker = Worker(gap_ms=gap_ms)
    server = await loop.create_server(lambda: Connection(worker), "127.0.0.1", 0, backlog=1024)
    beating = asyncio.ensure_future(worker.beat())
    print(f"mock worker ready on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    beating.cancel()
    server.close()


def main() -> None:
    """The process."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gap-ms", type=float, default=2.0)
    uvloop.run(serve(parser.parse_args().gap_ms))


if __name__ == "__main__":
    main()
