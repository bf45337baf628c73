"""The protocol plane by itself: what it expects of uvicorn, its bounds, pipelines, hang-ups and failures."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tests.router.harness import in_loop, until
from tests.router.raw_client import RawClient, chunked, connected, post
from trieway.router.hot_path import HotRequest, Responder
from trieway.router.main import listen
from trieway.router.protocol_plane import HotCycle, HotProtocol
from trieway.serving.http import Receive, Scope, Send, send_response

BODY_MAX = 4096


def test_uvicorn_is_the_one_that_this_was_written_for() -> None:
    """A canary: the class below us is private to uvicorn. Read protocol_plane.py against its new source, then move
    this and the bound in pyproject.toml."""
    assert uvicorn.__version__.split(".")[:2] == ["0", "54"]
    for name in ("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"):
        assert callable(getattr(HttpToolsProtocol, name))
    assert list(inspect.signature(HttpToolsProtocol._start_asgi_task).parameters) == ["self", "cycle", "app"]
    source = inspect.getsource(HttpToolsProtocol)
    asked = set(re.findall(r"cycle\.(\w+)", source))
    never_ours = {"body", "more_body", "run_asgi"}  # in methods that we replace for our own cycles
    assert {name for name in asked if not hasattr(HotCycle, name)} <= never_ours
    assert "pipeline" in source
    assert "on_response" in inspect.signature(RequestResponseCycle.__init__).parameters


class Hot:
    """A hot path of the test's own: answers with the body, or does what the body says."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.cancelled = 0
        self.go = asyncio.Event()

    async def serve(self, request: HotRequest, out: Responder) -> None:
        self.seen.append(request.body)
        try:
            if request.body == b"wait":
                await self.go.wait()
            if request.body == b"fail":
                raise RuntimeError("a bug")
            if request.body == b"half":
                await out.start(200, [])
                await out.write(b"half of it")
                return
            if request.body != b"nothing":
                await out.start(200, [(b"content-length", b"%d" % len(request.body))])
                await out.write(request.body, last=True)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Small(HotProtocol):
    head_bytes_max = 4096
    pipeline_max = 256
    head_timeout_s = 0.3
    body_timeout_s = 0.3


async def control(scope: Scope, receive: Receive, send: Send) -> None:
    await send_response(send, 299, b"control")


