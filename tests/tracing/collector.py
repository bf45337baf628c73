"""A small OTLP collector on loopback: takes what exporters post, decodes it, and can be told to misbehave."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.worker.harness import wait_until


@dataclass(frozen=True)
class Got:
    """A span as it arrived. Times are nanoseconds since 1970; ids hex, the parent's empty for a root."""

    service: str
    resource: dict[str, Any]
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    began: int
    ended: int
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Collector:
    """`status` is what it answers; while `gate` is closed it does not answer at all."""

    status: int = 200
    gate: threading.Event = field(default_factory=threading.Event)
    posts: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers of each request, names in lower case."""
    spans: list[Got] = field(default_factory=list)
    raw: bytes = b""
    """All bodies, one after another."""
    url: str = ""

    def trace(self, trace_id: str, count: int) -> list[Got]:
        """The spans of a trace once there are so many."""
        wait_until(lambda: len(self.of(trace_id)) >= count)
        return self.of(trace_id)

    def of(self, trace_id: str) -> list[Got]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.posts.append((path, headers))
        self.gate.wait(30)
        if self.status == 200:
            data = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
            self.raw += data
            self.spans += decode(data)
        return self.status


def decode(data: bytes) -> list[Got]:
    """The spans of one request's body."""
    message = ExportTraceServiceRequest.FromString(data)
    return [
        Got(
            service=resource["service.name"],
            resource=resource,
            name=span.name,
            kind=span.kind,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            state=span.trace_state,
            began=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            attributes={pair.key: plain(pair.value) for pair in span.attributes},
            failed=span.status.code == span.status.STATUS_CODE_ERROR,
        )
        for group in message.resource_spans
        for resource in [{pair.key: plain(pair.value) for pair in group.resource.attributes}]
        for scope in group.scope_spans
        for span in scope.spans
    ]


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind in ("string_value", "bool_value", "int_value", "double_value"), kind
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    collector = Collector()
    collector.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = collector.take(self.path, headers, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *said: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away in the middle is part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="collector")
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(30)
