"""ASGI bits that both servers share: bodies within a bound, whole responses, errors in OpenAI's shape, SSE frames.

Keeps true: a body over the bound is refused before it is held in memory; every error leaves in one shape. Does not
know routes.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trieway.serving.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    Internal,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    Unauthorized,
    error_body,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SSE_DONE = b"data: [DONE]\n\n"
SSE_CONTENT_TYPE = "text/event-stream; charset=utf-8"
log = logging.getLogger("trieway.http")


class ClientGone(Exception):
    """The client went away while its body was being read."""


def header_map(scope: Scope) -> dict[str, str]:
    """Lower-case names to values, read as latin-1; the first of repeated ones."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


def check_length(headers: Mapping[str, str], body_max_bytes: int) -> None:
    """Raises TooLarge where content-length alone says that the body is over the bound."""
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > body_max_bytes):
        raise too_large(body_max_bytes)


def too_large(body_max_bytes: int) -> TooLarge:
    return TooLarge(f"The body is larger than {body_max_bytes} bytes (body_max_bytes).")


async def read_body(receive: Receive, headers: Mapping[str, str], body_max_bytes: int) -> bytes:
    """The whole body. Raises TooLarge (early by content-length) and ClientGone."""
    check_length(headers, body_max_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > body_max_bytes:
            raise too_large(body_max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI wants them; line breaks in values would split the response, so they become spaces."""
    return [
        (name.lower().encode("latin-1"), value.replace("\r", " ").replace("\n", " ").encode("latin-1", "replace"))
        for name, value in headers
    ]


async def send_response(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: str = "application/json",
    headers: Iterable[tuple[str, str]] = (),
) -> None:
    """One whole response."""
    own = [("content-type", content_type), ("content-length", str(len(body)))]
    await send({"type": "http.response.start", "status": status, "headers": encode_headers([*own, *headers])})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError, headers: Iterable[tuple[str, str]] = ()) -> None:
    """An error response.

    After a body refused half-read the connection stays open and the server drops what still comes: closing it would
    reset a client that is still sending, before it has read why.
    """
    await send_response(send, error.status, error_body(error), headers=[*error.headers, *headers])


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The same as a Starlette response."""
    return Response(
        error_body(error),
        error.status,
        {**(headers or {}), **dict(error.headers)},
        media_type="application/json",
    )


def sse(data: bytes, event: str | None = None) -> bytes:
    """One server-sent event; `data` has no newline (JSON)."""
    return b"data: " + data + b"\n\n" if event is None else b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    413: TooLarge,
    422: BadRequest,
}


def from_http_exception(error: HTTPException) -> ApiError:
    """Starlette's own errors (unknown route, wrong method) in our tree."""
    kind = _BY_STATUS.get(error.status_code, Internal if error.status_code >= 500 else BadRequest)
    return kind(f"{error.detail}.")


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(from_http_exception(error), error.headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """FastAPI's reading of query and body: the first complaint, by its place."""
    first: dict[str, Any] = next(iter(getattr(error, "errors", list)()), {})
    param = ".".join(str(part) for part in first.get("loc", ())[1:]) or None
    return error_response(BadRequest(f"{param or 'body'}: {first.get('msg', 'invalid')}", param=param))


async def _on_bug(request: Request, error: Exception) -> Response:
    # Where it happened, not its message: that may quote what the client sent.
    trace = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s %s failed with %s\n%s", request.method, request.url.path, type(error).__name__, trace)
    return error_response(Internal("Internal error; the server's log has more."))


def install_error_handlers(app: Any) -> None:
    """Make a FastAPI or Starlette app answer every error in OpenAI's shape."""
    from fastapi.exceptions import RequestValidationError

    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_bug)


class BodyLimit:
    """ASGI middleware: bodies over `body_max_bytes` get 413, whether by their content-length or while they come."""

    def __init__(self, app: App, body_max_bytes: int) -> None:
        self.app = app
        self.body_max_bytes = body_max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.body_max_bytes:
                raise too_large(self.body_max_bytes)
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            check_length(header_map(scope), self.body_max_bytes)
            await self.app(scope, counted, watched)
        except TooLarge as error:
            if started:
                raise
            await send_error(send, error)
