"""Workers for the router's tests: one of ours that speaks handshake and feed, and a foreign OpenAI server.

A fake of ours has a cache that never forgets and counts 16 tokens in each block of 64 bytes. `answer` is how it treats
completions; the faults below are what it can be told to do instead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tests.router.wire import RawServer, Seen, Wire
from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION, FleetKey
from trieway.meta_tree.events import Cleared, Stored
from trieway.meta_tree.frames import Frame, WorkerLoad, encode
from trieway.meta_tree.ids import Namespace
from trieway.meta_tree.publisher import Publisher
from trieway.serving.chat_template import RENDERER_VERSION, ChatTemplate
from trieway.serving.handshake import ModelCard, encode_card, encode_vocabulary, vocabulary_digest
from trieway.serving.headers import Receipt, render_time
from trieway.serving.peek import Peeked, peek
from trieway.serving.prompt_key import KeySource, prompt_keys

MODEL = "fake-model"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CLOCK_TEMPLATE = "{{ strftime_now('%d %b %Y') }}" + TEMPLATE
TOKENS_PER_BLOCK = 16
PREFILL_TOKENS_PER_S = 20_000.0
VOCABULARY = [bytes([value]) * 4 for value in range(97, 123)]
EVENT = b'data: {"choices":[{"index":0,"text":"word %d"}]}\n\n'
DONE = b"data: [DONE]\n\n"

Answer = Callable[["FakeWorker", Seen, Wire], Awaitable[None]]


class FakeWorker:
    """A worker of ours. Change `answer`, `health`, `card` fields or `feed_bytes` to make it misbehave."""

    def __init__(
        self,
        *,
        model: str = MODEL,
        template: str | None = TEMPLATE,
        key: FleetKey | None = None,
        group: str = "group-1",
        events: int = 3,
    ) -> None:
        self.key = FleetKey.from_secret(None) if key is None else key
        self.model = model
        self.template = template
        self.group = group
        self.events = events
        self.answer: Answer = well
        self.health = 200
        self.card_changes: dict[str, Any] = {}
        self.feed_bytes: bytes | None = None
        self.feed_hangs = False
        self.vocabulary_hangs = False
        self.heartbeat_s = 0.2
        self.epoch = 100
        self.publisher = self._publisher()
        self.moved = asyncio.Event()
        self.waiting = 0
        """Completions being answered."""
        self.http = RawServer(self._handle)

    url = property(lambda self: self.http.url)
    id = property(lambda self: self.http.id)

    def _publisher(self) -> Publisher:
        return Publisher(epoch=self.epoch, seed_id=self.key.seed_id, group=self.group)

    async def start(self) -> FakeWorker:
        await self.http.start()
        return self

    async def kill(self) -> None:
        """As SIGKILL: connections reset, the port refuses."""
        await self.http.stop()

    async def restart(self) -> None:
        """A new incarnation on the same port, its cache empty."""
        self.epoch += 1
        self.publisher = self._publisher()
        await self.http.start()

    def completions(self) -> list[Seen]:
        return [seen for seen in self.http.seen if seen.path.startswith("/v1/") and seen.method == "POST"]

    # The cache.

    def keys(self, seen: Seen) -> list[bytes]:
        peeked: Peeked = peek(seen.body, "chat" if "messages" in json.loads(seen.body) else "completion")
        template = None if self.template is None else ChatTemplate(self.template)
        now = render_time(seen.header("x-trieway-render-time")) or 0.0
        source = KeySource(template=template, vocabulary=VOCABULARY)
        return [key.text for key in prompt_keys(peeked, source, now)]

    def compute(self, seen: Seen) -> tuple[int, int]:
        """(prompt tokens, cached tokens) of the request; what it computed is announced."""
        salt = json.loads(seen.body).get("cache_salt")
        chain = self.key.chain(Namespace(tenant=seen.header("x-trieway-tenant"), salt=salt))
        text = self.keys(seen)[0]
        hashes = chain.hashes(text)
        held = {block for run in self.publisher.buckets(range(256)).events for block in run.hashes}
        cached = next((at for at, block in enumerate(hashes) if block not in held), len(hashes))
        if hashes:
            usable = tuple(TOKENS_PER_BLOCK * (at + 1) for at in range(len(hashes)))
            self.publish(Stored(namespace_id=chain.root, parent=chain.root, hashes=tuple(hashes), usable=usable))
        tokens = max(1, len(text) // 4)
        return tokens, min(cached * TOKENS_PER_BLOCK, tokens - 1)

    def publish(self, *events: Stored | Cleared) -> None:
        self.publisher.publish(events)
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    def load(self) -> WorkerLoad:
        return WorkerLoad(
            running=self.waiting,
            waiting=0,
            waiting_tokens=0,
            running_tokens=0,
            prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
            decode_step_ms=10.0,
            kv_free_tokens=10_000,
            kv_cached_tokens=0,
            kv_total_tokens=10_000,
        )

    def receipt(self, prompt: int, cached: int) -> dict[str, str]:
        receipt = Receipt(
            prompt=prompt,
            cached=cached,
            epoch=self.epoch,
            number=self.publisher.number,
            queue_ms=0.1,
            prefill_ms=1.0 + (prompt - cached) / PREFILL_TOKENS_PER_S * 1e3,
            waiting=0,
        )
        return {
            "x-trieway-receipt": receipt.encode(),
            "x-trieway-cached-tokens": str(cached),
            "server": "trieway-worker",
        }

    def card(self) -> ModelCard:
        template = self.template or ""
        card = ModelCard(
            wire=WIRE_VERSION,
            block_bytes=BLOCK_BYTES,
            seed_id=self.key.seed_id,
            model=self.model,
            group=self.group,
            weights_digest="w",
            template=self.template,
            template_digest="t",
            reads_clock="strftime_now" in template,
            bos_token="",
            eos_token="",
            completion_prefix="",
            vocabulary_digest=vocabulary_digest(VOCABULARY),
            vocabulary_size=len(VOCABULARY),
            renderer_version=RENDERER_VERSION,
            epoch=self.epoch,
            page_size=1,
            context_tokens=100_000,
            kv_tokens=10_000,
        )
        return msgspec.structs.replace(card, **self.card_changes)

    # HTTP.

    async def _handle(self, seen: Seen, wire: Wire) -> None:
        ours = {"server": "trieway-worker"}
        if seen.path in ("/health", "/readyz"):
            await wire.json(self.health, {}, ours)
        elif seen.path.startswith("/cache/") and seen.method == "GET":
            if seen.header("authorization") != f"Bearer {self.key.feed_token}":
                await wire.json(401, {}, ours)
            elif seen.path == "/cache/model":
                part = seen.query.get("part")
                if part and self.vocabulary_hangs:
                    await wire.gone()
                await wire.send(200, encode_vocabulary(VOCABULARY) if part else encode_card(self.card()), ours)
            else:
                await self._feed(seen, wire)
        elif seen.path in ("/tokenize", "/detokenize"):
            await wire.json(200, {"tokens": [1, 2]}, ours)
        else:
            self.waiting += 1
            try:
                await self.answer(self, seen, wire)
            finally:
                self.waiting -= 1

    async def _feed(self, seen: Seen, wire: Wire) -> None:
        publisher = self.publisher
        if "buckets" in seen.query:
            indices = [int(index) for index in seen.query["buckets"].split(",")]
            await wire.send(200, encode(publisher.buckets(indices)))
            return
        if self.feed_hangs:
            await wire.gone()
            return
        await wire.begin({"content-type": "application/octet-stream"})
        if self.feed_bytes is not None:
            await wire.chunk(self.feed_bytes)
        since, epoch = (int(seen.query[name]) if name in seen.query else None for name in ("since", "epoch"))
        frames: list[Frame] | None = publisher.subscribe(since, epoch)
        while True:
            for frame in [*(frames or []), publisher.heartbeat(self.load())]:
                await wire.chunk(encode(frame))
            number = publisher.number
            try:
                async with asyncio.timeout(self.heartbeat_s):
                    await self.moved.wait()
            except TimeoutError:
                pass
            frames = publisher.after(number)


async def well(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
    """Serves as a worker should, in a time that its work takes."""
    prompt, cached = worker.compute(seen)
    await asyncio.sleep((prompt - cached) / PREFILL_TOKENS_PER_S)
    headers = worker.receipt(prompt, cached)
    if json.loads(seen.body).get("stream"):
        await wire.begin(headers)
        for index in range(worker.events):
            await wire.chunk(EVENT % index)
        await wire.chunk(DONE)
        await wire.end()
    else:
        usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
        await wire.json(200, {"model": worker.model, "port": worker.http.port, "usage": usage}, headers)


async def hangs(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
    """Takes the request and says nothing."""
    await wire.gone()


async def cuts_before(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
    """Dies before its first byte."""
    wire.cut()


async def cuts_after_head(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
    """Dies between its head and its first byte of body."""
    streams = json.loads(seen.body).get("stream")
    await wire.begin({} if streams else {"content-type": "application/json"})
    wire.cut()


async def cuts_midway(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
    """Dies in the middle of its answer, in the middle of a line."""
    streams = json.loads(seen.body).get("stream")
    await wire.begin({} if streams else {"content-type": "application/json"})
    await wire.chunk((EVENT % 0) + b'data: {"choices":[{"ind')
    await asyncio.sleep(0.02)  # let the bytes out before the reset overtakes them
    wire.cut()


def answers(status: int, headers: dict[str, str] | None = None) -> Answer:
    """Answers everything with this status."""

    async def answer(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        error = {"message": f"answered {status}", "type": "t", "param": None, "code": None}
        await wire.json(status, {"error": error}, headers)

    return answer


class ForeignServer:
    """An OpenAI-compatible server that has never heard of Trieway."""

    def __init__(self, *, models: tuple[str, ...] = ("foreign-model",), health: int = 200) -> None:
        self.models = models
        self.health = health
        self.head: dict[str, str] = {"server": "uvicorn"}
        self.http = RawServer(self._handle)

    url = property(lambda self: self.http.url)
    id = property(lambda self: self.http.id)

    async def start(self) -> ForeignServer:
        await self.http.start()
        return self

    async def kill(self) -> None:
        await self.http.stop()

    def completions(self) -> list[Seen]:
        return [seen for seen in self.http.seen if seen.method == "POST"]

    async def _handle(self, seen: Seen, wire: Wire) -> None:
        if seen.path == "/health":
            await wire.send(self.health, b"", self.head)
        elif seen.path == "/v1/models":
            await wire.json(200, {"data": [{"id": model} for model in self.models]}, self.head)
        elif json.loads(seen.body).get("stream"):
            await wire.begin(self.head)
            await wire.chunk(EVENT % 0)
            await wire.chunk(DONE)
            await wire.end()
        else:
            usage = {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
            await wire.json(200, {"port": self.http.port, "usage": usage}, self.head)
