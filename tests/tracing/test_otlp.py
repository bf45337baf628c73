"""Spans through OpenTelemetry's exporter to a real collector: what arrives, what is said where it cannot."""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tracing.collector import Collector, collecting
from tests.worker.harness import wait_until
from trieway.serving import outbox as outboxes
from trieway.serving.config import ConfigError, RouterConfig
from trieway.serving.logs import setup_logging
from trieway.serving.otlp import OtlpExporter, tracing
from trieway.serving.trace_context import TraceContext
from trieway.serving.tracing import Kind, Trace, Tracer

Log = Callable[[], list[str]]
CALLER = TraceContext(trace_id=0xABC, span_id=0xDEF, flags=1, state=b"vendor=1,other=2")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine's own counts."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def log() -> Iterator[Log]:
    """The lines of a server's log so far, set up as a server does it."""
    root, own = logging.getLogger(), logging.getLogger("trieway")
    level, own_level = root.level, own.level
    setup_logging("debug", "plain", process="router")
    handler = next(each for each in root.handlers if each.name == "trieway")
    assert isinstance(handler, logging.StreamHandler)
    lines = io.StringIO()
    handler.setStream(lines)
    yield lambda: lines.getvalue().splitlines()
    root.removeHandler(handler)
    root.setLevel(level)
    own.setLevel(own_level)


def record(tracer: Tracer | None, parent: TraceContext | None = None, error: str = "") -> Trace:
    """A request with a call below it."""
    assert tracer is not None
    trace = tracer.begin([] if parent is None else parent.headers(), "POST /v1/completions")
    assert isinstance(trace, Trace)
    call = trace.span("attempt", kind=Kind.CLIENT)
    call.attributes = {"text": "t", "count": 3, "share": 0.5, "yes": True}
    call.error = error
    trace.finish()
    return trace


def config(url: str, **changes: Any) -> RouterConfig:
    return RouterConfig(otlp_endpoint=url, **changes)


def test_a_trace_arrives_as_it_was_recorded(collector: Collector) -> None:
    before = time.time_ns()
    with tracing(config(collector.url), "router") as tracer:
        trace = record(tracer, CALLER, error="broken")
    root, call = collector.spans
    assert collector.posts[0][0] == "/v1/traces"
    assert (root.service, root.name, root.kind, root.failed) == ("trieway-router", "POST /v1/completions", 2, False)
    assert (root.trace_id, root.parent_id, root.state) == (f"{0xABC:032x}", f"{0xDEF:016x}", "vendor=1,other=2")
    assert root.span_id == call.parent_id == f"{trace.root.span_id:016x}"
    assert (call.name, call.kind, call.failed) == ("attempt", 3, True)
    assert call.attributes == {"text": "t", "count": 3, "share": 0.5, "yes": True, "error.type": "broken"}
    assert before - 1e9 < root.began <= call.began <= call.ended <= root.ended < time.time_ns() + 1e9
    assert root.resource["service.version"]
    assert root.resource["service.instance.id"].startswith(socket.gethostname())


def test_a_trace_that_begins_here_has_no_parent(collector: Collector) -> None:
    with tracing(config(collector.url + "/", trace_service_name="mine"), "worker") as tracer:
        record(tracer)
    assert [span.parent_id for span in collector.spans] == ["", collector.spans[0].span_id]
    assert {span.service for span in collector.spans} == {"mine"}


def test_without_an_endpoint_there_is_no_tracer_and_no_thread() -> None:
    with tracing(RouterConfig(), "router") as tracer:
        assert tracer is None


def test_a_path_is_kept(collector: Collector) -> None:
    with tracing(config(collector.url + "/gate/traces?x=1"), "router") as tracer:
        record(tracer)
    assert collector.posts[0][0] == "/gate/traces?x=1"


def test_the_standard_environment_reaches_the_exporter(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-env=from-env,x-both=from-env")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,service.instance.id=pod-7,team=blue")
    with tracing(config(collector.url), "router") as tracer:
        record(tracer)
    headers = collector.posts[0][1]
    assert headers["x-env"] == "from-env"
    assert headers["content-encoding"] == "gzip"
    resource = collector.spans[0].resource
    assert (resource["service.name"], resource["service.instance.id"], resource["team"]) == (
        "trieway-router",
        "pod-7",
        "blue",
    )


