"""One connection's bounds: heads, trailers, pipelines, time; offers to upgrade; refusals in OpenAI's shape."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import uvicorn

from trieway.serving.http import ClientGone, Receive, Scope, Send, header_map, read_body, send_response
from trieway.serving.protocol import BoundedProtocol

BODY_MAX = 1 << 20


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run in a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Small(BoundedProtocol):
    head_bytes_max = 4096
    pipeline_max = 8
    head_timeout_s = 0.3
    body_timeout_s = 0.3


class Echo:
    """Answers with the body; `/slow` once `go` is set. Keeps the headers that it saw."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.headers: list[dict[str, str]] = []
        self.gone = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, header_map(scope), BODY_MAX)
        except ClientGone:
            self.gone += 1
            return
        self.headers.append(header_map(scope))
        if scope["path"] == "/slow":
            await self.go.wait()
        await send_response(send, 200, b"echo:" + body)


@asynccontextmanager
async def serving(app: Echo) -> AsyncIterator[int]:
    config = uvicorn.Config(
        app, http=Small, ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=1
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(server._serve(sockets=[listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


async def exchange(port: int, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """All that the server answers, until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def post(body: bytes, *headers: str, path: str = "/", close: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    if close:
        lines.append("connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def refused(answer: bytes) -> tuple[int, str]:
    """(status, error code) of a refusal; OpenAI's shape."""
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % i for i in range(800)) + b"\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: " + b"a" * 5000 + b"\r\n\r\n",
    ],
    ids=["url", "header", "headers", "trailer"],
)
@in_loop
async def test_a_head_or_trailer_over_its_bound_is_refused(flood: bytes) -> None:
    async with serving(Echo()) as port:
        assert refused(await exchange(port, flood)) == (431, "head_too_large")


@pytest.mark.parametrize(
    "start", [b"GET /", b"GET / HTTP/1.1\r\nx: ", b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;"]
)
@in_loop
async def test_what_never_ends_is_refused_while_it_comes(start: bytes) -> None:
    async with serving(Echo()) as port:
        answer = await exchange(port, start, *[b"a" * 1000] * 5, pause_s=0.02)
        assert refused(answer) == (431, "head_too_large")


@in_loop
async def test_a_large_body_and_trailers_pass_and_trailers_are_no_headers() -> None:
    app = Echo()
    async with serving(app) as port:
        assert (await exchange(port, post(b"b" * 500_000))).endswith(b"b" * 500_000)
        chunked = b"POST / HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked += b"2\r\nhi\r\n0\r\nx-late: 1\r\n\r\n"
        assert (await exchange(port, chunked)).endswith(b"echo:hi")
        assert "x-late" not in app.headers[-1]


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
@pytest.mark.parametrize("cuts", [(), (60,), (100, 190)])
@in_loop
async def test_an_offer_to_upgrade_is_passed_over_and_the_body_read(offer: str, cuts: tuple[int, ...]) -> None:
    app = Echo()
    offered = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {offer}", "http2-settings: AAEAAEAA", "x-mine: 1")
    request = post(b"question", *offered, close=False) + post(b"next")
    edges = [0, *cuts, len(request)]
    pieces = [request[start:end] for start, end in pairwise(edges)]
    async with serving(app) as port:
        answer = await exchange(port, *pieces, pause_s=0.02)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"echo:question" in answer
    assert answer.endswith(b"echo:next")
    assert app.headers[0]["x-mine"] == "1"


@pytest.mark.parametrize(
    "request_bytes", [b"\x16\x03\x01", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
@in_loop
async def test_what_is_not_http_is_refused(request_bytes: bytes) -> None:
    async with serving(Echo()) as port:
        assert refused(await exchange(port, request_bytes)) == (400, "invalid_http")


@pytest.mark.parametrize(
    "start", [b"GET / HT", post(b"body")[:-2], b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n4\r\nab"]
)
@in_loop
async def test_a_request_that_does_not_get_on_times_out(start: bytes) -> None:
    app = Echo()
    async with serving(app) as port:
        assert refused(await exchange(port, start)) == (408, "request_timeout")
    assert not app.headers


@pytest.mark.parametrize("start", [b"", b"\r\n", post(b"x", close=False) + b"\r\n"])
@in_loop
async def test_a_connection_without_a_request_is_closed(start: bytes) -> None:
    async with serving(Echo()) as port:
        answer = await exchange(port, start)
        assert answer.count(b"HTTP/1.1") == (1 if b"POST" in start else 0)


@in_loop
async def test_time_runs_for_nobody_whose_answer_is_under_way() -> None:
    app = Echo()
    async with serving(app) as port:
        asked = asyncio.create_task(exchange(port, post(b"a", path="/slow", close=False), post(b"b")))
        begun = asyncio.create_task(exchange(port, post(b"a", path="/slow", close=False), b"POST / HT", pause_s=0.01))
        await asyncio.sleep(1.0)
        assert not asked.done()
        assert not begun.done()
        app.go.set()
        assert (await asked).count(b"HTTP/1.1 200") == 2
        assert (await begun).count(b"HTTP/1.1 200") == 1


@in_loop
async def test_pipelines_are_answered_in_order_and_bounded() -> None:
    app = Echo()
    async with serving(app) as port:
        few = [post(b"%d" % number, close=False) for number in range(8)]
        answer = await exchange(port, b"".join(few) + post(b"last"))
        assert [part[:1] for part in answer.split(b"echo:")[1:]] == [b"%d" % n for n in range(8)] + [b"l"]
        many = post(b"a", path="/slow", close=False) + post(b"b", close=False) * 20
        assert refused(await exchange(port, many)) == (400, "pipeline_full")
