"""Traces to an OpenTelemetry collector, over OTLP (http/protobuf), by OpenTelemetry's own exporter.

Keeps true: nothing of OpenTelemetry is imported unless traces are asked for; its own loggers are silent, for the outbox
speaks for them; no credential is logged. Whatever the standard environment says of headers, timeout, compression and
certificates holds. Does not know what is recorded.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trieway import __version__
from trieway.serving.config import ConfigError, ServerConfig
from trieway.serving.config_otel import TRACES_PATH
from trieway.serving.outbox import Outbox
from trieway.serving.tracing import Finished, Sampling, Span, Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

log = logging.getLogger(__name__)

HEADERS_MAX_BYTES = 65536
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*[=:]\s*([\x21-\x7e][\x20-\x7e]*)\Z")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_REASON_MAX_CHARS = 300


@contextmanager
def tracing(config: ServerConfig, process: str) -> Iterator[Tracer | None]:
    """The tracer that `config` asks for, None where it asks for none; at the end what is left is sent.

    process: `router` or `worker`.

    Raises:
        ConfigError: the endpoint or its headers cannot be used, or the exporter is not installed.
    """
    if config.otlp_endpoint is None:
        yield None
        return
    endpoint = _url(config.otlp_endpoint)
    outbox = Outbox(OtlpExporter(endpoint, _headers(config), config.trace_service_name or f"trieway-{process}"))
    log.info("traces go to %s", _CREDENTIALS.sub("***@", endpoint))
    try:
        yield Tracer(outbox.put, sampling(config))
    finally:
        outbox.close()


def sampling(config: ServerConfig) -> Sampling:
    """OpenTelemetry's sampler by its name, with the ratio where it has one."""
    name = config.trace_sampler or "parentbased_traceidratio"
    kept = 1.0 if config.trace_sample_ratio is None else config.trace_sample_ratio
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(name.removeprefix("parentbased_"), kept)
    return Sampling(ratio=ratio, parent_based=name.startswith("parentbased_"))


class OtlpExporter:
    """Sends batches through OpenTelemetry's exporter.

    Raises:
        ConfigError: it is not installed, or its own environment is refused.
    """

    def __init__(self, endpoint: str, headers: dict[str, str], service: str) -> None:
        try:
            exporters = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        except ImportError:
            raise ConfigError(
                "otlp_endpoint: traces need OpenTelemetry's exporter, which is not installed: "
                "pip install 'trieway[otlp]', or take the endpoint away"
            ) from None
        self._said = _mute()
        try:
            self._exporter = exporters.OTLPSpanExporter(endpoint=endpoint, headers=headers)
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"environment OTEL_EXPORTER_OTLP_...: the exporter refuses it: {error}") from None
        self._resource = _resource(service)
        if self._said.first:
            log.warning("OpenTelemetry's environment: %s", self._said.first)

    def export(self, traces: Sequence[Finished]) -> str:
        """See `Exporter.export`."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._said.first = ""
        spans = [span for trace in traces for span in readable(trace, self._resource)]
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return ""
        reason = " ".join(self._said.first.split()) or "the collector does not answer"
        return _CREDENTIALS.sub("***@", reason)[:_REASON_MAX_CHARS]

    def stop(self) -> None:
        """See `Exporter.stop`."""
        self._exporter.shutdown()


def readable(trace: Finished, resource: Resource) -> list[ReadableSpan]:
    """The trace's spans as OpenTelemetry's exporters take them."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
    from opentelemetry.trace.status import Status, StatusCode

    scope = InstrumentationScope("trieway", __version__)
    kinds = {1: SpanKind.INTERNAL, 2: SpanKind.SERVER, 3: SpanKind.CLIENT}
    state = TraceState.from_header([trace.state.decode("ascii")]) if trace.state else TraceState()

    def context(span_id: int) -> SpanContext:
        remote = span_id == trace.remote_parent_id
        return SpanContext(trace.trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED), state)

    def nanoseconds(seconds: float) -> int:
        return trace.base_ns + int(seconds * 1e9)

    def one(span: Span) -> ReadableSpan:
        assert span.ended is not None, "a trace is handed over once all its spans have ended"
        return ReadableSpan(
            name=span.name,
            context=context(span.span_id),
            parent=context(span.parent_id) if span.parent_id else None,
            resource=resource,
            attributes=span.attributes | {"error.type": span.error} if span.error else span.attributes,
            kind=kinds[span.kind],
            status=Status(StatusCode.ERROR if span.error else StatusCode.UNSET),
            start_time=nanoseconds(span.began),
            end_time=nanoseconds(span.ended),
            instrumentation_scope=scope,
        )

    return [one(span) for span in trace.spans]


def _resource(service: str) -> Resource:
    """Who speaks. OTEL_RESOURCE_ATTRIBUTES wins over what we guess, but for the service's name."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = {"service.version": __version__, "service.instance.id": f"{socket.gethostname()}:{os.getpid()}"}
    named = Resource({"service.name": service})
    return Resource.create(ours).merge(OTELResourceDetector().detect()).merge(named)


class _Said(logging.Handler):
    """Keeps the first thing that OpenTelemetry wants to log about a batch: it names the cause, later ones the end."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


def _mute() -> _Said:
    """Its exporter logs every failure; the outbox says it once a minute."""
    said = _Said()
    logger = logging.getLogger("opentelemetry")
    for old in [each for each in logger.handlers if isinstance(each, _Said)]:
        logger.removeHandler(old)
    logger.addHandler(said)
    logger.propagate = False
    return said


def _url(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"otlp_endpoint: not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
        raise ConfigError("otlp_endpoint: a URL such as http://collector:4318 is needed")
    return endpoint if parts.path.strip("/") else parts._replace(path=TRACES_PATH).geturl()


def _headers(config: ServerConfig) -> dict[str, str]:
    path = config.otlp_headers_file
    if path is None:
        return {}
    try:
        if path.stat().st_size > HEADERS_MAX_BYTES:
            raise ConfigError(f"otlp_headers_file {path}: larger than {HEADERS_MAX_BYTES} bytes")
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"otlp_headers_file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"otlp_headers_file {path}: not UTF-8 text") from None
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _HEADER.match(line.strip())
        if found is None:
            raise ConfigError(f"otlp_headers_file {path}: line {number} is not `name=value`")
        headers[found[1].lower()] = found[2]
    return headers
