"""The chart as the tests see it: value sets, rendering, and small questions about manifests."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from . import tools
from .fake_api import FakeApi

ROOT = tools.ROOT
CHART = ROOT / "helm" / "trieway"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
VALUES = [*sorted((Path(__file__).parent / "values").glob("*.yaml")), *EXAMPLES]
HELMS = tuple(tools.HELM_WHEELS)
RELEASE, NAMESPACE = "prod", "llm"
Manifest = dict[str, Any]


class Refused(Exception):
    """Helm would not render; the message is what it printed."""


def template(helm: str, *arguments: str) -> str:
    """What `helm template` prints. Raises Refused."""
    run = subprocess.run(
        [tools.helm(helm), "template", RELEASE, CHART, "--namespace", NAMESPACE, *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if run.returncode:
        raise Refused(run.stderr)
    return run.stdout


def install(helm: str, api: FakeApi, *arguments: str) -> str:
    """What `helm install --dry-run=server` prints, asked of a stand-in API server. Raises Refused."""
    run = subprocess.run(
        [
            *(tools.helm(helm), "install", RELEASE, CHART, "--dry-run=server", "--disable-openapi-validation"),
            *("--kube-apiserver", api.url, "--namespace", NAMESPACE, *arguments),
        ],
        capture_output=True, text=True, timeout=300, check=False, env={"PATH": "", "HOME": "/nonexistent"},
    )  # fmt: skip
    if run.returncode:
        raise Refused(run.stderr)
    return run.stdout


@cache
def rendered(helm: str, values: Path) -> tuple[Manifest, ...]:
    """The manifests of one value set."""
    return parse(template(helm, "--values", str(values)))


def value_set(stem: str) -> Path:
    """A value set by the name of its file."""
    (found,) = (path for path in VALUES if path.stem == stem)
    return found


def parse(text: str) -> tuple[Manifest, ...]:
    return tuple(one for one in yaml.safe_load_all(text) if one)


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def name(manifest: Mapping[str, Any]) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def pods(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """(whose, pod template) of everything that makes pods."""
    for one in manifests:
        if one["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield name(one), one["spec"]["template"]
        elif one["kind"] == "Pod":
            yield name(one), one
        elif one["kind"] == "RayService":
            cluster = one["spec"]["rayClusterConfig"]
            yield f"{name(one)} head", cluster["headGroupSpec"]["template"]
            for group in cluster["workerGroupSpecs"]:
                yield f"{name(one)} group {group['groupName']}", group["template"]


def containers(pod: Manifest, *, init: bool = True) -> list[Manifest]:
    spec = pod["spec"]
    return [*(spec.get("initContainers", []) if init else []), *spec["containers"]]


def component_of(one: Manifest) -> str | None:
    """Which part of the fleet an object is of."""
    found: str | None = one["metadata"]["labels"].get("app.kubernetes.io/component")
    return found


def workloads(manifests: tuple[Manifest, ...], *components: str) -> list[Manifest]:
    """The Deployments, StatefulSets and Jobs of these components."""
    return [one for one in of_kind(manifests, "Deployment", "StatefulSet", "Job") if component_of(one) in components]


def main_container(manifests: tuple[Manifest, ...], component: str) -> Manifest:
    """The first container of the component's first workload."""
    for one in workloads(manifests, component):
        return dict(containers(one["spec"]["template"], init=False)[0])
    raise LookupError(f"no workload of {component}")


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def metric_names(expression: str) -> set[str]:
    """The names of our series that a query reads: metrics and recorded ones."""
    return set(re.findall(r"\btrieway[_:][a-zA-Z0-9_:]+", expression))


def rules() -> list[dict[str, Any]]:
    """Every rule of the chart."""
    groups = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> dict[str, str]:
    """Query by panel's title and letter."""
    import json

    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
