"""What the chart runs beside a fleet, started for real: the load test's Job and the keeper of deletion costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from trieway.loadgen.reports.files import read_report

from .chart import HELMS, NAMESPACE, Manifest, main_container, of_kind, rendered, value_set
from .fake_api import FakeApi, fake_api
from .fleet import MODEL, Fleet
from .outside import KEYS, Running, moved, start

pytestmark = [
    pytest.mark.helm,
    pytest.mark.model,
    pytest.mark.fleet,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("helms"),
]
SERVICE = f"http://prod-trieway-router.{NAMESPACE}.svc.cluster.local:80"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
COST = "controller.kubernetes.io/pod-deletion-cost"


def in_this_fleet(arguments: list[str], fleet: Fleet, reports: Path) -> list[str]:
    """A client's arguments, with the router's address and the places of its mounts."""
    assert SERVICE in arguments
    there = moved(arguments, host="", port=0, paths={"/etc/trieway/client": str(fleet.keys), "/reports": str(reports)})
    return [fleet.router.url if argument == SERVICE else argument for argument in there]


def load_pod() -> Manifest:
    (job,) = of_kind(rendered(HELMS[-1], value_set("load-run")), "Job")
    return dict(job["spec"]["template"])


def wait_ready(fleet: Fleet, reports: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """Runs the Job's init container; `changed`: arguments by what they are in the chart."""
    (container,) = load_pod()["spec"]["initContainers"]
    arguments = [changed.get(argument, argument) for argument in container["args"]]
    _, *flags = container["command"]
    command = [sys.executable, *flags, *in_this_fleet(arguments, fleet, reports)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_load_job_waits_drives_the_fleet_and_leaves_its_reports(fleet: Fleet, tmp_path: Path) -> None:
    (fleet.keys / "key").write_text((fleet.keys / "client-key").read_text())
    waited = wait_ready(fleet, tmp_path)
    assert waited.returncode == 0, waited.stderr
    assert MODEL in waited.stdout
    (container,) = load_pod()["spec"]["containers"]
    job = start(container, in_this_fleet(container["args"], fleet, tmp_path), "", tmp_path / "load.log")
    try:
        assert job.process.wait(180) == 0, job.text()[-3000:]
    finally:
        job.close()
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert re.fullmatch(r"[0-9a-f]{8}", folder.name), "a folder for each Job"
    report = read_report(folder / "report.json")
    assert report.requests.ok == report.requests.measured > 0
    assert (folder / "report.html").read_text().lstrip().lower().startswith("<!doctype html")
    assert str(folder / "report.json") in job.text(), "the log says where it is"
    assert "ttft" in job.text().lower(), "and what came out"
    for key in fleet.keys.iterdir():
        for text in (job.text(), waited.stdout, (folder / "report.json").read_text()):
            assert key.read_text() not in text


def test_a_load_job_that_waits_in_vain_says_what_for(fleet: Fleet, tmp_path: Path) -> None:
    (fleet.keys / "key").write_text((fleet.keys / "client-key").read_text())
    missing = wait_ready(fleet, tmp_path, **{MODEL: "another", "1800": "0"})
    assert missing.returncode == 1
    assert "is not ready after 0 s: not served: ['another']" in missing.stderr
    away = wait_ready(fleet, tmp_path, **{SERVICE: "http://127.0.0.1:9", "1800": "0"} | {MODEL: SERVICE})
    assert away.returncode == 1
    assert "refused" in away.stderr
    (fleet.keys / "key").write_text("a-key-that-nobody-knows")
    refused = wait_ready(fleet, tmp_path)
    assert refused.returncode == 1
    assert "refuses the API key" in refused.stderr
    assert "a-key-that-nobody-knows" not in refused.stderr


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as found:
        yield found


def pod(name: str, worker: Running, labels: dict[str, str]) -> dict[str, Any]:
    """The worker as the API server lists it, in a Deployment."""
    host, port = worker.url.removeprefix("http://").split(":")
    owner = {"kind": "ReplicaSet", "name": "x", "uid": "y", "controller": True}
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}", "labels": labels, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "worker", "ports": [{"name": "http", "containerPort": int(port)}]}]},
        "status": {"podIP": host, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_the_keeper_marks_the_worker_whose_cache_is_dear_and_ends_when_told_to(
    fleet: Fleet, api: FakeApi, tmp_path: Path
) -> None:
    for worker in fleet.workers:
        assert httpx.post(worker.url + "/cache/flush", headers=fleet.bearer("admin-key")).status_code == 200
    fleet.cached_tokens(fleet.workers[1], "A long text that only the second worker has seen. " * 200)
    manifests = rendered(HELMS[-1], value_set("deployments"))
    (labels,) = (
        one["spec"]["template"]["metadata"]["labels"]
        for one in of_kind(manifests, "Deployment")
        if one["metadata"]["name"] == f"prod-trieway-{MODEL}"
    )
    pods = [pod(f"pod-{index}", worker, labels) for index, worker in enumerate(fleet.workers)]
    api.objects[PODS] = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
    container = main_container(manifests, "deletion-costs")
    arguments = moved(container["args"], host="", port=0, paths={KEYS: str(fleet.keys)})
    keeper = start(container, [*arguments, f"--kubernetes-api={api.url}"], "", tmp_path / "keeper.log")
    try:
        until = time.monotonic() + 60
        while not api.patched and time.monotonic() < until:
            assert keeper.process.poll() is None, keeper.text()
            time.sleep(0.05)
        assert keeper.end() == 0
    finally:
        keeper.close()
    patch = {"metadata": {"uid": "uid-of-pod-1", "annotations": {COST: "1000"}}}
    assert api.patched == [(f"{PODS}/pod-1/status", patch)], "the empty one is cheap without a word"
    for line in keeper.text().splitlines():
        assert json.loads(line)["process"] == "deletion-costs"
    assert not [key for key in fleet.keys.iterdir() if key.read_text() in keeper.text()]
