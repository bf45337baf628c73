"""Traces of one process: who is sampled, when spans end, what is handed over."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from trieway.serving.router_trace import UNTRACED, begin
from trieway.serving.trace_context import TraceContext, context_of
from trieway.serving.tracing import Finished, Kind, Sampling, Trace, Tracer, new_id

CALLER = TraceContext(trace_id=7, span_id=9, flags=1, state=b"v=1")
CALM = TraceContext(trace_id=7, span_id=9, flags=0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def recorded(tracer: Tracer, parent: TraceContext | None = None) -> Trace:
    trace = tracer.begin([] if parent is None else parent.headers(), "POST /x")
    assert isinstance(trace, Trace)
    return trace


def test_spans_are_handed_over_once_and_all_have_ended() -> None:
    kept: list[Finished] = []
    clock = Clock()
    trace = recorded(Tracer(kept.append, clock=clock), CALLER)
    first = trace.span("first")
    first.ended = 1001.0
    clock.now = 1002.0
    second = trace.span("second", 1000.5, kind=Kind.CLIENT)
    inner = trace.span("inner", parent_id=second.span_id)
    clock.now = 1003.0
    assert not kept
    before = time.time_ns()
    trace.finish()
    (found,) = kept
    assert found.spans == (trace.root, first, second, inner)
    assert [span.ended for span in found.spans] == [1003.0, 1001.0, 1003.0, 1003.0]
    assert [span.parent_id for span in found.spans] == [9, trace.root.span_id, trace.root.span_id, second.span_id]
    assert (found.trace_id, found.remote_parent_id, found.state) == (7, 9, b"v=1")
    assert abs(found.base_ns + 1_000_000_000_000 - before) < 60e9, "the clock's time and the wall's meet at the begin"


def test_ids_differ() -> None:
    kept: list[Finished] = []
    tracer = Tracer(kept.append)
    traces = [recorded(tracer) for _ in range(1000)]
    ids = {trace.trace_id for trace in traces} | {trace.span("s").span_id for trace in traces}
    assert len(ids) == 2000
    assert Tracer(kept.append).begin([], "x").trace_id not in ids


class Zeros(random.Random):
    def getrandbits(self, k: int, /) -> int:
        return 0


def test_an_id_is_never_zero() -> None:
    assert new_id(Zeros(), 64) == 1


def test_a_callee_is_told_of_the_span_that_waits_for_it() -> None:
    trace = recorded(Tracer(lambda _: None), CALLER)
    span = trace.span("call")
    assert trace.context(span) == TraceContext(trace_id=7, span_id=span.span_id, flags=1, state=b"v=1")


@given(trace_id=st.integers(1, (1 << 128) - 1), ratio=st.floats(0, 1))
def test_a_ratio_means_what_it_means_to_opentelemetry(trace_id: int, ratio: float) -> None:
    theirs = TraceIdRatioBased(ratio).should_sample(None, trace_id, "x").decision is Decision.RECORD_AND_SAMPLE
    edge = abs((trace_id & ((1 << 64) - 1)) - ratio * (1 << 64)) <= 1
    assert edge or Sampling(ratio=ratio).takes(trace_id, None) == theirs


def test_the_share_of_traces_begun_here() -> None:
    tracer = Tracer(lambda _: None, Sampling(ratio=0.25), rng=random.Random(3))
    taken = sum(isinstance(tracer.begin([], "x"), Trace) for _ in range(4000))
    assert 900 <= taken <= 1100


@pytest.mark.parametrize(
    ("sampling", "caller", "taken"),
    [
        (Sampling(ratio=0.0), CALLER, True),
        (Sampling(ratio=1.0), CALM, False),
        (Sampling(ratio=0.0, parent_based=False), CALLER, False),
        (Sampling(ratio=1.0, parent_based=False), CALM, True),
        (Sampling(ratio=0.0), None, False),
        (Sampling(ratio=1.0), None, True),
    ],
)
def test_who_decides(sampling: Sampling, caller: TraceContext | None, taken: bool) -> None:
    tracer = Tracer(lambda _: None, sampling)
    found = tracer.begin([] if caller is None else caller.headers(), "x")
    assert isinstance(found, Trace) is taken
    if isinstance(found, TraceContext):
        assert not found.sampled, "callees hear that this trace is not recorded"
        assert caller is None or (found.trace_id, found.span_id) == (caller.trace_id, caller.span_id)
        assert context_of(found.headers()) == found


def test_without_a_tracer_nothing_is_done() -> None:
    trace = begin(None, CALLER.headers(), "/x", "r")
    assert trace is UNTRACED
    trace.sends("w", 1)
    trace.answered(200, [])
    trace.attempt_failed("broken")
    trace.attempt_ended("ok")
    trace.rejected("no_worker", 2)
    trace.broke()
    trace.end(200)
    assert trace.onward() is None
    assert (trace.id, trace.answer_headers()) == ("", [])
