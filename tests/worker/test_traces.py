"""What a worker records of its requests: queue, prefill and decoding, with the engine's own times."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from trieway.serving.headers import Receipt
from trieway.serving.tracing import Finished, Kind, Sampling, Span, Tracer
from trieway.worker.core.sequence import Work
from trieway.worker.traces import SAMPLES_MAX

from .fakes import encode
from .harness import Worker, running, wait_until
from .raw import raw_post

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Traced:
    """A worker that records, and what it recorded since the test began."""

    def __init__(self, worker: Worker, traces: list[Finished]) -> None:
        self.worker = worker
        self.traces = traces

    def one(self) -> Finished:
        """The only trace; it may come a moment after the answer's last byte."""
        wait_until(lambda: bool(self.traces))
        (trace,) = self.traces
        return trace


@pytest.fixture(scope="module")
def _running() -> Iterator[Traced]:
    traces: list[Finished] = []
    with running(tracer=Tracer(traces.append)) as worker:
        yield Traced(worker, traces)


@pytest.fixture
def traced(_running: Traced) -> Iterator[Traced]:
    _running.worker.client.post("/cache/flush")
    _running.traces.clear()
    yield _running
    _running.worker.runner.gate.set()
    _running.worker.runner.fault = lambda work: None
    _running.worker.wait_idle()


def named(trace: Finished, name: str) -> list[Span]:
    return [span for span in trace.spans if span.name == name]


def length_ms(span: Span) -> float:
    assert span.ended is not None
    return 1e3 * (span.ended - span.began)


@pytest.mark.parametrize("stream", [False, True])
def test_queue_prefill_and_decode_follow_each_other(traced: Traced, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "say:abcdef|", "temperature": 0, "stream": stream}
    response = traced.worker.client.post(TEXT, json=body, headers={**CALLER, "x-request-id": "mine-1"})
    trace = traced.one()
    root, queue, prefill, decode = trace.spans
    assert [span.name for span in trace.spans] == [f"POST {TEXT}", "queue", "prefill", "decode"]
    assert (f"{trace.trace_id:032x}", f"{root.parent_id:016x}") == (TRACE, PARENT)
    assert response.headers["x-trieway-trace-id"] == TRACE
    assert root.kind is Kind.SERVER
    assert {span.parent_id for span in (queue, prefill, decode)} == {root.span_id}
    edges = [root.began, queue.began, queue.ended, prefill.ended, decode.ended, root.ended]
    assert edges == sorted(edges)
    assert queue.ended == prefill.began
    assert prefill.ended == decode.began
    receipt = Receipt.parse(response.headers["x-trieway-receipt"])
    assert receipt is not None
    assert length_ms(queue) == pytest.approx(receipt.queue_ms, abs=0.002)
    assert length_ms(prefill) == pytest.approx(receipt.prefill_ms, abs=0.002)
    assert length_ms(decode) > 0
    prompt = len(encode("say:abcdef|"))
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": TEXT,
        "trieway.request_id": "mine-1",
        "http.response.status_code": 200,
        "gen_ai.request.model": "tiny",
        "trieway.stream": stream,
        "trieway.samples": 1,
        "trieway.prompt_tokens": prompt,
        "trieway.cached_tokens": 0,
        "trieway.generated_tokens": 7,
    }
    assert prefill.attributes == {"trieway.sample": 0, "trieway.prompt_tokens": prompt, "trieway.cached_tokens": 0}
    assert decode.attributes == {"trieway.sample": 0, "trieway.generated_tokens": 7}
    assert not any(span.error for span in trace.spans)


def test_reuse_shows(traced: Traced) -> None:
    traced.worker.complete("say:" + "w" * 50 + "|", max_tokens=1)
    traced.one()
    traced.traces.clear()
    traced.worker.complete("say:" + "w" * 50 + "|", max_tokens=1)
    assert named(traced.one(), "prefill")[0].attributes["trieway.cached_tokens"] == 54


def test_a_wait_in_the_queue_is_as_long_as_what_runs_before_it() -> None:
    traces: list[Finished] = []
    with running(running_max=1, tracer=Tracer(traces.append)) as worker:
        worker.runner.gate.clear()
        body = {"model": "tiny", "prompt": "say:first|", "temperature": 0}
        with raw_post(worker.url, TEXT, body) as first:
            assert worker.runner.entered.wait(30)
            with raw_post(worker.url, TEXT, {**body, "prompt": "say:second|"}) as second:
                worker.wait_open(2)
                worker.runner.gate.set()
                first.read_head()
                second.read_head()
        wait_until(lambda: len(traces) == 2)
    early, late = traces
    wait, before = named(late, "queue")[0], named(early, "decode")[0]
    assert wait.ended is not None
    assert before.ended is not None
    assert wait.began < before.began < before.ended <= wait.ended


