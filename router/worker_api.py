"""What the router asks of a worker besides completions: is it there, what is it, what does it hold.

Keeps true: the fleet's token is sent only where the worker has said before that it is one of ours; every answer is
bounded in size and time. Does not know what is done with the answers (feeds.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.chain import WIRE_VERSION, FleetKey
from trieway.meta_tree.frames import Frame, FrameReader, WireError
from trieway.router.carrier import Answer, Carrier
from trieway.router.hot_path import HeaderList
from trieway.router.upstream import Upstream
from trieway.serving import headers as names
from trieway.serving.handshake import (
    VOCABULARY_BYTES_MAX,
    HandshakeError,
    ModelCard,
    decode_card,
    decode_vocabulary,
)

PROBE_TIMEOUT_S = 2.0
HANDSHAKE_TIMEOUT_S = 10.0
VOCABULARY_TIMEOUT_S = 30.0
SMALL_ANSWER_MAX_BYTES = 4 << 20
MODELS_MAX = 1024


class Unusable(Exception):
    """A worker answers but cannot serve this router. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """A worker's answer to /health. `ready`: it would serve now."""

    ready: bool
    fleet: bool


class WorkerApi:
    """The questions, over the router's connections."""

    def __init__(
        self, upstream: Upstream, key: FleetKey, *, frame_bytes_max: int, feeds: Carrier | None = None
    ) -> None:
        """`feeds` carries the feeds, whose events come with every request; without it `upstream` does."""
        self._upstream = upstream
        self._feeds: Carrier = upstream if feeds is None else feeds
        self._key = key
        self._frame_bytes_max = frame_bytes_max
        self.fleet_token = key.feed_token
        self._token: HeaderList = [(b"authorization", b"Bearer " + key.feed_token.encode())]

    async def probe(self, url: str) -> Probed:
        """Whether the worker is there, and whether it is one of ours. No token is sent.

        Raises:
            UpstreamError: no answer; `ConnectFailed` where nobody listens.
        """
        status, headers, _ = await self._get(url, "/health", [], PROBE_TIMEOUT_S)
        server = next((value for name, value in headers if name == b"server"), b"")
        fleet = server.split(b"/", 1)[0].strip() == names.SERVER_WORKER.encode()
        # A foreign server without /health is judged by its list of models.
        return Probed(ready=status == 200 or (not fleet and status in (404, 405)), fleet=fleet)

    async def card(self, url: str) -> ModelCard:
        """The handshake of one of our workers.

        Raises:
            UpstreamError: no answer.
            Unusable: another wire, block size or secret, or no handshake at all.
        """
        status, _, body = await self._get(url, "/cache/model", self._token, HANDSHAKE_TIMEOUT_S)
        if status in (401, 403):
            raise Unusable("it does not know this fleet's secret: give router and workers the same fleet_secret_file")
        if status != 200:
            raise Unusable(f"its handshake answered {status}")
        try:
            card = decode_card(body)
        except HandshakeError as error:
            raise Unusable(str(error)) from None
        self._check(card)
        return card

    def _check(self, card: ModelCard) -> None:
        if card.wire != WIRE_VERSION:
            raise Unusable(f"it speaks wire version {card.wire}, this router {WIRE_VERSION}: update the older one")
        if card.block_bytes != BLOCK_BYTES:
            raise Unusable(f"its blocks are {card.block_bytes} bytes, this router's {BLOCK_BYTES}")
        if card.seed_id != self._key.seed_id:
            raise Unusable("its hashes have another seed: give router and workers the same fleet_secret_file")

    async def vocabulary(self, url: str) -> list[bytes]:
        """The token -> bytes table. Raises UpstreamError or Unusable."""
        status, _, body = await self._upstream.get(
            url,
            "/cache/model?part=vocabulary",
            self._token,
            timeout_s=VOCABULARY_TIMEOUT_S,
            body_max_bytes=VOCABULARY_BYTES_MAX,
        )
        if status != 200:
            raise Unusable(f"its vocabulary answered {status}")
        try:
            return decode_vocabulary(body)
        except HandshakeError as error:
            raise Unusable(str(error)) from None

    async def models(self, url: str) -> list[str]:
        """The models that any OpenAI-compatible server lists. Raises UpstreamError or Unusable."""
        status, _, body = await self._get(url, "/v1/models", [], PROBE_TIMEOUT_S)
        if status != 200:
            raise Unusable(f"its /v1/models answered {status}")
        try:
            listed = msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise Unusable("its /v1/models is no list of models") from None
        models = [model.id for model in listed[:MODELS_MAX] if model.id]
        if not models:
            raise Unusable("it lists no model")
        return models

    @asynccontextmanager
    async def feed(
        self, url: str, since: int | None, epoch: int | None, *, silence_max_s: float
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        """The worker's feed: lists of frames as they come. Raises UpstreamError, Unusable, WireError."""
        query = "" if since is None or epoch is None else f"?since={since}&epoch={epoch}"
        exchange = await self._feeds.open(url, f"/cache/feed{query}", self._token, None, silence_max_s=silence_max_s)
        try:
            if exchange.status != 200:
                raise Unusable(f"its feed answered {exchange.status}")
            yield self._frames(exchange)
        finally:
            exchange.close()

    async def _frames(self, exchange: Answer) -> AsyncIterator[list[Frame]]:
        reader = FrameReader(self._frame_bytes_max)
        async for chunk in exchange.chunks():
            if frames := reader.feed(chunk):
                yield frames

    async def buckets(self, url: str, indices: Sequence[int]) -> list[Frame]:
        """The content of the given digest buckets. Raises UpstreamError, Unusable, WireError."""
        status, _, body = await self._upstream.get(
            url,
            "/cache/feed?buckets=" + ",".join(map(str, indices)),
            self._token,
            timeout_s=HANDSHAKE_TIMEOUT_S,
            body_max_bytes=self._frame_bytes_max + 64,
        )
        if status != 200:
            raise Unusable(f"its feed's buckets answered {status}")
        frames = FrameReader(self._frame_bytes_max).feed(body)
        if not frames:
            raise WireError("asked for buckets, got nothing whole")
        return frames

    async def _get(self, url: str, target: str, headers: HeaderList, timeout_s: float) -> tuple[int, HeaderList, bytes]:
        return await self._upstream.get(
            url, target, headers, timeout_s=timeout_s, body_max_bytes=SMALL_ANSWER_MAX_BYTES
        )


class _Model(msgspec.Struct):
    id: str = ""


class _ModelList(msgspec.Struct):
    data: list[_Model]
