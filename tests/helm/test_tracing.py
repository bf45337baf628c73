"""The chart's tracing values become an environment that our servers understand, and the image holds what they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from trieway.serving.config import RouterConfig, WorkerConfig
from trieway.serving.config_load import load
from trieway.serving.otlp import sampling
from trieway.serving.tracing import Sampling

from . import tools
from .chart import HELMS, Manifest, containers, parse, pods, template
from .dockerfile import read

VALUES = Path(__file__).parent / "values"
ON = (
    "--set=tracing.otlpEndpoint=http://collector.monitoring:4318",
    "--set-json=tracing.sampleRatio=0.25",
    "--set=tracing.headersSecret=otlp",
)
SERVERS = {"router": RouterConfig, "worker": WorkerConfig}


def environments(*arguments: str) -> dict[str, dict[str, Manifest]]:
    """Of each component's serving container, what is set."""
    found = {}
    for _, pod in pods(parse(template(HELMS[-1], *arguments))):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        found[component] = {one["name"]: one for one in containers(pod, init=False)[0].get("env", [])}
    return found


@pytest.mark.parametrize("mode", ["minimal", "kuberay"])
@pytest.mark.helm
@pytest.mark.usefixtures("helms")
def test_router_and_worker_read_what_the_chart_says(mode: str) -> None:
    found = environments("--values", str(VALUES / f"{mode}.yaml"), *ON)
    for component, kind in SERVERS.items():
        told = found[component]
        config = load(kind, flags={}, environ={name: one["value"] for name, one in told.items() if "value" in one})
        assert config.otlp_endpoint == "http://collector.monitoring:4318/v1/traces"
        assert sampling(config) == Sampling(ratio=0.25)
        assert config.trace_service_name == f"trieway-{component}"
        reference = {"secretKeyRef": {"name": "otlp", "key": "headers"}}
        assert told["OTEL_EXPORTER_OTLP_HEADERS"]["valueFrom"] == reference


@pytest.mark.parametrize("mode", ["minimal", "kuberay"])
@pytest.mark.helm
@pytest.mark.usefixtures("helms")
def test_nothing_is_traced_unless_asked_for(mode: str) -> None:
    for told in environments("--values", str(VALUES / f"{mode}.yaml")).values():
        assert not [name for name in told if name.startswith("OTEL_")]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_images_hold_the_exporter(target: str) -> None:
    (install,) = (
        text for text in read(tools.ROOT / "Dockerfile")[f"{target}-environment"].words("RUN") if "/wheels/" in text
    )
    extras = install.split("trieway-*.whl)[")[1].split("]")[0].split(",")
    assert "otlp" in extras
