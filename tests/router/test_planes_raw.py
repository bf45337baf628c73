"""What clients send over a raw connection, on both data planes: one behaviour, whoever carries it."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.router.fakes import DONE, EVENT, MODEL, FakeWorker, hangs, well
from tests.router.harness import Client, in_loop, routed, until
from tests.router.raw_client import RawClient, chunked, connected, post
from tests.router.wire import Seen, Wire

pytestmark = pytest.mark.usefixtures("both_planes")


def body(prompt: str = "p", **fields: object) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, **fields}).encode()


async def works(client: Client, raw: RawClient) -> None:
    """The connection still serves."""
    await raw.send(post(body("again")))
    assert (await raw.answer()).status == 200
    assert client.booked() == 0


@in_loop
async def test_a_request_may_come_byte_by_byte_and_a_connection_serves_many() -> None:
    worker = FakeWorker()
    async with routed(worker) as client, connected(client.url) as raw:
        request = post(body())
        await raw.send(*[request[at : at + 1] for at in range(len(request))])
        assert (await raw.answer()).status == 200
        for _ in range(3):
            await works(client, raw)
    assert worker.completions()[0].body == body()


@in_loop
async def test_chunked_bodies_arrive_whole_with_their_length() -> None:
    worker = FakeWorker()
    whole = body("x" * 1000)
    async with routed(worker) as client, connected(client.url) as raw:
        await raw.send(chunked(whole[:7], whole[7:500], whole[500:]), post(body("next")))
        assert [(await raw.answer()).status for _ in range(2)] == [200, 200]
    seen = worker.completions()[0]
    assert seen.body == whole
    assert seen.header("content-length") == str(len(whole))
    assert seen.header("transfer-encoding") is None


@pytest.mark.parametrize("stream", [False, True])
def test_pipelined_requests_are_answered_in_order(stream: bool) -> None:
    @in_loop
    async def run() -> None:
        async def named(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
            prompt = json.loads(seen.body)["prompt"]
            await asyncio.sleep(0.05 if prompt == "0" else 0.0)
            if stream:
                await wire.begin()
                await wire.chunk(b"data: %s\n\n" % prompt.encode())
                await wire.end()
            else:
                await wire.send(200, prompt.encode())

        worker = FakeWorker()
        worker.answer = named
        async with routed(worker) as client, connected(client.url) as raw:
            requests = [post(body(f"{number}", stream=stream)) for number in range(5)]
            models = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
            await raw.send(b"".join([*requests[:3], models, *requests[3:]]))
            answers = [await raw.answer() for _ in range(6)]
        assert [str(number) in answers[at].body.decode() for number, at in enumerate((0, 1, 2, 4, 5))] == [True] * 5
        assert json.loads(answers[3].body)["object"] == "list"
        assert len(worker.completions()) == 5

    run()


@in_loop
async def test_an_expectation_is_met_before_the_body() -> None:
    async with routed(FakeWorker()) as client, connected(client.url) as raw:
        whole = body()
        head, _, _ = post(whole, "Expect: 100-Continue").partition(b"\r\n\r\n")
        await raw.send(head + b"\r\n\r\n")
        assert (await raw.head())[0] == 100
        await raw.send(whole)
        assert (await raw.answer()).status == 200
        await works(client, raw)


@pytest.mark.parametrize("declared", [False, True])
def test_a_body_over_the_bound_is_refused_and_the_connection_lives(declared: bool) -> None:
    @in_loop
    async def run() -> None:
        worker = FakeWorker()
        async with routed(worker, body_max_bytes=2048) as client, connected(client.url) as raw:
            big = body("x" * 5000)
            await raw.send(post(big) if declared else chunked(*[big[at : at + 500] for at in range(0, len(big), 500)]))
            refused = await raw.answer()
            assert (refused.status, refused.code) == (413, "body_too_large")
            await works(client, raw)
        assert len(worker.completions()) == 1

    run()


@in_loop
async def test_a_declared_body_over_the_bound_is_refused_before_it_comes() -> None:
    async with routed(FakeWorker(), body_max_bytes=2048) as client, connected(client.url) as raw:
        await raw.send(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\nexpect: 100-continue\r\n\r\n"
        )
        refused = await raw.answer()
        assert (refused.status, refused.code) == (413, "body_too_large")


@pytest.mark.parametrize("stream", [False, True])
def test_old_clients_get_a_close(stream: bool) -> None:
    @in_loop
    async def run() -> None:
        worker = FakeWorker()
        async with routed(worker) as client, connected(client.url) as raw:
            await raw.send(post(body(stream=stream), version="1.0"))
            answer = await raw.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            if stream:
                assert answer.body.endswith(DONE)
            assert await raw.closed()

    run()


@in_loop
async def test_a_client_may_ask_to_close() -> None:
    async with routed(FakeWorker()) as client, connected(client.url) as raw:
        await raw.send(post(body(), "Connection: close"))
        answer = await raw.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await raw.closed()


@in_loop
async def test_errors_have_one_form_and_the_clients_id() -> None:
    async with routed(FakeWorker()) as client, connected(client.url) as raw:
        for request, status in (
            (post(b"{", "x-request-id: mine"), 400),
            (post(body(), "x-request-id: mine", "content-encoding: gzip"), 400),
            (post(json.dumps({"model": "none", "prompt": "p"}).encode(), "x-request-id: mine"), 404),
            (post(b"", "x-request-id: mine"), 400),
        ):
            await raw.send(request)
            answer = await raw.answer()
            assert answer.status == status
            assert answer.code or status == 400
            assert answer.headers["x-request-id"] == "mine"
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["server"] == "trieway-router"
            assert "date" in answer.headers
        await works(client, raw)


@in_loop
async def test_other_paths_methods_and_spellings_reach_their_place() -> None:
    worker = FakeWorker()
    async with routed(worker) as client, connected(client.url) as raw:
        for line, status in (
            (b"GET /v1/completions", 405),
            (b"GET /livez", 200),
            (b"PUT /v1/completions", 405),
            (b"GET /nothing", 404),
        ):
            await raw.send(line + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            assert (await raw.answer()).status == status
        await raw.send(post(body(), path="/v1/%63ompletions"))
        assert (await raw.answer()).status == 200
        await raw.send(post(body(), "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAA"))
        assert (await raw.answer()).status == 200
        await works(client, raw)


@pytest.mark.parametrize("cut_at", [30, 90, -1])
def test_a_client_that_leaves_amid_its_request_leaves_nothing(cut_at: int) -> None:
    @in_loop
    async def run() -> None:
        worker = FakeWorker()
        async with routed(worker) as client:
            async with connected(client.url) as raw:
                await raw.send(post(body("x" * 100))[:cut_at])
            async with connected(client.url) as raw:
                await works(client, raw)
        assert len(worker.completions()) == 1

    run()


@in_loop
async def test_garbage_behind_a_request_closes_and_frees() -> None:
    worker = FakeWorker()
    worker.answer = hangs
    async with routed(worker) as client, connected(client.url) as raw:
        await raw.send(post(body()))
        await until(worker.completions)
        await raw.send(b"\x00\x01 no HTTP\r\n\r\n")
        refused = await raw.answer()
        assert (refused.status, refused.code) == (400, "invalid_http")
        assert await raw.closed()
        await until(lambda: client.booked() == 0)


@in_loop
async def test_a_slow_client_makes_the_worker_wait_and_loses_nothing() -> None:
    """32 MB for a client that does not read: neither side's buffers may grow with them."""
    event = b"data: " + b"x" * 65_528 + b"\n\n"
    sent = [0]

    async def floods(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(1, 0))
        for _ in range(512):
            await wire.chunk(event)
            sent[0] += 1
        await wire.chunk(DONE)
        await wire.end()

    worker = FakeWorker()
    worker.answer = floods
    async with routed(worker) as client, connected(client.url) as raw:
        await raw.send(post(body(stream=True)))
        assert (await raw.head())[0] == 200
        before = -1
        while before != sent[0]:
            before = sent[0]
            await asyncio.sleep(0.2)
        assert 0 < sent[0] < 400, "the worker waits while the client does not read"
        size = 0
        while data := await asyncio.wait_for(raw.reader.read(1 << 20), 10):
            size += len(data)
            if data.endswith(b"0\r\n\r\n"):
                break
        assert size > 512 * len(event)
        assert sent[0] == 512
        await works_after(client, worker, raw)


