"""A worker gives its most valuable prefixes to others, and takes those that others give.

`POST /cache/handover {to, share?, tokens_max?, timeout_s?, drain?}` makes this worker send its prefixes to the workers
at `to`, each prefix to one of them, up to `share` of each one's pool; with `drain` it takes no request from then on.
`POST /cache/adopt` is what it sends: token paths with their namespaces' chains, which the taker computes like a prefix
hint, one after the other, in pieces, after all requests of users. `GET /cache/load` is the load, for scaling;
`GET /cache/worth` is what the cache is worth, for whoever chooses which worker leaves.

Keeps true: only the fleet's token opens these; a taker of another vocabulary or secret refuses; nothing takes longer
than its time; a user's request waits for one piece at most. Does not know why it is asked (a scale-in, a newcomer).
"""

from __future__ import annotations

import asyncio
import logging
import re
from array import array
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TypeVar

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trieway.meta_tree.chain import Chain
from trieway.serving.auth import require_fleet
from trieway.serving.errors import ApiError, BadRequest
from trieway.serving.http import header_map
from trieway.serving.wire_errors import bad_json
from trieway.worker.core.legacy import (
    PATHS_MAX,
    PRIORITY,
    SHARE_OF_TAKER,
    TAKERS_MAX,
    Allowance,
    Prefix,
    gift_tokens,
    most_valuable,
    pieces,
    shares,
)
from trieway.worker.core.radix import RadixCache
from trieway.worker.core.worth import Ages, worth_tokens
from trieway.worker.prompts import Codec, Prompt
from trieway.worker.service import Service

log = logging.getLogger(__name__)

TIMEOUT_MAX_S = 120.0
BATCH_TOKENS = 8192
"""About so many tokens travel in one request; a path is never cut for it."""
CONNECT_TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 4096


_ORIGIN = re.compile(r"https?://[A-Za-z0-9._\-\[\]:]{1,253}/?", re.ASCII)


class _Order(msgspec.Struct):
    to: list[str]
    share: float = SHARE_OF_TAKER
    tokens_max: int | None = None
    timeout_s: float = 20.0
    drain: bool = False


class _Path(msgspec.Struct, array_like=True):
    """`seed` and `root` are the chain's: 64 bits, as text so that every JSON reader keeps them whole."""

    seed: str
    root: str
    canonical: int
    tokens: list[int]


class _Taken(msgspec.Struct):
    adopted: int


class _Gift(msgspec.Struct):
    """`share`: of its pool a taker computes no more for others, whoever gives."""

    vocabulary_digest: str
    seed_id: str
    paths: list[_Path]
    share: float
    timeout_s: float = 20.0


