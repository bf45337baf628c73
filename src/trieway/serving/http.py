"""ASGI bits that both servers share. (Signatures first.)"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from trieway.serving.errors import ApiError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SSE_DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """The client went away while its body was being read."""


def header_map(scope: Scope) -> dict[str, str]:
    """Lower-case names to values; the first of repeated ones."""
    raise NotImplementedError


async def read_body(receive: Receive, headers: Mapping[str, str], body_max_bytes: int) -> bytes:
    """The whole body. Raises TooLarge (early by content-length) and ClientGone."""
    raise NotImplementedError


async def send_response(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: str = "application/json",
    headers: Iterable[tuple[str, str]] = (),
) -> None:
    """One whole response."""
    raise NotImplementedError


async def send_error(send: Send, error: ApiError, headers: Iterable[tuple[str, str]] = ()) -> None:
    """An error response."""
    raise NotImplementedError


def sse(data: bytes, event: str | None = None) -> bytes:
    """One server-sent event; `data` has no newline (JSON)."""
    return b"data: " + data + b"\n\n" if event is None else b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def install_error_handlers(app: Any) -> None:
    """Make a FastAPI or Starlette app answer every error in OpenAI's shape."""
    raise NotImplementedError


class BodyLimit:
    """ASGI middleware: bodies over `body_max_bytes` get 413, also those of routes that never read them."""

    def __init__(self, app: Any, body_max_bytes: int) -> None:
        self.app = app
        self.body_max_bytes = body_max_bytes