def test_of_many_samples_the_first_few_are_shown(traced: Traced) -> None:
    traced.worker.complete("say:xyz|", n=SAMPLES_MAX + 2)
    trace = traced.one()
    assert trace.spans[0].attributes["trieway.samples"] == SAMPLES_MAX + 2
    for name in ("queue", "prefill", "decode"):
        samples = [span.attributes["trieway.sample"] for span in named(trace, name)]
        assert len(samples) == len(set(samples)) == SAMPLES_MAX


def test_hang_ups_end_every_span(traced: Traced) -> None:
    worker = traced.worker
    worker.runner.gate.clear()
    worker.runner.entered.clear()
    with raw_post(worker.url, TEXT, {"model": "tiny", "prompt": "say:abc|", "stream": True}) as answer:
        assert worker.runner.entered.wait(30)
        answer.hang_up()
        worker.wait_open(0)
    trace = traced.one()
    assert [span.name for span in trace.spans] == [f"POST {TEXT}", "queue"]
    assert trace.spans[0].attributes["http.response.status_code"] == 499
    assert trace.spans[1].ended == trace.spans[0].ended is not None
    assert not trace.spans[0].error


def test_a_hang_up_in_the_middle_shows_what_was_generated(traced: Traced) -> None:
    worker, held = traced.worker, threading.Event()
    start = len(encode("say:" + "a" * 90 + "|"))

    def hold(work: Sequence[Work]) -> None:
        if work[0].start == start + 5:
            worker.runner.gate.clear()
            held.set()

    worker.runner.fault = hold
    body = {"model": "tiny", "prompt": "say:" + "a" * 90 + "|", "stream": True, "temperature": 0}
    with raw_post(worker.url, TEXT, body) as answer:
        answer.read_head()
        assert held.wait(30)
        answer.hang_up()
        worker.wait_open(0)
    trace = traced.one()
    (decode,) = named(trace, "decode")
    assert trace.spans[0].attributes["http.response.status_code"] == 499
    assert 1 <= decode.attributes["trieway.generated_tokens"] <= 7
    assert decode.ended is not None
    assert decode.ended <= trace.spans[0].ended


def test_refusals_and_failures(traced: Traced) -> None:
    worker = traced.worker
    assert worker.client.post(TEXT, content=b"{").status_code == 400
    worker.runner.fault = lambda work: RuntimeError("SECRET")
    failed = worker.client.post(CHAT, json={"model": "tiny", "messages": [{"role": "user", "content": "SECRET"}]})
    wait_until(lambda: len(traced.traces) == 2)
    refused, broken = traced.traces
    assert [span.error for span in refused.spans] == [""]
    assert refused.spans[0].attributes["http.response.status_code"] == 400
    assert failed.status_code == 500
    assert failed.headers["x-trieway-trace-id"] == f"{broken.trace_id:032x}"
    assert [(span.name, span.error) for span in broken.spans] == [(f"POST {CHAT}", "500"), ("queue", "")]
    assert "SECRET" not in repr(traced.traces)


def test_a_stream_that_breaks_is_marked(traced: Traced) -> None:
    start = len(encode("say:abcdef|"))
    traced.worker.runner.fault = lambda work: RuntimeError("lost") if work[0].start >= start + 2 else None
    body = {"model": "tiny", "prompt": "say:abcdef|", "stream": True, "temperature": 0}
    assert traced.worker.client.post(TEXT, json=body).status_code == 200
    trace = traced.one()
    assert trace.spans[0].error == "broken"
    assert named(trace, "decode")[0].attributes["trieway.generated_tokens"] == 3


@pytest.mark.parametrize("sent", [{"traceparent": f"00-{TRACE}-{PARENT}-00"}, {}])
def test_what_is_not_sampled_is_not_recorded(sent: dict[str, Any]) -> None:
    traces: list[Finished] = []
    with running(tracer=Tracer(traces.append, Sampling(ratio=0.0))) as worker:
        response = worker.client.post(TEXT, json={"model": "tiny", "prompt": "say:a|"}, headers=sent)
        assert response.status_code == 200
        assert "x-trieway-trace-id" not in response.headers
    assert traces == []
