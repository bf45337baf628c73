"""What goes through untouched: bodies, answers, streams; and what does not: hop-by-hop headers and credentials."""

from __future__ import annotations

import json

import pytest

from tests.router.fakes import DONE, EVENT, MODEL, FakeWorker, ForeignServer, answers
from tests.router.harness import in_loop, routed, until
from tests.router.wire import Seen, Wire
from trieway.serving.auth import KeyRing

pytestmark = pytest.mark.usefixtures("both_planes")


@in_loop
async def test_a_body_goes_on_byte_for_byte_and_the_answer_comes_back_as_it_is() -> None:
    answer = b'{ "odd" :  [1.0, 1e5, "\\u00e9\xc3\xa9"]  }\n'

    async def odd(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.send(201, answer, {"x-odd": "a, b", "content-type": "application/json; charset=x"})

    worker = FakeWorker()
    worker.answer = odd
    body = b'{ "unknown_field": {"b":1,"a":[ ]},"model":"fake-model" ,"prompt":"\\u0041\xc3\xa9", "temperature":0.10}'
    async with routed(worker) as client:
        reply = await client.post("/v1/completions?api-version=1", body)
    assert worker.completions()[0].body == body
    assert worker.completions()[0].target == "/v1/completions?api-version=1"
    assert (reply.status, reply.body) == (201, answer)
    assert reply.headers["x-odd"] == "a, b"
    assert reply.headers["Content-Type"] == "application/json; charset=x"
    assert reply.headers["server"] == "trieway-router"


@in_loop
async def test_a_stream_comes_through_as_its_events_come() -> None:
    worker = FakeWorker()
    go = []

    async def paced(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.begin(worker.receipt(10, 0))
        await wire.chunk(EVENT % 0)
        await until(lambda: go)
        await wire.chunk(EVENT % 1)
        await wire.chunk(DONE)
        await wire.end()

    worker.answer = paced
    async with routed(worker) as client:
        body = json.dumps({"model": MODEL, "prompt": "p", "stream": True})
        async with client.http.post(client.url + "/v1/completions", data=body) as response:
            assert response.content_type == "text/event-stream"
            assert await response.content.readany() == EVENT % 0, "the first event does not wait for the second"
            go.append(True)
            assert await response.content.read() == EVENT % 1 + DONE


@in_loop
async def test_every_answer_says_where_it_comes_from() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        first = await client.complete("x" * 640)
        await until(lambda: client.router.core.workers(0.0)[0].number == 1)
        second = await client.complete("x" * 640, stream=True)
    assert first.worker == second.worker == worker.id
    assert first.attempts == 1
    assert first.headers["x-trieway-cached-tokens"] == "0"
    assert first.headers["x-trieway-predicted-tokens"] == "0"
    assert second.headers["x-trieway-cached-tokens"] == "159"
    assert second.headers["x-trieway-predicted-tokens"] == "159"
    assert "x-trieway-receipt" not in first.headers


@in_loop
async def test_request_ids_are_echoed_and_passed_on() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        reply = await client.complete(headers=None)
        given = await client.post(
            "/v1/completions",
            {"model": MODEL, "prompt": "p"},
            headers={"x-request-id": "mine-1", "traceparent": trace},
        )
        bad = await client.post("/v1/completions", b"{", headers={"x-request-id": "mine-2"})
    seen = worker.completions()
    assert reply.headers["x-request-id"] == seen[0].header("x-request-id")
    assert given.headers["x-request-id"] == seen[1].header("x-request-id") == "mine-1"
    assert seen[1].header("traceparent") == trace
    assert bad.headers["x-request-id"] == "mine-2"


@in_loop
async def test_hop_by_hop_headers_stop_at_the_router() -> None:
    worker = FakeWorker()
    worker.answer = answers(200, {"connection": "x-secret-hop, close", "x-secret-hop": "1", "keep-alive": "timeout=5"})
    sent = {"connection": "x-mine", "x-mine": "1", "te": "trailers", "proxy-authorization": "p", "x-kept": "yes"}
    async with routed(worker) as client:
        reply = await client.post("/v1/completions", {"model": MODEL, "prompt": "p"}, headers=sent)
    seen = worker.completions()[0]
    assert [seen.header(name) for name in ("x-mine", "te", "proxy-authorization", "keep-alive")] == [None] * 4
    assert seen.header("x-kept") == "yes"
    assert not {"x-secret-hop", "keep-alive"} & {name.lower() for name in reply.headers}


@in_loop
async def test_a_client_cannot_speak_for_the_router() -> None:
    worker, foreign = FakeWorker(), ForeignServer()
    forged = {
        "x-trieway-fleet": "forged",
        "x-trieway-tenant": "victim",
        "x-trieway-render-time": "1",
        "x-trieway-receipt": "prompt=1",
    }
    async with routed(worker, foreign) as client:
        await client.post("/v1/completions", {"model": MODEL, "prompt": "p"}, headers=forged)
        await client.post("/v1/completions", {"model": "foreign-model", "prompt": "p"}, headers=forged)
    seen = worker.completions()[0]
    assert seen.header("x-trieway-fleet") == worker.key.feed_token
    assert seen.header("x-trieway-tenant") is None
    assert seen.header("x-trieway-render-time") is None
    assert not [name for name, _ in foreign.completions()[0].headers if name.startswith("x-trieway")]


@pytest.mark.parametrize("keyed", [False, True])
def test_credentials_go_where_they_may(keyed: bool) -> None:
    @in_loop
    async def run() -> None:
        worker, foreign = FakeWorker(), ForeignServer()
        ring = KeyRing({"sesame": "acme"}) if keyed else KeyRing()
        headers = {"authorization": "Bearer sesame", "cookie": "c=1", "x-tenant-id": "asked-for"}
        async with routed(worker, foreign, ring=ring) as client:
            for model in (MODEL, "foreign-model"):
                reply = await client.post("/v1/completions", {"model": model, "prompt": "p"}, headers=headers)
                assert reply.status == 200
        ours, theirs = worker.completions()[0], foreign.completions()[0]
        assert ours.header("authorization") is None
        assert ours.header("cookie") is None
        assert ours.header("x-trieway-tenant") == ("acme" if keyed else "asked-for")
        assert theirs.header("authorization") == (None if keyed else "Bearer sesame")
        assert "sesame" not in repr(foreign.http.seen) or not keyed
        assert worker.key.feed_token not in repr(foreign.http.seen)

    run()


@in_loop
async def test_compressed_answers_are_not_touched() -> None:
    packed = b"\x1f\x8b not really gzip"
    worker = FakeWorker()

    async def zipped(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.send(200, packed, {"content-encoding": "gzip"})

    worker.answer = zipped
    async with routed(worker) as client:
        reply = await client.post("/v1/completions", {"model": MODEL, "prompt": "p"})
    assert reply.body == packed
    assert reply.headers["content-encoding"] == "gzip"


@in_loop
async def test_large_bodies_and_answers_pass_whole() -> None:
    worker = FakeWorker()
    answer = b'"' + b"a" * 3_000_000 + b'"'

    async def long(worker: FakeWorker, seen: Seen, wire: Wire) -> None:
        await wire.send(200, answer)

    worker.answer = long
    async with routed(worker, response_max_bytes=65536) as client:
        prompt = "b" * 5_000_000
        reply = await client.complete(prompt)
    assert reply.body == answer
    assert json.loads(worker.completions()[0].body)["prompt"] == prompt


@in_loop
async def test_a_clock_reading_template_gets_its_time() -> None:
    from tests.router.fakes import CLOCK_TEMPLATE

    worker = FakeWorker(template=CLOCK_TEMPLATE)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "y" * 640}]}
    async with routed(worker) as client:
        await client.post("/v1/chat/completions", chat)
        await until(lambda: client.router.core.workers(0.0)[0].number == 1)
        reply = await client.post("/v1/chat/completions", chat)
    assert worker.completions()[0].header("x-trieway-render-time") is not None
    assert reply.headers["x-trieway-predicted-tokens"] == reply.headers["x-trieway-cached-tokens"] != "0"
