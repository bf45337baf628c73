"""The probes of mode kuberay answer on a real Ray node that is started with the chart's own parameters."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ray.cluster import ENVIRONMENT, end_all
from tests.verify.fleet import free_port

from .chart import HELMS, containers, of_kind, rendered, value_set

pytestmark = [pytest.mark.helm, pytest.mark.timeout(300), pytest.mark.usefixtures("helms")]
HOST = "127.0.0.9"


@dataclass
class Node:
    """A head. `ports`: what the chart's ports are here."""

    ports: dict[int, int]


def cluster_config() -> dict[str, Any]:
    (service,) = of_kind(rendered(HELMS[-1], value_set("kuberay")), "RayService")
    found: dict[str, Any] = service["spec"]["rayClusterConfig"]
    return found


@pytest.fixture(scope="module")
def node(helms: None) -> Iterator[Node]:
    pytest.importorskip("ray", reason="Ray is not installed: the probes of mode kuberay were not asked")
    folder = Path(tempfile.mkdtemp(prefix="tw-"))
    ports = {6379: free_port(), 8265: free_port(), 52365: free_port()}
    said = cluster_config()["headGroupSpec"]["rayStartParams"]
    flags = [f"--{name}={value}" for name, value in said.items() if name != "dashboard-host"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | ENVIRONMENT
    environment |= {"FLEET_TEST_MARK": folder.name, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [
        *("ray", "start", "--head", *flags, f"--node-ip-address={HOST}", f"--dashboard-host={HOST}"),
        *(f"--port={ports[6379]}", f"--dashboard-port={ports[8265]}", f"--dashboard-agent-listen-port={ports[52365]}"),
        *(f"--temp-dir={folder}", f"--ray-client-server-port={free_port()}", "--object-store-memory=80000000"),
        "--disable-usage-stats",
    ]
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        yield Node(ports)
    finally:
        end_all(folder.name)
        shutil.rmtree(folder, ignore_errors=True)


def answers(node: Node, probe: dict[str, Any], named: dict[str, int]) -> int:
    """The status of a probe's path, asked as often as the probe would be."""
    asked = probe["httpGet"]
    port = named.get(asked["port"], asked["port"])
    status = 0
    for _ in range(probe["failureThreshold"]):
        try:
            status = httpx.get(f"http://{HOST}:{node.ports[port]}{asked['path']}", timeout=5.0).status_code
        except httpx.TransportError:
            status = 0
        if status == 200:
            break
        time.sleep(1.0)
    return status


def test_every_probe_of_ray_nodes_answers(node: Node) -> None:
    config = cluster_config()
    asked = set()
    for group in (config["headGroupSpec"], *config["workerGroupSpecs"]):
        container = containers(group["template"], init=False)[0]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(kind)
            if probe is None or probe["httpGet"]["path"] == "/readyz":
                continue  # the router's own, asked of a real one in test_started.py
            assert answers(node, probe, named) == 200, f"{container['name']}: {kind}"
            asked.add(probe["httpGet"]["path"])
    assert asked == {"/api/gcs_healthz", "/api/local_raylet_healthz"}


def test_ray_takes_the_start_parameters_of_every_group() -> None:
    """KubeRay makes flags of them, for a shell: what is quoted for it must be what Ray reads."""
    pytest.importorskip("ray", reason="Ray is not installed: rayStartParams were not checked")
    from ray.scripts.scripts import start

    known = {option.lstrip("-") for parameter in start.params for option in parameter.opts}
    config = cluster_config()
    for group in (config["headGroupSpec"], *config["workerGroupSpecs"]):
        assert set(group["rayStartParams"]) <= known
        if "resources" in group["rayStartParams"]:
            (read,) = shlex.split(group["rayStartParams"]["resources"])
            assert set(json.loads(read).values()) == {1}
