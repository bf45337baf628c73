"""A router and a worker, both real, and what a collector makes of their requests: one trace each, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.router.fakes import FakeWorker, cuts_before
from tests.router.harness import Client, in_loop, routed, until
from tests.tracing.collector import Collector, Got, collecting
from tests.worker.fakes import encode
from tests.worker.harness import Worker, running
from tests.worker.raw import raw_post
from trieway.serving.config import RouterConfig, WorkerConfig
from trieway.serving.otlp import tracing

TEXT = "/v1/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER, CLIENT = 2, 3


@contextmanager
def traced_worker(collector: Collector, **changes: Any) -> Iterator[Worker]:
    """A worker that exports."""
    config = WorkerConfig(otlp_endpoint=collector.url)
    with tracing(config, "worker") as tracer, running(tracer=tracer, **changes) as worker:
        yield worker


def behind(worker: Worker) -> FakeWorker:
    """A worker that runs already, as the router's harness wants it."""

    async def kill() -> None:
        pass

    stands = SimpleNamespace(
        url=worker.url, id=worker.url.removeprefix("http://"), http=SimpleNamespace(port=1), kill=kill
    )
    return cast(FakeWorker, stands)


@asynccontextmanager
async def traced(collector: Collector, *workers: FakeWorker, **settings: Any) -> AsyncIterator[Client]:
    """A router that exports. Leaving it flushes what it has."""
    with tracing(RouterConfig(otlp_endpoint=collector.url), "router") as tracer:
        async with routed(*workers, tracer=tracer, **settings) as client:
            yield client


