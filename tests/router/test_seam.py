"""The hot path without ASGI, and the ASGI form without a server: the seam is a real one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

from tests.router.fakes import DONE, EVENT, MODEL, FakeWorker, cuts_midway, hangs
from tests.router.harness import in_loop, routed, until
from tests.router.wire import Seen, Wire
from trieway.router.asgi import RouterApp
from trieway.router.hot_path import HeaderList, HotRequest, Responder
from trieway.router.reply import Reply, last_words


class Kept:
    """A responder that keeps what it is given."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.ended = False

    async def start(self, status: int, headers: HeaderList) -> None:
        assert self.status == 0
        self.status, self.headers = status, dict(headers)

    async def write(self, data: bytes, *, last: bool = False) -> None:
        assert self.status
        assert not self.ended
        self.body += data
        self.ended = last


def request(**fields: Any) -> HotRequest:
    body = json.dumps({"model": MODEL, "prompt": "p", **fields}).encode()
    return HotRequest(kind="completion", target="/v1/completions", headers=[], body=body)


@in_loop
async def test_the_hot_path_needs_no_server() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        hot = client.router.dispatcher
        whole, streamed, refused = Kept(), Kept(), Kept()
        await hot.serve(request(), whole)
        await hot.serve(request(stream=True), streamed)
        await hot.serve(request(model="none"), refused)
    assert (whole.status, whole.ended) == (200, True)
    assert int(whole.headers[b"content-length"]) == len(whole.body)
    assert (streamed.body, streamed.ended) == (b"".join(EVENT % at for at in range(3)) + DONE, True)
    assert b"content-length" not in streamed.headers
    assert (refused.status, refused.ended) == (404, True)


@in_loop
async def test_a_cancel_at_any_await_releases_the_booking() -> None:
    worker = FakeWorker(events=40)
    async with routed(worker) as client:
        for delay in range(30):
            task = asyncio.ensure_future(client.router.dispatcher.serve(request(stream=True), Kept()))
            for _ in range(delay):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert client.booked() == 0
            assert client.router.dispatcher.running == 0
            client.router.check()


async def stalls_midway(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
    await wire.begin()
    await wire.chunk(EVENT % 0 + b"data: torn")
    await wire.gone()


@in_loop
async def test_a_stream_cut_by_the_end_of_the_router_says_so() -> None:
    worker = FakeWorker()
    worker.answer = stalls_midway
    async with routed(worker) as client:
        kept = Kept()
        task = asyncio.ensure_future(client.router.dispatcher.serve(request(stream=True), kept))
        await until(lambda: kept.body)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert kept.ended
    assert kept.body.startswith(EVENT % 0)
    assert b'event: error\ndata: {"error":' in kept.body
    assert b'"code":"stopping"' in kept.body


@in_loop
async def test_a_request_cut_by_the_end_of_the_router_before_its_answer_is_told() -> None:
    worker = FakeWorker()
    worker.answer = hangs
    async with routed(worker) as client:
        kept = Kept()
        task = asyncio.ensure_future(client.router.dispatcher.serve(request(stream=True), kept))
        await until(worker.completions)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (kept.status, kept.ended) == (503, True)
    assert json.loads(kept.body)["error"]["code"] == "stopping"


@in_loop
async def test_last_words_do_not_wait_for_a_client_that_does_not_read() -> None:
    began = time.monotonic()
    await last_words(asyncio.sleep(60))
    assert time.monotonic() - began < 30


@in_loop
async def test_a_responder_that_fails_does_not_leak_a_booking() -> None:
    class Failing(Kept):
        async def write(self, data: bytes, *, last: bool = False) -> None:
            raise ConnectionResetError

    worker = FakeWorker()
    async with routed(worker) as client:
        await client.router.dispatcher.serve(request(stream=True), Failing())
        assert client.booked() == 0


@in_loop
async def test_a_slow_client_is_not_the_workers_fault() -> None:
    class Slow(Kept):
        async def write(self, data: bytes, *, last: bool = False) -> None:
            if not last:
                await asyncio.sleep(60)
            await super().write(data, last=last)

    worker = FakeWorker()
    async with routed(worker, idle_timeout_s=0.2, first_byte_timeout_s=0.4) as client:
        slow = Slow()
        await client.router.dispatcher.serve(request(stream=True), slow)
        assert client.router.core.workers(time.monotonic())[0].errors == 0
    assert slow.ended


@in_loop
async def test_the_waits_at_a_lost_worker_end_at_once() -> None:
    """As when a machine vanishes: no reset comes, but the watcher finds nobody there."""
    worker, other = FakeWorker(), FakeWorker()
    for each in (worker, other):
        each.answer = hangs
    async with routed(worker, other) as client:
        kept = Kept()
        task = asyncio.ensure_future(client.router.dispatcher.serve(request(), kept))
        await until(lambda: worker.waiting or other.waiting)
        lost, left = (worker, other) if worker.waiting else (other, worker)
        client.router.links.get(lost.id).lose()  # type: ignore[arg-type]
        await until(lambda: left.waiting)
        client.router.links.get(left.id).lose()  # type: ignore[arg-type]
        await task
    assert kept.status == 502


Scope = MutableMapping[str, Any]


class Asgi:
    """Calls an ASGI app by hand."""

    def __init__(self, body: list[bytes], *, path: str = "/v1/completions", headers: HeaderList | None = None) -> None:
        self.scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": headers or [],
        }
        self.incoming: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        for at, part in enumerate(body):
            self.incoming.put_nowait({"type": "http.request", "body": part, "more_body": at + 1 < len(body)})
        self.sent: list[MutableMapping[str, Any]] = []

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.incoming.put_nowait({"type": "http.disconnect"})

    def hang_up(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def call(self, app: RouterApp) -> None:
        await app(self.scope, self.incoming.get, self.send)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


class Stub:
    """A hot path of the test's own."""

    def __init__(self) -> None:
        self.seen: list[HotRequest] = []
        self.cancelled = 0
        self.lingers = False

    async def serve(self, request: HotRequest, out: Responder) -> None:
        self.seen.append(request)
        try:
            if request.body == b"hang":
                await asyncio.sleep(60)
            await out.start(200, [])
            await out.write(b"ok", last=True)
            if self.lingers:
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def control(scope: Scope, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"control"})


