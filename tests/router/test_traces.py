"""What a router records of its requests, and what it tells workers and clients of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.router.fakes import MODEL, FakeWorker, answers, cuts_before, cuts_midway, hangs, well
from tests.router.harness import in_loop, routed, until
from trieway.serving.auth import KeyRing
from trieway.serving.trace_context import context_of
from trieway.serving.tracing import Finished, Kind, Sampling, Span, Tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

pytestmark = pytest.mark.usefixtures("both_planes")


class Record:
    """A sink that keeps what it is given."""

    def __init__(self, sampling: Sampling | None = None) -> None:
        self.traces: list[Finished] = []
        self.tracer = Tracer(self.traces.append, sampling)

    @property
    def one(self) -> Finished:
        (trace,) = self.traces
        return trace


def spans(trace: Finished) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in trace.spans:
        assert span.ended is not None
        assert span.began <= span.ended
        found.setdefault(span.name, []).append(span)
    return found


def caller(flags: str = "01", **more: str) -> dict[str, Any]:
    return {"headers": {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", **more}}


def told(worker: FakeWorker, index: int = 0) -> tuple[int, int, int]:
    """(trace, span, flags) that the worker was told."""
    raw = [(name.encode(), value.encode()) for name, value in worker.completions()[index].headers]
    context = context_of(raw)
    assert context is not None
    return context.trace_id, context.span_id, context.flags


@in_loop
async def test_a_request_is_a_decision_and_an_attempt_below_its_callers_span() -> None:
    worker, record = FakeWorker(), Record()
    async with routed(worker, tracer=record.tracer) as client:
        await client.complete("x" * 640)
        await until(lambda: client.router.core.workers(0.0)[0].number == 1)
        record.traces.clear()
        body = {"model": MODEL, "prompt": "x" * 640}
        reply = await client.post(
            "/v1/completions", body, **caller(tracestate="vendor=1,other=a:b", **{"x-request-id": "mine-1"})
        )
        await until(lambda: record.traces)
    trace = record.one
    assert f"{trace.trace_id:032x}" == reply.headers["x-trieway-trace-id"] == TRACE
    assert f"{trace.remote_parent_id:016x}" == PARENT
    root, decision, attempt = trace.spans
    assert [span.name for span in trace.spans] == ["POST /v1/completions", "decide", "attempt"]
    assert [span.kind for span in trace.spans] == [Kind.SERVER, Kind.INTERNAL, Kind.CLIENT]
    assert decision.parent_id == attempt.parent_id == root.span_id
    assert root.parent_id == trace.remote_parent_id
    assert root.began == decision.began <= decision.ended <= attempt.began <= attempt.ended <= root.ended
    assert told(worker, 1) == (trace.trace_id, attempt.span_id, 1)
    assert worker.completions()[1].header("tracestate") == "vendor=1,other=a:b"
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "trieway.request_id": "mine-1",
        "gen_ai.request.model": MODEL,
        "trieway.attempts": 1,
        "http.response.status_code": 200,
    }
    assert decision.attributes == {
        "trieway.attempt": 1,
        "trieway.worker": worker.id,
        "trieway.reason": "only",
        "trieway.candidates": 1,
        "trieway.prompt_tokens": 160,
        "trieway.predicted_tokens": 159,
        "trieway.available_tokens": 159,
        "trieway.predicted_ttft_ms": decision.attributes["trieway.predicted_ttft_ms"],
    }
    assert attempt.attributes.pop("trieway.first_byte_ms") > 0
    assert attempt.attributes == {
        "trieway.worker": worker.id,
        "trieway.attempt": 1,
        "http.response.status_code": 200,
        "trieway.cached_tokens": 159,
        "trieway.outcome": "ok",
    }
    assert not any(span.error for span in trace.spans)


@in_loop
async def test_a_retry_is_a_second_attempt() -> None:
    dying, living, record = FakeWorker(), FakeWorker(), Record()
    dying.answer = cuts_before
    async with routed(dying, living, tracer=record.tracer, policy="round_robin") as client:
        replies = [await client.complete(f"p{index}") for index in range(2)]
        await until(lambda: len(record.traces) == 2)
    assert {reply.status for reply in replies} == {200}
    trace = next(trace for trace in record.traces if len(trace.spans) == 5)  # whoever was registered first was asked
    root, first_choice, first, second_choice, second = trace.spans
    assert [span.name for span in trace.spans[1:]] == ["decide", "attempt"] * 2
    assert [span.attributes["trieway.attempt"] for span in trace.spans[1:]] == [1, 1, 2, 2]
    assert [span.attributes["trieway.worker"] for span in (first, second)] == [dying.id, living.id]
    assert (first.error, first.attributes["trieway.outcome"]) == ("broken", "worker_error")
    assert (second.error, second.attributes["trieway.outcome"]) == ("", "ok")
    assert first_choice.attributes["trieway.candidates"] == 2
    assert second_choice.began == first.ended <= second.began
    assert not root.error
    assert root.attributes["trieway.attempts"] == 2
    assert told(dying)[1] == first.span_id
    assert second.span_id in {told(living, index)[1] for index in range(2)}


@in_loop
async def test_a_refusal_everywhere_marks_attempts_and_the_request() -> None:
    worker, record = FakeWorker(), Record()
    worker.answer = answers(503)
    async with routed(worker, tracer=record.tracer) as client:
        reply = await client.complete()
        await until(lambda: record.traces)
    found = spans(record.one)
    assert reply.status == 503
    assert reply.headers["x-trieway-trace-id"] == f"{record.one.trace_id:032x}"
    assert found["POST /v1/completions"][0].error == "503"
    assert found["attempt"][0].error == "503"
    assert found["attempt"][0].attributes["trieway.outcome"] == "worker_error"
    assert found["decide"][1].error == found["decide"][1].attributes["trieway.rejection"] == "no_worker"


@in_loop
async def test_errors_of_the_client_are_no_errors_of_the_span() -> None:
    worker, record = FakeWorker(), Record()
    async with routed(worker, tracer=record.tracer) as client:
        bad = await client.post("/v1/completions", b"{")
        unknown = await client.post("/v1/completions", {"model": "secret words", "prompt": "p"})
        await until(lambda: len(record.traces) == 2)
    assert [bad.status, unknown.status] == [400, 404]
    assert [trace.spans[0].error for trace in record.traces] == ["", ""]
    assert bad.headers["x-trieway-trace-id"] == f"{record.traces[0].trace_id:032x}"
    assert spans(record.traces[1])["decide"][0].error == "unknown_model"
    assert "secret words" not in repr(record.traces)


@in_loop
async def test_a_stream_that_breaks_marks_the_request() -> None:
    worker, record = FakeWorker(), Record()
    worker.answer = cuts_midway
    async with routed(worker, tracer=record.tracer) as client:
        await client.complete(stream=True)
        await until(lambda: record.traces)
    found = spans(record.one)
    assert found["POST /v1/completions"][0].error == "broken"
    assert found["POST /v1/completions"][0].attributes["http.response.status_code"] == 200
    assert found["attempt"][0].error == "broken"


@pytest.mark.parametrize("streams", [False, True])
@in_loop
async def test_a_hang_up_ends_every_span(streams: bool) -> None:
    worker, record = FakeWorker(), Record()
    worker.answer = hangs
    async with routed(worker, tracer=record.tracer) as client:
        asked = asyncio.ensure_future(client.complete(stream=streams))
        await until(lambda: worker.waiting)
        asked.cancel()
        await until(lambda: record.traces)
        worker.answer = well
    found = spans(record.one)
    assert found["POST /v1/completions"][0].attributes["http.response.status_code"] == 499
    assert found["attempt"][0].attributes["trieway.outcome"] == "cancelled"
    assert not any(span.error for span in record.one.spans)


@in_loop
async def test_workers_are_told_of_traces_that_nobody_records() -> None:
    worker, record = FakeWorker(), Record(Sampling(ratio=0.0))
    async with routed(worker, tracer=record.tracer) as client:
        fresh = await client.complete()
        off = await client.post("/v1/completions", {"model": MODEL, "prompt": "p"}, **caller("00"))
        on = await client.post("/v1/completions", {"model": MODEL, "prompt": "p"}, **caller("01"))
        await until(lambda: record.traces)
    assert told(worker, 0)[2] == 0
    assert told(worker, 1) == (int(TRACE, 16), int(PARENT, 16), 0)
    assert told(worker, 2) == (int(TRACE, 16), record.one.spans[2].span_id, 1)
    assert ["x-trieway-trace-id" in reply.headers for reply in (fresh, off, on)] == [False, False, True]


@pytest.mark.parametrize(
    "hostile",
    [
        "00-" + "0" * 32 + f"-{PARENT}-01",
        f"00-{TRACE}-" + "0" * 16 + "-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01" + "x" * 5000,
        "'; drop table spans; --",
    ],
)
@in_loop
async def test_a_hostile_traceparent_is_as_none(hostile: str) -> None:
    worker, record = FakeWorker(), Record()
    async with routed(worker, tracer=record.tracer) as client:
        sent = {"traceparent": hostile, "tracestate": "vendor=1"}
        await client.post("/v1/completions", {"model": MODEL, "prompt": "p"}, headers=sent)
        await until(lambda: record.traces)
    trace = record.one
    assert trace.remote_parent_id == trace.spans[0].parent_id == 0
    assert f"{trace.trace_id:032x}" != TRACE
    assert told(worker) == (trace.trace_id, trace.spans[2].span_id, 1)
    assert worker.completions()[0].header("tracestate") is None


@in_loop
async def test_no_prompt_key_or_user_is_recorded() -> None:
    worker, record = FakeWorker(), Record()
    async with routed(worker, tracer=record.tracer, ring=KeyRing({"sk-hidden-key": "tenant-hidden"})) as client:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "prompt-hidden"}],
            "user": "user-hidden",
            "session_id": "session-hidden",
            "cache_salt": "salt-hidden",
        }
        reply = await client.post(
            "/v1/chat/completions?q=query-hidden", body, headers={"authorization": "Bearer sk-hidden-key"}
        )
        await until(lambda: record.traces)
    assert reply.status == 200
    assert "hidden" not in repr(record.traces)


@in_loop
async def test_without_a_tracer_the_clients_trace_goes_on_untouched() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        reply = await client.post("/v1/completions", {"model": MODEL, "prompt": "p"}, **caller("00", tracestate="v=1"))
    assert "x-trieway-trace-id" not in reply.headers
    assert worker.completions()[0].header("traceparent") == f"00-{TRACE}-{PARENT}-00"
    assert worker.completions()[0].header("tracestate") == "v=1"