def test_headers_come_from_a_file(collector: Collector, tmp_path: Path, log: Log) -> None:
    file = tmp_path / "headers"
    file.write_text("# for the collector\nAuthorization=Bearer hidden-token\n\nx-scope: a=b; c\n")
    with tracing(config(collector.url, otlp_headers_file=file), "router") as tracer:
        record(tracer)
    headers = collector.posts[0][1]
    assert (headers["authorization"], headers["x-scope"]) == ("Bearer hidden-token", "a=b; c")
    assert "hidden-token" not in "".join(log())


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("no equals sign", "line 1 is not"),
        ("a=b\nc d=e", "line 2 is not"),
        ("a=\x01", "line 1 is not"),
        (b"\xff", "UTF-8"),
    ],
)
def test_a_file_of_headers_that_is_none(tmp_path: Path, content: str | bytes, word: str) -> None:
    file = tmp_path / "headers"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with (
        pytest.raises(ConfigError, match=word) as mistake,
        tracing(config("http://c", otlp_headers_file=file), "router"),
    ):
        pass
    assert "\n" not in str(mistake.value)
    with (
        pytest.raises(ConfigError, match="No such file"),
        tracing(config("http://c", otlp_headers_file=tmp_path / "none"), "router"),
    ):
        pass


@pytest.mark.parametrize("url", ["collector:4318", "grpc://c:4317", "http://", "http://c:x", "http://c/#f", "://"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint"), tracing(config(url), "router"):
        pass


def test_without_the_package_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("opentelemetry.exporter.otlp"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'trieway\[otlp\]'") as mistake,
        tracing(config("http://c:4318"), "router"),
    ):
        pass
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"), ("OTEL_RESOURCE_ATTRIBUTES", "no-equals-sign")],
)
def test_an_environment_that_makes_no_sense_is_told_in_one_line(
    collector: Collector, log: Log, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    told: list[str] = []
    try:
        with tracing(config(collector.url), "router"):
            told += [line for line in log() if " warning router trieway.serving.otlp OpenTelemetry's environ" in line]
    except ConfigError as error:  # what some releases refuse, others pass over
        told.append(str(error))
    (line,) = told
    assert value in line
    assert "\n" not in line


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_dead_collector_is_one_line_without_credentials(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    url = f"http://user:hidden-word@127.0.0.1:{free_port()}"
    with tracing(config(url), "router") as tracer:
        for _ in range(50):
            record(tracer)
        wait_until(lambda: len(log()) > 1)
        for _ in range(50):
            record(tracer)
        began = time.monotonic()
    assert time.monotonic() - began < 3.0, "nobody waits for a collector that is away"
    begin, said = log()
    assert "traces go to http://***@127.0.0.1:" in begin
    assert " warning router trieway.serving.outbox 100 spans of traces were lost: " in said
    assert "hidden-word" not in begin + said


@pytest.mark.parametrize("status", [400, 401])
def test_a_refusal_is_said_with_its_code(collector: Collector, log: Log, status: int) -> None:
    collector.status = status
    with tracing(config(collector.url), "router") as tracer:
        record(tracer)
    _, said = log()
    assert "2 spans of traces were lost: Failed to export" in said
    assert f" {status}" in said


def test_a_collector_that_is_busy_for_a_moment_loses_nothing(collector: Collector) -> None:
    collector.status = 503
    with tracing(config(collector.url), "router") as tracer:
        record(tracer)
        wait_until(lambda: bool(collector.posts))
        collector.status = 200
        wait_until(lambda: len(collector.spans) == 2)


def test_a_hung_collector_does_not_hold_up_the_end(
    collector: Collector, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "FLUSH_S", 0.3)
    collector.gate.clear()
    with tracing(config(collector.url), "router") as tracer:
        record(tracer)
        wait_until(lambda: bool(collector.posts))
        began = time.monotonic()
    assert time.monotonic() - began < 3.0
    assert "2 spans of traces were lost" in log()[-1]
    collector.gate.set()


def test_opentelemetrys_own_loggers_are_silent(log: Log) -> None:
    OtlpExporter("http://127.0.0.1:9/v1/traces", {}, "x")
    exporter = OtlpExporter("http://127.0.0.1:9/v1/traces", {}, "x")
    logging.getLogger("opentelemetry.sdk.trace").warning("chatter")
    assert log() == []
    exporter.stop()