def app(stub: Stub) -> RouterApp:
    return RouterApp(stub, control, body_max_bytes=10)


@in_loop
async def test_asgi_bodies_come_in_parts() -> None:
    stub = Stub()
    call = Asgi([b"he", b"", b"llo"])
    await call.call(app(stub))
    assert (call.status, stub.seen[0].body, stub.seen[0].kind) == (200, b"hello", "completion")


@in_loop
async def test_asgi_sends_other_paths_to_the_control_plane() -> None:
    stub = Stub()
    for path in ("/", "/v1/models", "/v1/completions/"):
        call = Asgi([b""], path=path)
        await call.call(app(stub))
        assert call.status == 299
    assert stub.seen == []


@pytest.mark.parametrize("declared", [False, True])
def test_asgi_refuses_large_bodies_early(declared: bool) -> None:
    @in_loop
    async def run() -> None:
        stub = Stub()
        call = Asgi([b"x" * 6] * 3, headers=[(b"content-length", b"18")] if declared else [])
        await call.call(app(stub))
        assert (call.status, stub.seen) == (413, [])
        assert call.incoming.qsize() == (4 if declared else 2)

    run()


@in_loop
async def test_asgi_hang_ups_cancel_the_hot_path_and_nothing_else() -> None:
    stub = Stub()
    call = Asgi([b"hang"])
    task = asyncio.ensure_future(call.call(app(stub)))
    await until(lambda: stub.seen)
    call.hang_up()
    await task
    assert (stub.cancelled, call.sent) == (1, [])

    early = Asgi([])
    early.hang_up()
    await early.call(app(stub))
    assert len(stub.seen) == 1

    stub.lingers = True
    await Asgi([b"fine"]).call(app(stub))
    assert stub.cancelled == 1, "an answered request also reads as a disconnect; it is none"


@in_loop
async def test_asgi_passes_a_cancel_from_outside_on() -> None:
    stub = Stub()
    task = asyncio.ensure_future(Asgi([b"hang"]).call(app(stub)))
    await until(lambda: stub.seen)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_loop
async def test_a_reply_that_breaks_is_left_without_an_end_where_nobody_reads_events() -> None:
    kept = Kept()
    reply = Reply(kept)
    await reply.start(200, [(b"content-type", b"application/json")])
    await reply.cut(b"event: error\n\n")
    assert (kept.body, kept.ended) == (b"", False)

    events = Kept()
    reply = Reply(events)
    await reply.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
    await reply.cut(b"event: error\n\n")
    await reply.cut(b"again")
    assert (events.body, events.ended) == (b"event: error\n\n", True)


@in_loop
async def test_a_broken_stream_reaches_any_responder_with_its_event() -> None:
    worker = FakeWorker()
    worker.answer = cuts_midway
    async with routed(worker) as client:
        kept = Kept()
        await client.router.dispatcher.serve(request(stream=True), kept)
    assert kept.ended
    assert b"event: error" in kept.body