class Handover:
    """The four routes. `codec` tokenises, to tell generated paths from those that a text would take anew."""

    def __init__(self, service: Service, codec: Codec, feed_token: str) -> None:
        self._service = service
        self._codec = codec
        self._table = codec.token_bytes
        self._feed_token = feed_token
        self._allowance = Allowance()
        self._turn = asyncio.Lock()
        self._ages = Ages()

    def routes(self) -> list[Route]:
        return [
            Route("/cache/handover", self.give, methods=["POST"]),
            Route("/cache/adopt", self.adopt, methods=["POST"]),
            Route("/cache/load", self.load, methods=["GET"]),
            Route("/cache/worth", self.worth, methods=["GET"]),
        ]

    async def load(self, request: Request) -> Response:
        """The worker's load as its heartbeats tell it, with the sums of its queue."""
        require_fleet(header_map(request.scope), self._feed_token)
        started, queue_ms = self._service.metrics.queue_sums()
        return _json({**asdict(self._service.load()), "started_total": started, "queue_ms_total": queue_ms})

    async def worth(self, request: Request) -> Response:
        """The cache's tokens, each the less the longer it was not used; and how many there are."""
        require_fleet(header_map(request.scope), self._feed_token)
        now = asyncio.get_running_loop().time()
        worth, cached = await self._service.engine.ask(
            lambda stepper: (worth_tokens(stepper.cache, self._ages, now), stepper.cache.cached)
        )
        return _json({"worth_tokens": round(worth, 3), "cached_tokens": cached})

    async def give(self, request: Request) -> Response:
        """Sends prefixes away; answers how many went where. A taker that fails costs only its share."""
        require_fleet(header_map(request.scope), self._feed_token)
        order = _decode(await request.body(), _Order)
        if not 1 <= len(order.to) <= TAKERS_MAX:
            raise BadRequest(f"1 to {TAKERS_MAX} takers are possible", param="to")
        takers = [_origin(taker) for taker in order.to]
        _check_timeout(order.timeout_s)
        _check_share(order.share)
        if order.tokens_max is not None and order.tokens_max < 0:
            raise BadRequest("a number of tokens is 0 or more", param="tokens_max")
        most = gift_tokens(self._service.card.kv_tokens, order.share, len(order.to))
        tokens_max = most if order.tokens_max is None else min(most, order.tokens_max)
        prefixes = await self._service.engine.ask(
            lambda stepper: most_valuable(stepper.cache, tokens_max=tokens_max, paths_max=PATHS_MAX)
        )
        try:
            given = await self._send_all(shares(prefixes, takers), order)
        finally:
            if order.drain:
                self._service.turn_away()
        log.info("handed %d of %d prefixes to %d workers", sum(given.values()), len(prefixes), len(order.to))
        return _json({"prefixes": len(prefixes), "given": given})

    async def _send_all(self, shares: dict[str, list[Prefix]], order: _Order) -> dict[str, int]:
        given = dict.fromkeys(shares, 0)
        timeout = aiohttp.ClientTimeout(total=order.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http:
            clock = asyncio.get_running_loop().time
            until = clock() + order.timeout_s

            async def send(taker: str) -> None:
                for batch in _batches(shares[taker]):
                    left_s = max(until - clock(), 0.001)
                    adopted = await self._send(http, taker, batch, order.share, left_s)
                    given[taker] += adopted
                    if adopted < len(batch):
                        break  # it has enough, or is gone

            try:
                async with asyncio.timeout(order.timeout_s):
                    await asyncio.gather(*(send(taker) for taker in shares))
            except TimeoutError:
                log.info("the time for handing prefixes over is spent")
        return given

    async def _send(
        self, http: aiohttp.ClientSession, taker: str, batch: Sequence[Prefix], share: float, timeout_s: float
    ) -> int:
        """How many it took; 0 where it did not. It may say what it likes: no answer is believed beyond its bounds."""
        card = self._service.card
        gift = _Gift(
            vocabulary_digest=card.vocabulary_digest,
            seed_id=card.seed_id,
            paths=[_Path(str(one.chain.seed), str(one.chain.root), one.canonical, list(one.tokens)) for one in batch],
            share=share,
            timeout_s=timeout_s,
        )
        headers = {"authorization": f"Bearer {self._feed_token}", "content-type": "application/json"}
        try:
            async with http.post(
                f"{taker}/cache/adopt", data=msgspec.json.encode(gift), headers=headers, allow_redirects=False
            ) as answer:
                body = await _bounded(answer)
                if answer.status == 200:
                    return max(0, min(msgspec.json.decode(body, type=_Taken).adopted, len(batch)))
                log.warning("%s took no prefixes: it answered %d", taker, answer.status)
        except (aiohttp.ClientError, msgspec.MsgspecError, OSError, ValueError) as error:
            # ValueError: a host that no name can be.
            log.warning("%s took no prefixes: %s", taker, type(error).__name__)
        return 0

    async def adopt(self, request: Request) -> Response:
        """Computes what is given, and remembers which exact tokens generated text had."""
        require_fleet(header_map(request.scope), self._feed_token)
        gift = _decode(await request.body(), _Gift)
        card = self._service.card
        if gift.vocabulary_digest != card.vocabulary_digest or gift.seed_id != card.seed_id:
            raise BadRequest("these prefixes are of another vocabulary or fleet secret", code="stranger")
        _check_share(gift.share)
        _check_timeout(gift.timeout_s)
        tokens_max = gift_tokens(card.kv_tokens, gift.share)
        prompts = [self._prompt(path) for path in gift.paths]
        until = asyncio.get_running_loop().time() + gift.timeout_s
        adopted = [await self._take(prompt, tokens_max, until) for prompt in prompts]
        return _json({"paths": len(prompts), "adopted": sum(adopted)})

    async def _take(self, prompt: Prompt, tokens_max: int, until: float) -> bool:
        """Computes one prefix, or as much of it as may still be computed for others now, and no piece after `until`.
        One at a time, whoever gives: side by side they would only be ready later, and each would be allowed what the
        others are about to use up."""
        clock = asyncio.get_running_loop().time
        async with self._turn:
            if clock() >= until or not self._allowance.left(tokens_max, clock()):
                return False
            await asyncio.to_thread(self._remember, prompt)
            try:
                held = await self._service.engine.ask(lambda stepper: _held(stepper.cache, prompt))
                for end in pieces(held, len(prompt.tokens), self._allowance.left(tokens_max, clock())):
                    (one,) = await self._service.hint([_head(prompt, end)], PRIORITY)
                    self._allowance.spend(one.prompt_tokens - one.cached_tokens, clock())
                    if clock() >= until:
                        break
            except ApiError as error:
                log.info("a prefix was not adopted: %s", error.message)
                return False
        return True

    def _prompt(self, path: _Path) -> Prompt:
        if not path.tokens or min(path.tokens) < 0 or max(path.tokens) >= len(self._table):
            raise BadRequest("token ids of this vocabulary are needed", param="paths")
        try:
            chain = Chain(seed=int(path.seed) % 2**64, root=int(path.root) % 2**64)
        except ValueError:
            raise BadRequest("seed and root are numbers", param="paths") from None
        tokens = tuple(path.tokens[: self._service.card.context_tokens])
        text = b"".join([self._table[token] for token in tokens])
        return Prompt(
            chain=chain, tokens=tokens, canonical=max(0, min(path.canonical, len(tokens))), text=text, shown=""
        )

    def _remember(self, prompt: Prompt) -> None:
        """Text that the giver generated has tokens that the tokenizer would not choose: they are kept with it."""
        memory = self._service.memory
        if memory is None or prompt.canonical < len(prompt.tokens):
            return
        usual, _ = self._codec.encode_bytes_checked(prompt.text.decode(errors="replace"))
        agreed = 0
        for mine, theirs in zip(usual, prompt.tokens, strict=False):
            if mine != theirs:
                break
            agreed += 1
        if agreed < len(prompt.tokens):
            start = sum(len(self._table[token]) for token in prompt.tokens[:agreed])
            memory.remember(prompt.chain, prompt.text, prompt.tokens, start)


def _check_share(share: float) -> None:
    if not 0 < share <= SHARE_OF_TAKER:
        raise BadRequest(f"a share above 0 and up to {SHARE_OF_TAKER:g} can be given", param="share")


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """ValueError: the body is longer than any answer of a worker."""
    body = b""
    async for chunk in answer.content.iter_chunked(ANSWER_BYTES_MAX):
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError("too long an answer")
    return body


def _check_timeout(timeout_s: float) -> None:
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise BadRequest(f"up to {TIMEOUT_MAX_S:g} s are possible", param="timeout_s")


def _origin(url: str) -> str:
    """A worker's URL as it stands in logs and in the answer; BadRequest: it is none."""
    if not _ORIGIN.fullmatch(url):
        raise BadRequest("takers are URLs like http://10.0.0.2:8100", param="to")
    return url.rstrip("/")


def _held(cache: RadixCache, prompt: Prompt) -> int:
    return cache.match(prompt.chain, array("i", prompt.tokens), len(prompt.tokens)).length


def _head(prompt: Prompt, end: int) -> Prompt:
    return replace(prompt, tokens=prompt.tokens[:end], canonical=min(prompt.canonical, end))


def _batches(prefixes: Sequence[Prefix]) -> list[list[Prefix]]:
    batches: list[list[Prefix]] = []
    size = BATCH_TOKENS
    for one in prefixes:
        if size >= BATCH_TOKENS:
            batches.append([])
            size = 0
        batches[-1].append(one)
        size += len(one.tokens)
    return batches


T = TypeVar("T")


def _decode(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_json(error) from None


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
