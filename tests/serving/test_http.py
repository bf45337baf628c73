"""ASGI bits: bounds on bodies, whole responses, errors in one shape."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Query, Request
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving.errors import ApiError, BadRequest, Busy, TooLarge
from trieway.serving.http import (
    SSE_DONE,
    BodyLimit,
    ClientGone,
    Message,
    encode_headers,
    error_response,
    header_map,
    install_error_handlers,
    read_body,
    send_error,
    send_response,
    sse,
)


def feeding(*messages: Message) -> Any:
    """A `receive` that gives these messages in turn."""
    left = list(messages)

    async def receive() -> Message:
        return left.pop(0)

    return receive


def chunk(data: bytes, more: bool) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


def read(*messages: Message, headers: dict[str, str] | None = None, most: int = 10) -> bytes:
    return asyncio.run(read_body(feeding(*messages), headers or {}, most))


def test_a_body_in_one_piece_and_in_several() -> None:
    assert read(chunk(b"abc", False)) == b"abc"
    assert read(chunk(b"ab", True), chunk(b"", True), chunk(b"c", False)) == b"abc"
    assert read({"type": "http.request"}) == b""


def test_bodies_at_and_over_the_bound() -> None:
    assert read(chunk(b"x" * 10, False)) == b"x" * 10
    with pytest.raises(TooLarge):
        read(chunk(b"x" * 6, True), chunk(b"x" * 5, True))
    with pytest.raises(TooLarge):
        read(headers={"content-length": "11"})
    with pytest.raises(TooLarge):
        read(headers={"content-length": "9" * 5000})
    assert read(chunk(b"x", False), headers={"content-length": "nonsense"}) == b"x"


def test_a_client_that_goes_away() -> None:
    with pytest.raises(ClientGone):
        read(chunk(b"ab", True), {"type": "http.disconnect"})


@given(pieces=st.lists(st.binary(max_size=5), min_size=1, max_size=6))
def test_a_body_is_the_sum_of_its_pieces_or_too_large(pieces: list[bytes]) -> None:
    messages = [chunk(piece, at < len(pieces) - 1) for at, piece in enumerate(pieces)]
    if sum(map(len, pieces)) > 10:
        with pytest.raises(TooLarge):
            read(*messages)
    else:
        assert read(*messages) == b"".join(pieces)


def test_headers_of_a_scope() -> None:
    scope = {"headers": [(b"X-One", b"1"), (b"x-one", b"2"), (b"x-two", b"\xe9")]}
    assert header_map(scope) == {"x-one": "1", "x-two": "é"}


def test_header_values_cannot_split_a_response() -> None:
    assert encode_headers([("X-A", "a\r\nset-cookie: b"), ("x-b", "你")]) == [
        (b"x-a", b"a  set-cookie: b"),
        (b"x-b", b"?"),
    ]


def sent(sender: Any) -> tuple[int, dict[str, str], bytes]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    asyncio.run(sender(send))
    start, body = messages
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


def test_a_whole_response() -> None:
    status, headers, body = sent(lambda send: send_response(send, 200, b"{}", headers=[("X-Y", "z")]))
    assert (status, body) == (200, b"{}")
    assert headers == {"content-type": "application/json", "content-length": "2", "x-y": "z"}


def test_an_error_response() -> None:
    status, headers, body = sent(lambda send: send_error(send, Busy("full", retry_after_s=3), [("x-y", "z")]))
    assert status == 429
    assert headers["retry-after"] == "3"
    assert headers["x-y"] == "z"
    assert json.loads(body)["error"]["message"] == "full"
    response = error_response(Busy("full"), {"x-y": "z"})
    assert (response.status_code, response.headers["retry-after"], response.headers["x-y"]) == (429, "1", "z")


def test_events() -> None:
    assert sse(b"{}") == b"data: {}\n\n"
    assert sse(b"{}", "error") == b"event: error\ndata: {}\n\n"
    assert SSE_DONE == b"data: [DONE]\n\n"


SENT = "what the client sent"


def make_app() -> Any:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/number")
    async def number(n: Annotated[int, Query(ge=1)]) -> int:
        return n

    @app.get("/fails/{kind}")
    async def fails(kind: str) -> None:
        raise {"ours": BadRequest("no", param="p"), "bug": ValueError(SENT)}[kind]

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.post("/blind")
    async def blind() -> str:
        return "never reads its body"

    return BodyLimit(app, 1000)


def ask(method: str, path: str, **more: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **more)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("DELETE", "/number", 405, "method_not_allowed"),
        ("GET", "/number", 400, None),
        ("GET", "/number?n=0", 400, None),
        ("GET", "/number?n=x", 400, None),
        ("GET", "/fails/ours", 400, None),
        ("GET", "/fails/bug", 500, "internal_error"),
    ],
)
def test_every_error_of_an_app_has_one_shape(method: str, path: str, status: int, code: str | None) -> None:
    answer = ask(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert SENT not in answer.text


def test_a_bug_is_logged_without_what_the_client_sent(caplog: pytest.LogCaptureFixture) -> None:
    ask("GET", "/fails/bug")
    assert "GET /fails/bug failed with ValueError" in caplog.text
    assert "in fails" in caplog.text
    own = [record.getMessage() for record in caplog.records if record.name == "trieway.http"]
    assert own
    assert not any(SENT in line for line in own)


def test_a_query_s_error_names_its_parameter() -> None:
    assert ask("GET", "/number?n=x").json()["error"]["param"] == "n"
    assert ask("GET", "/number?n=3").json() == 3


async def endless(size: int) -> Any:
    for _ in range(size // 100):
        yield b"x" * 100


def test_the_body_limit_of_an_app() -> None:
    assert ask("POST", "/echo", content=b"x" * 1000).json() == 1000
    for path in ("/echo", "/blind"):
        answer = ask("POST", path, content=b"x" * 1001)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
    assert ask("POST", "/echo", content=endless(5000)).status_code == 413


def test_what_came_out_before_the_limit_is_not_answered_twice() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_response(send, 200, b"{}")
        await receive()

    async def run() -> list[Message]:
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        with pytest.raises(ApiError):
            await BodyLimit(app, 5)({"type": "http", "headers": []}, feeding(chunk(b"x" * 6, False)), send)
        return messages

    assert [message["type"] for message in asyncio.run(run())] == ["http.response.start", "http.response.body"]


def test_other_scopes_pass() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(BodyLimit(app, 5)({"type": "lifespan"}, feeding(), lambda message: asyncio.sleep(0)))
    assert seen == ["lifespan"]
