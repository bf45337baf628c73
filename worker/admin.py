"""The worker's other routes: probes, models, tokenize, metrics, and the cache's own (card, stats, flush, hint).

Keeps true: the card opens only to the fleet's token, the flush only to the admin key; probes and metrics to
all. Does not know how answers to completions are made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trieway.serving.auth import KeyRing, require_fleet
from trieway.serving.errors import BadRequest, NotFound
from trieway.serving.handshake import encode_card, encode_vocabulary
from trieway.serving.http import header_map
from trieway.serving.schema import parse_chat, parse_completion
from trieway.serving.wire_errors import bad_json
from trieway.worker.metrics import CONTENT_TYPE
from trieway.worker.prompts import Prompt
from trieway.worker.service import Service


class Decoder(Protocol):
    """What is needed of a tokenizer to show tokens."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class _Shape(msgspec.Struct):
    """Which kind of prompt a body brings, and what only these routes read."""

    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class _Tokens(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


class Admin:
    """`started_s` is seconds since 1970."""

    def __init__(self, service: Service, decoder: Decoder, ring: KeyRing, feed_token: str, *, started_s: float) -> None:
        self._service = service
        self._decoder = decoder
        self._ring = ring
        self._feed_token = feed_token
        self._started_s = started_s

    def routes(self) -> list[Route]:
        """All of them."""
        table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model:path}", self.model),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/livez", self.livez),
            ("GET", "/readyz", self.readyz),
            ("GET", "/health", self.readyz),
            ("GET", "/metrics", self.metrics),
            ("GET", "/cache/model", self.card),
            ("GET", "/cache/stats", self.stats),
            ("POST", "/cache/flush", self.flush),
            ("POST", "/cache/prefix", self.prefix),
        ]
        return [Route(path, handler, methods=[method]) for method, path, handler in table]

    async def models(self, request: Request) -> Response:
        self._ring.principal(header_map(request.scope))
        card = self._service.card
        return _json({"object": "list", "data": [self._model(name) for name in (card.model, *card.aliases)]})

    async def model(self, request: Request) -> Response:
        self._ring.principal(header_map(request.scope))
        name, card = request.path_params["model"], self._service.card
        if name not in (card.model, *card.aliases):
            raise NotFound.model(name)
        return _json(self._model(name))

    async def tokenize(self, request: Request) -> Response:
        """vLLM's form: a prompt or messages in, `tokens`, `count` and `max_model_len` out."""
        shape, prompts = await self._prompts(request)
        if len(prompts) != 1:
            raise BadRequest("one prompt at a time", param="prompt")
        tokens = prompts[0].tokens
        table = self._decoder.token_bytes
        return _json(
            {
                "tokens": tokens,
                "count": len(tokens),
                "max_model_len": self._service.card.context_tokens,
                "token_strs": [table[token].decode(errors="replace") for token in tokens]
                if shape.return_token_strs
                else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        self._service.intake.caller(header_map(request.scope))
        asked = _decode(await request.body(), _Tokens)
        self._service.intake.check_model(asked.model)
        size = len(self._decoder.token_bytes)
        if asked.tokens and not 0 <= min(asked.tokens) <= max(asked.tokens) < size:
            raise BadRequest(f"token ids are 0 to {size - 1} for this model", param="tokens")
        return _json({"prompt": self._decoder.decode(asked.tokens)})

    async def livez(self, request: Request) -> Response:
        """Alive: the process answers and its engine steps."""
        alive = self._service.engine.alive
        return _json({"status": "ok" if alive else "engine stopped"}, status=200 if alive else 503)

    async def readyz(self, request: Request) -> Response:
        """Ready: new requests are taken."""
        service = self._service
        status = "ok" if service.ready else "draining" if service.engine.alive else "engine stopped"
        body = {"status": status, "model": service.card.model, "group": service.card.group, "epoch": service.card.epoch}
        return _json(body, status=200 if service.ready else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.page(), headers={"content-type": CONTENT_TYPE})

    async def card(self, request: Request) -> Response:
        """The handshake; with `part=vocabulary` the token -> bytes table."""
        require_fleet(header_map(request.scope), self._feed_token)
        part = request.query_params.get("part")
        if part == "vocabulary":
            return _binary(encode_vocabulary(self._decoder.token_bytes))
        if part is not None:
            raise BadRequest("part is vocabulary, or absent", param="part")
        return Response(encode_card(self._service.card), media_type="application/json")

    async def stats(self, request: Request) -> Response:
        """The scheduler's sums, the feed's position and digest, the generated memory's size."""
        self._ring.principal(header_map(request.scope))
        service = self._service
        stats = await service.engine.ask(lambda stepper: stepper.state().stats)
        publisher, memory = service.feed.publisher, service.memory
        return _json(
            {
                **asdict(stats),
                "epoch": publisher.epoch,
                "number": publisher.number,
                "announced_blocks": publisher.blocks,
                "digest": f"{publisher.digest_total:016x}",
                "subscribers": service.feed.subscribers,
                "memory_bytes": memory.bytes if memory is not None else 0,
                "memory_records": len(memory) if memory is not None else 0,
                "draining": service.draining,
                "pid": os.getpid(),
                "uptime_s": round(time.time() - self._started_s, 3),
            }
        )

    async def flush(self, request: Request) -> Response:
        """Drops every cached token that no running request holds, and what is remembered of generated text."""
        self._ring.require_admin(header_map(request.scope))
        if self._service.memory is not None:
            self._service.memory.clear()
        flushed = await self._service.engine.ask(lambda stepper: stepper.flush())
        await self._service.feed.settle()
        return _json({"flushed_tokens": flushed})

    async def prefix(self, request: Request) -> Response:
        """The hint: computes a prompt (a completion's or a chat's) and keeps it, before its forks arrive."""
        _, prompts = await self._prompts(request)
        found = await self._service.hint(prompts, priority=0)
        prompt_tokens = sum(one.prompt_tokens for one in found)
        cached_tokens = sum(one.cached_tokens for one in found)
        body = {
            "object": "cache.prefix",
            "model": self._service.card.model,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 0,
                "total_tokens": prompt_tokens,
                "prompt_tokens_details": {"cached_tokens": cached_tokens},
            },
        }
        return _json(body)

    async def _prompts(self, request: Request) -> tuple[_Shape, tuple[Prompt, ...]]:
        intake = self._service.intake
        caller = intake.caller(header_map(request.scope))
        body = await request.body()
        shape = _decode(body, _Shape)
        if shape.messages is not msgspec.UNSET:
            return shape, (await intake.chat_prompt(parse_chat(body), caller),)
        prefix = shape.add_special_tokens is not False
        if shape.add_special_tokens is not None:
            # This route's own field; a completion has no such choice.
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            body = msgspec.json.encode({name: value for name, value in fields.items() if name != "add_special_tokens"})
        return shape, await intake.completion_prompts(parse_completion(body), caller, prefix=prefix)

    def _model(self, name: str) -> dict[str, Any]:
        card = self._service.card
        return {
            "id": name,
            "object": "model",
            "created": int(self._started_s),
            "owned_by": "trieway",
            "root": card.model,
            "parent": None,
            "max_model_len": card.context_tokens,
        }


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _binary(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream")


T = TypeVar("T")


def _decode(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_json(error) from None
