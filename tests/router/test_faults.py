"""Faults of workers and hang-ups of clients: what the client sees, who is tried next, and that nothing stays booked."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

from tests.router.fakes import (
    DONE,
    EVENT,
    MODEL,
    Answer,
    FakeWorker,
    ForeignServer,
    answers,
    cuts_after_head,
    cuts_before,
    cuts_midway,
    hangs,
    well,
)
from tests.router.harness import Client, in_loop, routed, until
from tests.router.wire import Seen, Wire

pytestmark = pytest.mark.usefixtures("both_planes")


def faulty(fault: Answer) -> tuple[FakeWorker, FakeWorker]:
    """Two workers; whichever is asked first shows the fault, once."""
    left = [True]

    async def answer(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        if left:
            left.clear()
            await fault(worker, seen, wire)
        else:
            await well(worker, seen, wire)

    pair = FakeWorker(), FakeWorker()
    for worker in pair:
        worker.answer = answer
    return pair


RETRIED: list[Answer] = [cuts_before, cuts_after_head, answers(503), answers(502), answers(429), answers(999)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", RETRIED, ids=["cut", "cut after head", "503", "502", "429", "no status"])
def test_before_the_first_byte_another_worker_is_tried(fault: Answer, stream: bool) -> None:
    @in_loop
    async def run() -> None:
        pair = faulty(fault)
        async with routed(*pair) as client:
            reply = await client.complete("p" * 100, stream=stream)
            rows = client.router.core.workers(time.monotonic())
        assert reply.status == 200
        assert reply.attempts == 2
        assert all(len(worker.completions()) == 1 for worker in pair)
        assert pair[0].completions()[0].body == pair[1].completions()[0].body
        assert all(row.breaker == "closed" for row in rows)

    run()


@in_loop
async def test_an_answer_that_is_not_streamed_may_break_anywhere() -> None:
    async with routed(*faulty(cuts_midway)) as client:
        reply = await client.complete()
    assert (reply.status, reply.attempts) == (200, 2)


@in_loop
async def test_an_answer_too_long_to_hold_that_breaks_does_not_look_whole() -> None:
    async def long(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin({"content-type": "application/json"})
        for _ in range(3):
            await wire.chunk(b"x" * 50_000)
            await asyncio.sleep(0.02)
        wire.cut()

    worker = FakeWorker()
    worker.answer = long
    async with routed(worker, response_max_bytes=65536) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.complete()
        assert client.router.core.workers(time.monotonic())[0].errors == 1


@in_loop
async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    worker = FakeWorker()
    worker.answer = cuts_midway
    async with routed(worker) as client:
        reply = await client.complete(stream=True)
        assert client.router.core.workers(time.monotonic())[0].errors == 1
    whole, _, last = reply.body.partition(b"event: error\n")
    assert whole == EVENT % 0, "the torn line is gone"
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["type"] == "upstream_error"
    assert DONE not in reply.body


@in_loop
async def test_a_close_delimited_stream_without_its_last_event_is_cut() -> None:
    async def old_style(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        await wire.raw(head + EVENT % 0 + (DONE if b"whole" in seen.body else b""))
        wire.finish()

    worker = FakeWorker()
    worker.answer = old_style
    async with routed(worker) as client:
        cut = await client.complete("cut", stream=True)
        whole = await client.complete("whole", stream=True)
    assert b"event: error" in cut.body
    assert whole.body == EVENT % 0 + DONE


@in_loop
async def test_when_all_fail_the_last_word_is_the_workers_own() -> None:
    pair = FakeWorker(), FakeWorker()
    for worker in pair:
        worker.answer = answers(429, {"retry-after": "7"})
    async with routed(*pair) as client:
        busy = await client.complete()
        for worker in pair:
            worker.answer = cuts_before
        broken = await client.complete()
    assert (busy.status, busy.attempts, busy.headers["retry-after"]) == (429, 2, "7")
    assert busy.error["message"] == "answered 429"
    assert (broken.status, broken.attempts) == (502, 2)
    assert broken.error["type"] == "upstream_error"


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500])
def test_other_statuses_go_to_the_client_as_they_are(status: int) -> None:
    @in_loop
    async def run() -> None:
        pair = FakeWorker(), FakeWorker()
        for worker in pair:
            worker.answer = answers(status)
        async with routed(*pair) as client:
            for _ in range(4):
                reply = await client.complete()
                assert (reply.status, reply.attempts) == (status, 1)
                assert reply.error["message"] == f"answered {status}"
            errors = [row.errors for row in client.router.core.workers(time.monotonic())]
        assert (sum(errors) > 0) == (status == 500), "a client's mistake is no error of a worker"

    run()


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_says_nothing_times_out(stream: bool) -> None:
    @in_loop
    async def run() -> None:
        pair = FakeWorker(), FakeWorker()
        for worker in pair:
            worker.answer = hangs
        async with routed(*pair, first_byte_timeout_s=0.2) as client:
            reply = await client.complete(stream=stream)
            await until(lambda: not any(worker.waiting for worker in pair))
        assert reply.status == 504
        assert reply.error["type"] == "timeout_error"
        assert sum(len(worker.completions()) for worker in pair) == 1

    run()


@in_loop
async def test_a_stream_that_stalls_ends_with_an_error_event() -> None:
    async def stalls(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(1, 0))
        await wire.chunk(EVENT % 0)
        await asyncio.sleep(0.15)
        await wire.chunk(EVENT % 1)
        await wire.gone()

    worker = FakeWorker()
    worker.answer = stalls
    async with routed(worker, idle_timeout_s=0.3, first_byte_timeout_s=5.0) as client:
        started = time.monotonic()
        reply = await client.complete(stream=True)
    assert 0.4 < time.monotonic() - started < 2.0, "each byte gives new time"
    assert reply.body.startswith(EVENT % 0 + EVENT % 1 + b"event: error")
    assert b"timeout" in reply.body


@in_loop
async def test_a_long_stream_has_an_end() -> None:
    async def endless(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(1, 0))
        while True:
            await wire.chunk(EVENT % 0)
            await asyncio.sleep(0.02)

    worker = FakeWorker()
    worker.answer = endless
    async with routed(worker, total_timeout_s=0.5) as client:
        reply = await client.complete(stream=True)
        await until(lambda: not worker.waiting)
    assert b"event: error" in reply.body


@in_loop
async def test_nobody_listens() -> None:
    worker, other = FakeWorker(), FakeWorker()
    async with routed(worker, other) as client:
        await worker.kill()
        replies = [await client.complete(f"{index}" * 200) for index in range(10)]
        assert {reply.status for reply in replies} == {200}
        assert {reply.worker for reply in replies} == {other.id}
        await other.kill()
        await until(lambda: all(link.state == "away" for link in client.router.links))
        reply = await client.complete()
        assert (reply.status, reply.error["code"]) == (503, "no_worker")
        assert "Retry-After" in reply.headers


@in_loop
async def test_kill_under_load_fails_nothing_that_is_not_streamed() -> None:
    async def slow(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(0.03)
        await well(worker, seen, wire)

    pair = FakeWorker(events=20), FakeWorker(events=20)
    for worker in pair:
        worker.answer = slow
    async with routed(*pair) as client:
        gate = asyncio.Semaphore(16)

        async def one(index: int) -> tuple[bool, int, bytes]:
            async with gate:
                if index == 60:
                    await pair[0].kill()
                reply = await client.complete(f"{index} " * 50, stream=index % 2 == 1)
                return index % 2 == 1, reply.status, reply.body

        ended = await asyncio.gather(*(one(index) for index in range(200)))
    assert all(status == 200 for _, status, _ in ended)
    assert all(body.endswith(DONE) or b"event: error" in body for streamed, _, body in ended if streamed)


async def hang_up(client: Client, worker: FakeWorker, body: dict[str, object], *, after: bytes | None) -> None:
    """Sends a request, hangs up while waiting for its head (`after` None) or once these bytes came."""
    url = aiohttp.client.URL(client.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    writer.write(head + data)
    if after is None:
        await until(lambda: worker.waiting)
    else:
        await reader.readuntil(after)
    assert client.booked() == 1
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_while_waiting_frees_everything(stream: bool) -> None:
    @in_loop
    async def run() -> None:
        worker = FakeWorker()
        worker.answer = hangs
        async with routed(worker) as client:
            await hang_up(client, worker, {"model": MODEL, "prompt": "p", "stream": stream}, after=None)
            await until(lambda: client.booked() == 0)
            await until(lambda: worker.waiting == 0)
            assert client.router.core.workers(time.monotonic())[0].errors == 0
            worker.answer = well
            assert (await client.complete()).status == 200
            metrics = (await client.get("/metrics"))[1].decode()
        assert 'trieway_router_requests_total{code="499"' in metrics

    run()


@in_loop
async def test_a_client_that_hangs_up_in_a_stream_frees_everything() -> None:
    async def endless(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(1, 0))
        while True:
            await wire.chunk(EVENT % 0)
            await asyncio.sleep(0.005)

    worker = FakeWorker()
    worker.answer = endless
    async with routed(worker) as client:
        await hang_up(client, worker, {"model": MODEL, "prompt": "p", "stream": True}, after=b"word 0")
        await until(lambda: client.booked() == 0)
        await until(lambda: worker.waiting == 0)
        assert client.router.core.workers(time.monotonic())[0].errors == 0


@in_loop
async def test_many_hang_ups_leave_nothing_booked() -> None:
    worker, other = FakeWorker(), FakeWorker()
    for each in (worker, other):
        each.answer = hangs
    async with routed(worker, other) as client:
        tasks = [asyncio.ensure_future(client.complete(f"{index}" * 99)) for index in range(50)]
        await until(lambda: client.booked() == 50)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: client.booked() == 0)
        assert client.router.dispatcher.running == 0


@in_loop
async def test_a_stale_connection_is_no_error() -> None:
    """A server closes an idle connection just as the router writes to it."""
    answered = [0]

    async def once_per_connection(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        answered[0] += 1
        if answered[0] == 2:
            wire.cut()
        else:
            await well(worker, seen, wire)

    worker = FakeWorker()
    worker.answer = once_per_connection
    async with routed(worker) as client:
        await client.complete()
        reply = await client.complete()
        assert (reply.status, reply.attempts) == (200, 1)
        assert client.router.core.workers(time.monotonic())[0].errors == 0


@in_loop
async def test_garbage_for_an_answer_is_a_broken_worker() -> None:
    async def garbage(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.raw(b"\x00\x01 this is no HTTP\r\n\r\n")
        wire.cut()

    async with routed(*faulty(garbage)) as client:
        reply = await client.complete()
    assert (reply.status, reply.attempts) == (200, 2)


@in_loop
async def test_a_redirect_is_not_followed() -> None:
    worker, elsewhere = FakeWorker(), ForeignServer()
    async with routed(worker, elsewhere) as client:
        worker.answer = answers(307, {"location": elsewhere.url + "/v1/completions"})
        async with client.http.post(
            client.url + "/v1/completions", json={"model": MODEL, "prompt": "p"}, allow_redirects=False
        ) as response:
            assert response.status == 307
        assert elsewhere.completions() == []


@in_loop
async def test_full_queues_say_when_to_come_back() -> None:
    worker = FakeWorker()
    worker.answer = hangs
    async with routed(worker, worker_requests_max=2) as client:
        tasks = [asyncio.ensure_future(client.complete(f"{index}")) for index in range(2)]
        await until(lambda: client.booked() == 2)
        reply = await client.complete()
        assert reply.status == 429
        assert int(reply.headers["Retry-After"]) >= 1
        assert reply.error["type"] == "rate_limit_error"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
async def test_the_router_carries_so_many_and_no_more() -> None:
    worker = FakeWorker()
    worker.answer = hangs
    async with routed(worker, requests_max=3) as client:
        tasks = [asyncio.ensure_future(client.complete(f"{index}")) for index in range(3)]
        await until(lambda: client.booked() == 3)
        assert (await client.complete()).status == 429
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