@asynccontextmanager
async def serving(hot: Hot) -> AsyncIterator[str]:
    config = uvicorn.Config(
        control,
        http=functools.partial(Small, hot=hot, body_max_bytes=BODY_MAX),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=1,
    )
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listening:
        task = asyncio.create_task(server._serve(sockets=[listening]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            await task
            await until(lambda: not server.server_state.tasks)


def with_hot(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    async def run(**fixtures: object) -> None:
        hot = Hot()
        async with serving(hot) as url:
            await test(hot, url, **fixtures)

    def wrapped(**fixtures: object) -> None:
        in_loop(run)(**fixtures)

    wrapped.__name__ = test.__name__  # type: ignore[attr-defined]
    wanted = list(inspect.signature(test).parameters.values())[2:]
    wrapped.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    return wrapped


@with_hot
async def test_a_hang_up_cancels_the_running_request_and_those_behind_it(hot: Hot, url: str) -> None:
    async with connected(url) as raw:
        await raw.send(post(b"wait") + post(b"second") + post(b"third"))
        await until(lambda: hot.seen)
    await until(lambda: hot.cancelled == 1)
    hot.go.set()
    await asyncio.sleep(0.05)
    assert hot.seen == [b"wait"], "what waited behind it is never served"


@with_hot
async def test_waiting_bodies_are_bounded(hot: Hot, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trieway.router.protocol_plane.WAITING_BYTES_MAX", 8192)
    bodies = [b"%d" % at * 1000 for at in range(100, 200)]
    async with connected(url, limit=1 << 20) as raw:
        await raw.send(post(b"wait"))
        await until(lambda: hot.seen)
        for body in bodies:
            await raw.send(post(body))
        await asyncio.sleep(0.1)
        hot.go.set()
        assert (await raw.answer()).body == b"wait"
        assert [(await raw.answer()).body for _ in bodies] == bodies


@with_hot
async def test_a_long_pipeline_of_refusals_is_no_deep_recursion(hot: Hot, url: str) -> None:
    async with connected(url, limit=1 << 20) as raw:
        await raw.send(post(b"wait"))
        await until(lambda: hot.seen)
        await raw.send(post(b"x" * (BODY_MAX + 1)) * 200 + post(b"last"))
        await asyncio.sleep(0.1)
        hot.go.set()
        assert (await raw.answer()).body == b"wait"
        for _ in range(200):
            assert (await raw.answer()).status == 413
        assert (await raw.answer()).body == b"last"


@with_hot
async def test_pipelines_mix_with_the_control_plane(hot: Hot, url: str) -> None:
    async with connected(url) as raw:
        get = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
        await raw.send(post(b"one") + get + get + post(b"two") + chunked(b"th", b"ree") + get)
        got = [(await raw.answer()).body for _ in range(6)]
    assert got == [b"one", b"control", b"control", b"two", b"three", b"control"]


@with_hot
async def test_an_answer_without_its_end_closes_the_connection(hot: Hot, url: str) -> None:
    async with connected(url) as raw:
        await raw.send(post(b"half") + post(b"next"))
        status, headers = await raw.head()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        assert await raw.reader.read() == b"a\r\nhalf of it\r\n"
    async with connected(url) as raw:
        await raw.send(post(b"nothing"))
        assert await raw.closed()
    assert hot.seen == [b"half", b"nothing"]


@with_hot
async def test_a_bug_is_logged_and_closes(hot: Hot, url: str) -> None:
    logger = logging.getLogger("trieway.router.protocol_plane")
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        async with connected(url) as raw:
            await raw.send(post(b"fail"))
            assert await raw.closed()
    finally:
        logger.removeHandler(handler)
    assert [record.levelname for record in told] == ["ERROR"]


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"POST /v1/completions HTTP/1.1\r\nx: " + b"a" * 5000, 431, "head_too_large"),
        (
            b"POST /v1/completions HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % i for i in range(800)),
            431,
            "head_too_large",
        ),
        (chunked(b"a")[:-2] + b"x: " + b"a" * 5000, 431, "head_too_large"),
        (b"POST /v1/completions HT", 408, "request_timeout"),
        (post(b"body")[:-2], 408, "request_timeout"),
        (chunked(b"ab")[:-5], 408, "request_timeout"),
        (post(b"a", "content-length: 2"), 400, "invalid_http"),
        (post(b"a", "transfer-encoding: chunked"), 400, "invalid_http"),
        (b"POST /v1/completions HTTP/1.1\r\nbad\x00: x\r\n\r\n", 400, "invalid_http"),
    ],
    ids=range(9),
)
def test_heads_bodies_and_times_are_bounded(request_bytes: bytes, status: int, code: str) -> None:
    @with_hot
    async def run(hot: Hot, url: str) -> None:
        async with connected(url) as raw:
            more = [b"a" * 5000] * 2 if status == 431 and request_bytes.endswith(b"a") else []
            await raw.send(request_bytes, *more, pause_s=0.02)
            answer = await raw.answer()
            assert (answer.status, answer.code) == (status, code)
            assert await raw.closed()
        assert b"body" not in hot.seen

    run()


@with_hot
async def test_too_many_waiting_requests_are_refused(hot: Hot, url: str) -> None:
    async with connected(url) as raw:
        await raw.send(post(b"wait") + post(b"b") * 300)
        answer = await raw.answer()
        assert (answer.status, answer.code) == (400, "pipeline_full")
    await until(lambda: hot.cancelled == 1)


@with_hot
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(hot: Hot, url: str) -> None:
    async with connected(url) as idle, connected(url) as busy:
        await busy.send(post(b"wait"))
        await idle.send(post(b"a"))
        assert (await idle.answer()).status == 200
        assert await idle.closed()
        assert not hot.cancelled
        hot.go.set()
        assert (await busy.answer()).body == b"wait"


@with_hot
async def test_bodies_do_not_wait_in_memory_beyond_their_bound(hot: Hot, url: str) -> None:
    async def flood(raw: RawClient) -> None:
        await raw.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert_413 = asyncio.ensure_future(raw.answer())
        for _ in range(200):
            await raw.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        assert (await assert_413).status == 413
        await raw.send(b"0\r\n\r\n" + post(b"after"))
        assert (await raw.answer()).body == b"after"

    async with connected(url) as raw:
        await flood(raw)
    assert hot.seen == [b"after"]
