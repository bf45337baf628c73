"""OpenTelemetry's standard environment as settings: below our own, named in errors, silent where nothing is traced."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from trieway.serving.config import ConfigError, RouterConfig, UpConfig
from trieway.serving.config_load import add_flags, load, show, to_flags
from trieway.serving.otlp import sampling
from trieway.serving.tracing import Sampling

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def router(environ: dict[str, str], file: Path | None = None, **flags: Any) -> RouterConfig:
    return load(RouterConfig, flags=flags, environ=environ, file=file)


def test_nothing_is_traced_unless_somebody_says_where_to() -> None:
    config = router({"OTEL_TRACES_SAMPLER": "nonsense", "OTEL_SERVICE_NAME": "x"})
    assert config == RouterConfig()
    assert config.otlp_endpoint is None


def test_the_standard_environment_is_read() -> None:
    said = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25", "OTEL_SERVICE_NAME": "mine"}
    config = router(BASE | said)
    assert config.otlp_endpoint == "http://collector:4318/v1/traces"
    assert (config.trace_sampler, config.trace_sample_ratio, config.trace_service_name) == (
        "traceidratio",
        0.25,
        "mine",
    )


def test_the_traces_own_endpoint_is_taken_as_it_is() -> None:
    own = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://other/take"}
    assert router(BASE | own).otlp_endpoint == "http://other/take"


@pytest.mark.parametrize(
    "off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}]
)
def test_it_can_be_switched_off(off: dict[str, str]) -> None:
    assert router(BASE | off).otlp_endpoint is None
    assert router(BASE | off | {"TRIEWAY_OTLP_ENDPOINT": "http://mine"}).otlp_endpoint == "http://mine"


def test_flags_environment_and_file_come_first(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("otlp_endpoint: http://file\nrouter:\n  trace_sample_ratio: 0.5\n")
    standard = BASE | {"OTEL_TRACES_SAMPLER_ARG": "0.1"}
    assert router(standard, file).otlp_endpoint == "http://file"
    assert router(standard, file).trace_sample_ratio == 0.5
    ours = standard | {"TRIEWAY_OTLP_ENDPOINT": "http://env"}
    assert router(ours, file).otlp_endpoint == "http://env"
    assert router(ours, file, otlp_endpoint="http://flag").otlp_endpoint == "http://flag"


def test_the_sampler_of_the_environment_counts_for_an_endpoint_of_ours() -> None:
    environ = {"OTEL_TRACES_SAMPLER": "always_off", "TRIEWAY_ROUTER_OTLP_ENDPOINT": "http://c"}
    assert router(environ).trace_sampler == "always_off"


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "environment OTEL_TRACES_SAMPLER: one of always_on"),
        ({"OTEL_TRACES_SAMPLER_ARG": "2"}, "environment OTEL_TRACES_SAMPLER_ARG: from 0 to 1"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "environment OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "environment OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(environ: dict[str, str], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        router(BASE | environ)


def test_the_traces_protocol_wins_and_arguments_of_other_samplers_are_none_of_ours() -> None:
    both = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    other = {"OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_TRACES_SAMPLER_ARG": "whatever"}
    assert router(BASE | both | other).trace_sample_ratio is None


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("always_on", Sampling(ratio=1.0, parent_based=False)),
        ("always_off", Sampling(ratio=0.0, parent_based=False)),
        ("traceidratio", Sampling(ratio=0.3, parent_based=False)),
        ("parentbased_always_on", Sampling(ratio=1.0)),
        ("parentbased_always_off", Sampling(ratio=0.0)),
        ("parentbased_traceidratio", Sampling(ratio=0.3)),
    ],
)
def test_samplers_mean_what_their_names_say(name: Any, means: Sampling) -> None:
    assert sampling(RouterConfig(trace_sampler=name, trace_sample_ratio=0.3)) == means
    assert sampling(RouterConfig()) == Sampling()


def test_a_fleet_hands_it_to_its_processes() -> None:
    config = load(UpConfig, flags={}, environ=BASE | {"TRIEWAY_WORKER_TRACE_SERVICE_NAME": "w"}, file=None)
    assert config.router.otlp_endpoint == config.worker.otlp_endpoint == "http://collector:4318/v1/traces"
    assert (config.router.trace_service_name, config.worker.trace_service_name) == (None, "w")
    flags = to_flags(config.worker)
    assert "--otlp-endpoint=http://collector:4318/v1/traces" in flags


def test_flags_for_a_process_elsewhere_leave_its_own_environment_its_word() -> None:
    said = BASE | {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_SERVICE_NAME": "there"}
    flags = to_flags(RouterConfig())
    parser = argparse.ArgumentParser()
    add_flags(parser, RouterConfig)
    there = load(RouterConfig, flags=vars(parser.parse_args(flags)), environ=said)
    assert (there.otlp_endpoint, there.trace_sampler, there.trace_service_name) == (
        "http://collector:4318/v1/traces",
        "always_off",
        "there",
    )


def test_credentials_do_not_show() -> None:
    assert "hidden" not in show(router({}, otlp_endpoint="http://user:hidden@collector:4318"))