def tree(spans: list[Got]) -> dict[str, list[Got]]:
    """By name. Every span but one has its parent among them, begins after it, and ends after it began."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    assert len([span for span in spans if span.parent_id not in by_id]) == 1
    found: dict[str, list[Got]] = {}
    for span in spans:
        assert span.began <= span.ended
        parent = by_id.get(span.parent_id)
        if parent is not None:
            assert parent.began <= span.began
            if parent.service == span.service:
                assert span.ended <= parent.ended
        found.setdefault(f"{span.service} {span.name}", []).append(span)
    return found


@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_one_request_is_one_trace(stream: bool) -> None:
    with collecting() as collector:
        with traced_worker(collector) as worker:
            async with traced(collector, behind(worker)) as client:
                reply = await client.post(
                    TEXT,
                    {"model": "tiny", "prompt": "say:prompt-hidden|", "user": "user-hidden", "stream": stream},
                    headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"},
                )
        spans = collector.trace(TRACE, 7)
    assert reply.status == 200
    assert reply.headers["x-trieway-trace-id"] == TRACE
    assert len(spans) == 7
    assert {span.trace_id for span in collector.spans} == {TRACE}
    found = tree(spans)
    (root,), (decide,), (attempt,) = (found[f"trieway-router {name}"] for name in (f"POST {TEXT}", "decide", "attempt"))
    (work,), (queue,), (prefill,), (decode,) = (
        found[f"trieway-worker {name}"] for name in (f"POST {TEXT}", "queue", "prefill", "decode")
    )
    assert root.parent_id == PARENT
    assert decide.parent_id == attempt.parent_id == root.span_id
    assert work.parent_id == attempt.span_id
    assert queue.parent_id == prefill.parent_id == decode.parent_id == work.span_id
    assert [span.kind for span in (root, attempt, work)] == [SERVER, CLIENT, SERVER]
    assert {span.state for span in spans} == {"vendor=1"}
    edges = [
        root.began,
        decide.ended,
        attempt.began,
        work.began,
        queue.began,
        prefill.began,
        decode.began,
        decode.ended,
    ]
    assert edges == sorted(edges)
    assert decode.ended <= attempt.ended <= root.ended
    assert (
        attempt.attributes["trieway.worker"] == decide.attributes["trieway.worker"] == reply.headers["x-trieway-worker"]
    )
    assert work.attributes["trieway.prompt_tokens"] == len(encode("say:prompt-hidden|"))
    assert root.attributes["trieway.request_id"] == work.attributes["trieway.request_id"]
    assert root.attributes["trieway.request_id"] == reply.headers["x-request-id"]
    assert not any(span.failed for span in spans)
    assert b"hidden" not in collector.raw


@in_loop
async def test_a_dead_worker_shows_as_two_attempts() -> None:
    dying = FakeWorker(model="tiny")
    dying.answer = cuts_before
    with collecting() as collector:
        with traced_worker(collector) as worker:
            async with traced(collector, dying, behind(worker), policy="round_robin") as client:
                replies = [await client.post(TEXT, {"model": "tiny", "prompt": f"say:{n}|"}) for n in range(2)]
        retried = next(reply for reply in replies if reply.attempts == 2)
        spans = collector.trace(retried.headers["x-trieway-trace-id"], 9)
    found = tree(spans)
    first, second = sorted(found["trieway-router attempt"], key=lambda span: span.began)
    assert len(found["trieway-router decide"]) == 2
    assert (first.failed, second.failed) == (True, False)
    assert (first.attributes["trieway.worker"], first.attributes["error.type"]) == (dying.id, "broken")
    assert first.ended <= second.began
    assert found[f"trieway-worker POST {TEXT}"][0].parent_id == second.span_id
    assert not found[f"trieway-router POST {TEXT}"][0].failed


@in_loop
async def test_a_failure_marks_the_spans_of_both() -> None:
    with collecting() as collector:
        with traced_worker(collector) as worker:
            worker.runner.fault = lambda work: RuntimeError("text-hidden")
            async with traced(collector, behind(worker)) as client:
                reply = await client.post(TEXT, {"model": "tiny", "prompt": "say:x|"})
            worker.runner.fault = lambda work: None
        spans = collector.trace(reply.headers["x-trieway-trace-id"], 5)
    assert reply.status == 500
    assert {f"{span.service} {span.name}" for span in spans if span.failed} == {
        f"trieway-router POST {TEXT}",
        "trieway-router attempt",
        f"trieway-worker POST {TEXT}",
    }
    assert b"hidden" not in collector.raw


@in_loop
async def test_a_hang_up_ends_the_spans_of_both() -> None:
    with collecting() as collector:
        with traced_worker(collector) as worker:
            async with traced(collector, behind(worker)) as client:
                worker.runner.gate.clear()
                body = {"model": "tiny", "prompt": "say:abc|", "stream": True}
                with raw_post(client.url, TEXT, body, traceparent=f"00-{TRACE}-{PARENT}-01") as answer:
                    await until(lambda: worker.built.service.engine.open_samples == 1)
                    answer.hang_up()
                    await until(lambda: worker.built.service.engine.open_samples == 0)
                worker.runner.gate.set()
        spans = collector.trace(TRACE, 5)
    found = tree(spans)
    for name in (f"trieway-router POST {TEXT}", f"trieway-worker POST {TEXT}"):
        assert found[name][0].attributes["http.response.status_code"] == 499
    assert found["trieway-router attempt"][0].attributes["trieway.outcome"] == "cancelled"
    assert len(found["trieway-worker queue"]) == 1
    assert not any(span.failed for span in spans)


@in_loop
async def test_a_share_of_requests_is_traced_by_both_or_by_neither() -> None:
    count = 120
    with collecting() as collector:
        router = RouterConfig(otlp_endpoint=collector.url, trace_sample_ratio=0.3)
        with tracing(router, "router") as tracer, traced_worker(collector) as worker:
            async with routed(behind(worker), tracer=tracer) as client:
                replies = []
                for begin in range(0, count, 8):
                    bodies = [{"model": "tiny", "prompt": f"say:{begin + n}|"} for n in range(8)]
                    replies += await asyncio.gather(*(client.post(TEXT, body) for body in bodies))
    assert {reply.status for reply in replies} == {200}
    told = {reply.headers["x-trieway-trace-id"] for reply in replies if "x-trieway-trace-id" in reply.headers}
    assert 0.1 * count < len(told) < 0.5 * count
    assert {span.trace_id for span in collector.spans} == told
    assert len(collector.spans) == 7 * len(told), "an unsampled request starts no trace of its own at the worker"
