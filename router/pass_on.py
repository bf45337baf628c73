"""Requests that any worker of a model can answer: /tokenize and /detokenize are passed on, body and answer untouched.

Keeps true: the same headers go on as on the hot path; a worker that does not answer is passed over. Books nothing: this
work is small and says nothing about prefixes.
"""

from __future__ import annotations

import asyncio
from itertools import islice

import msgspec

from trieway.router.forwarding import Onward, request_headers, response_headers
from trieway.router.hot_path import HeaderList, HotRequest
from trieway.router.links import Link, Links, LinkState
from trieway.router.questions import request_id
from trieway.router.upstream import Upstream, UpstreamError
from trieway.serving import headers as names
from trieway.serving.auth import Principal
from trieway.serving.errors import BadRequest, NotFound, Unavailable
from trieway.serving.errors import Upstream as UpstreamFailure

TIMEOUT_S = 30.0
ANSWER_MAX_BYTES = 64 << 20


class _Named(msgspec.Struct):
    model: str | None = None


class PassOn:
    """Sends a request to an up worker of the model that its body names (or of the only one)."""

    def __init__(self, links: Links, upstream: Upstream, *, attempts_max: int, keep_credentials: bool) -> None:
        self._links = links
        self._upstream = upstream
        self._attempts_max = attempts_max
        self._keep_credentials = keep_credentials

    async def send(self, request: HotRequest, principal: Principal) -> tuple[int, HeaderList, bytes]:
        """The worker's status, headers and body. Raises ApiError."""
        identity = request_id(request.headers)
        for link in islice(self._candidates(request.body), self._attempts_max):
            onward = Onward(
                request_id=identity,
                fleet_token=link.fleet_token,
                tenant=principal.tenant,
                keep_credentials=self._keep_credentials,
            )
            try:
                status, headers, body = await self._post(link, request, onward)
            except (UpstreamError, TimeoutError):
                link.suspect()
                continue
            ours: HeaderList = [
                (b"content-length", b"%d" % len(body)),
                (names.WORKER.encode(), link.worker.encode()),
                (names.REQUEST_ID.encode(), identity.encode()),
            ]
            return status, response_headers(headers, ours), body
        raise UpstreamFailure("no worker of this model answered")

    async def _post(self, link: Link, request: HotRequest, onward: Onward) -> tuple[int, HeaderList, bytes]:
        async with asyncio.timeout(TIMEOUT_S):
            exchange = await self._upstream.open(
                link.url, request.target, request_headers(request.headers, onward), request.body
            )
            try:
                return exchange.status, exchange.headers, await exchange.read(ANSWER_MAX_BYTES)
            finally:
                exchange.close()

    def _candidates(self, body: bytes) -> list[Link]:
        try:
            model = msgspec.json.decode(body, type=_Named).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise BadRequest("the body is not a JSON object that names a model") from None
        served = [link for link in self._links if model is None or model == link.model or model in link.aliases]
        if not served and model is not None:
            raise NotFound.model(model)
        up = [link for link in served if link.state is LinkState.UP and not link.draining]
        if not up:
            raise Unavailable("no worker can take this request now", retry_after_s=1.0)
        return sorted(up, key=lambda link: (not link.fleet, len(link.leases)))
