"""W3C trace context: what is taken, what is as none, and that OpenTelemetry's own propagator agrees."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trieway.serving.trace_context import STATE_MAX_BYTES, TraceContext, context_of

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
GOOD = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def parsed(value: bytes, *states: bytes) -> TraceContext | None:
    return context_of([(b"traceparent", value), *((b"tracestate", state) for state in states)])


def test_a_callers_word() -> None:
    found = parsed(GOOD, b"vendor=1", b"other=2")
    assert found == TraceContext(trace_id=TRACE, span_id=SPAN, flags=1, state=b"vendor=1,other=2")
    assert found.sampled
    assert not parsed(GOOD[:-1] + b"0").sampled  # type: ignore[union-attr]
    assert context_of([(b"tracestate", b"vendor=1")]) is None
    assert context_of([]) is None


def test_later_versions_may_say_more() -> None:
    assert parsed(b"cc" + GOOD[2:] + b"-what-comes-later") == parsed(GOOD)
    assert parsed(b"cc" + GOOD[2:] + b".what") is None
    assert parsed(GOOD + b"-what") is None


def test_flags_that_nobody_has_defined_are_not_repeated() -> None:
    found = parsed(GOOD[:-2] + b"ff")
    assert found is not None
    assert found.headers() == [(b"traceparent", GOOD[:-2] + b"03")]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        GOOD.upper(),
        GOOD + b" ",
        GOOD + b"\n",
        b"ff" + GOOD[2:],
        GOOD.replace(b"0af7651916cd43dd8448eb211c80319c", b"0" * 32),
        GOOD.replace(b"b7ad6b7169203331", b"0" * 16),
        b"cc" + GOOD[2:] + b"-" + b"x" * 1000,
        GOOD.replace(b"-", b"_"),
        "００-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".encode(),
    ],
)
def test_what_is_invalid_is_as_none_with_its_state(value: bytes) -> None:
    assert parsed(value, b"vendor=1") is None


def test_two_parents_are_none() -> None:
    assert context_of([(b"traceparent", GOOD), (b"traceparent", GOOD)]) is None


@pytest.mark.parametrize("state", [b"a=" + b"x" * STATE_MAX_BYTES, b"a=\r\nx: y", "a=é".encode(), b"a=\x00"])
def test_a_state_that_cannot_go_on_is_dropped_and_the_parent_kept(state: bytes) -> None:
    assert parsed(GOOD, state) == parsed(GOOD)


@given(value=st.binary(max_size=80), state=st.binary(max_size=600))
def test_nothing_from_outside_raises(value: bytes, state: bytes) -> None:
    found = parsed(value, state)
    assert found is None or len(found.state) <= STATE_MAX_BYTES
    assert context_of([(b"tracestate", state), (b"traceparent", GOOD + value)]) in (None, parsed(GOOD, state))


contexts = st.builds(
    TraceContext,
    trace_id=st.integers(1, (1 << 128) - 1),
    span_id=st.integers(1, (1 << 64) - 1),
    flags=st.integers(0, 3),
    state=st.from_regex(rb"[a-z]{1,8}=[a-z0-9]{1,8}(,[a-z]{1,8}=[a-z0-9]{1,8}){0,5}", fullmatch=True),
)


@given(context=contexts)
def test_what_is_written_is_read_again(context: TraceContext) -> None:
    assert context_of(context.headers()) == context


hexes = st.text("0123456789abcdefF", max_size=34)
values = st.one_of(
    st.builds("{}-{}-{}-{}".format, hexes, hexes, hexes, hexes),
    st.builds(
        "{}-{}-{}-{}{}".format,
        st.sampled_from(["00", "01", "ff", "cc"]),
        st.sampled_from(["0" * 32, "0af7651916cd43dd8448eb211c80319c", "f" * 32, "f" * 31]),
        st.sampled_from(["0" * 16, "b7ad6b7169203331"]),
        st.sampled_from(["00", "01", "ff", "0g", "1"]),
        st.sampled_from(["", "-", "-more", "more"]),
    ),
)


@given(value=values)
def test_opentelemetrys_propagator_agrees(value: str) -> None:
    carried = TraceContextTextMapPropagator().extract({"traceparent": value})
    theirs = trace.get_current_span(carried).get_span_context()
    ours = parsed(value.encode())
    if ours is None:
        assert not theirs.is_valid
    else:
        assert (theirs.trace_id, theirs.span_id) == (ours.trace_id, ours.span_id)
        assert bool(theirs.trace_flags & 1) is ours.sampled
        assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]", ours.headers()[0][1])
