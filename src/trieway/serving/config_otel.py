"""What OpenTelemetry's standard environment says of traces, as settings of ours.

Keeps true: an empty variable is as none, as the standard asks; where nothing is traced nothing is complained of, else
what cannot be had (another protocol) is refused by name. Headers, timeout, compression and certificates are read by the
exporter itself, from the same environment. Does not know our own sources: they all come before this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trieway.serving.config import ConfigError

TRACES_PATH = "/v1/traces"
PROTOCOL = "http/protobuf"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DIRECT = {
    "trace_sampler": "OTEL_TRACES_SAMPLER",
    "trace_sample_ratio": "OTEL_TRACES_SAMPLER_ARG",
    "trace_service_name": "OTEL_SERVICE_NAME",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Standard:
    """Raw values by our key, and the variable that each came from."""

    values: Mapping[str, str]
    names: Mapping[str, str]


def otel_environment(environ: Mapping[str, str], *, traced: bool = False) -> Standard:
    """Nothing where the environment names no endpoint or switches traces off. Raises ConfigError.

    traced: our own settings name an endpoint.
    """
    endpoint, named = _endpoint(environ)
    values: dict[str, str] = {}
    if endpoint is not None:
        _check_protocol(environ)
        values["otlp_endpoint"] = endpoint
    elif not traced:
        return Standard(values={}, names={})
    values |= {key: value for key, name in _DIRECT.items() if (value := _said(environ, name)) is not None}
    # Arguments of samplers that we have no use for are none of our ratios.
    if not values.get("trace_sampler", "traceidratio").endswith("traceidratio"):
        values.pop("trace_sample_ratio", None)
    return Standard(values=values, names={**_DIRECT, "otlp_endpoint": named})


def _check_protocol(environ: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        protocol = _said(environ, name)
        if protocol is not None:
            if protocol != PROTOCOL:
                raise ConfigError(f"environment {name}: only {PROTOCOL} is spoken here, not {protocol[:40]!r}")
            return


def _endpoint(environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The URL that traces are posted to, and the variable that says so."""
    off = (_said(environ, "OTEL_SDK_DISABLED") or "").lower() == "true"
    if off or _said(environ, "OTEL_TRACES_EXPORTER") not in (None, "otlp"):
        return None, ""
    whole = _said(environ, _TRACES_ENDPOINT)
    if whole is not None:
        return whole, _TRACES_ENDPOINT
    base = _said(environ, _ENDPOINT)
    return (None, "") if base is None else (base.rstrip("/") + TRACES_PATH, _ENDPOINT)


def _said(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, "").strip() or None
