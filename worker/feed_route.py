"""`GET /cache/feed`: a router's long stream of frames, or one frame of the digest buckets it asks for again.

Keeps true: only the fleet's token opens it; a router that goes away is forgotten at once. Does not know frames.
"""

from __future__ import annotations

from contextlib import aclosing
from urllib.parse import parse_qsl

from trieway.serving.auth import require_fleet
from trieway.serving.errors import ApiError, BadRequest, Unavailable
from trieway.serving.http import ClientGone, Receive, Scope, Send, header_map, send_error, send_response
from trieway.worker.disconnect import until_gone
from trieway.worker.service import Service

BUCKETS = 256
_BINARY = "application/octet-stream"


class FeedRoute:
    """Raw ASGI. Query: `since` and `epoch` resume; `buckets=1,2` asks for one frame."""

    def __init__(self, service: Service, feed_token: str) -> None:
        self._service = service
        self._feed_token = feed_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            require_fleet(header_map(scope), self._feed_token)
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            if "buckets" in query:
                indices = [_integer("buckets", part, BUCKETS - 1) for part in query["buckets"].split(",") if part]
                await send_response(send, 200, self._service.feed.buckets(indices), content_type=_BINARY)
                return
            if self._service.draining:
                raise Unavailable("this worker is stopping", code="draining")
            since, epoch = (_integer(name, query[name]) if name in query else None for name in ("since", "epoch"))
            await until_gone(self._stream(since, epoch, send), receive)
        except ClientGone:
            pass
        except ApiError as error:
            await send_error(send, error)

    async def _stream(self, since: int | None, epoch: int | None, send: Send) -> None:
        async with aclosing(self._service.feed.stream(since, epoch)) as stream:
            started = False
            async for data in stream:
                if not started:
                    started = True
                    headers = [(b"content-type", _BINARY.encode()), (b"cache-control", b"no-store")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _integer(name: str, text: str, most: int = 2**64 - 1) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
    if not 0 <= value <= most:
        raise BadRequest(f"{name} is a number from 0 to {most}", param=name)
    return value