async def works_after(client: Client, worker: FakeWorker, raw: RawClient) -> None:
    worker.answer = well
    await until(lambda: client.booked() == 0)
    await works(client, raw)


@in_loop
async def test_a_client_that_stops_reading_and_leaves_frees_everything() -> None:
    async def floods(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(1, 0))
        while True:
            await wire.chunk(EVENT % 0 * 2000)

    worker = FakeWorker()
    worker.answer = floods
    async with routed(worker) as client:
        async with connected(client.url) as raw:
            await raw.send(post(body(stream=True)))
            await raw.head()
            await asyncio.sleep(0.3)
            assert client.booked() == 1
        await until(lambda: client.booked() == 0)
        await until(lambda: worker.waiting == 0)
        assert client.router.core.workers(time.monotonic())[0].errors == 0


@in_loop
async def test_events_that_have_arrived_go_on_together() -> None:
    async def bursts(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(1, 0))
        await wire.chunk(EVENT % 0)
        await asyncio.sleep(0.05)
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(EVENT % at), EVENT % at) for at in range(1, 9))
        await wire.raw(pieces)
        await asyncio.sleep(0.05)
        await wire.chunk(DONE)
        await wire.end()

    worker = FakeWorker()
    worker.answer = bursts
    async with routed(worker) as client, connected(client.url) as raw:
        await raw.send(post(body(stream=True)))
        status, headers = await raw.head()
        sizes = []
        while size := int((await raw.reader.readline()).strip(), 16):
            sizes.append(size)
            await raw.reader.readexactly(size + 2)
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
    assert sizes == [len(EVENT % 0), sum(len(EVENT % at) for at in range(1, 9)), len(DONE)]


@in_loop
async def test_a_stream_under_way_ends_with_an_event_when_the_router_stops() -> None:
    async def stalls(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(1, 0))
        await wire.chunk(EVENT % 0)
        await wire.chunk(EVENT % 1)
        await wire.gone()

    worker = FakeWorker()
    worker.answer = stalls
    async with routed(worker, drain_timeout_s=0.2) as client:
        raw_context = connected(client.url)
        raw = await raw_context.__aenter__()
        await raw.send(post(body(stream=True)))
        await raw.reader.readuntil(b"word 1")
        client.server.should_exit = True
        rest = await asyncio.wait_for(raw.reader.read(), 10)
        await raw_context.__aexit__(None, None, None)
    assert b"event: error" in rest
    assert b'"code":"stopping"' in rest
