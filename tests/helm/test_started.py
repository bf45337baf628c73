"""The rendered commands started for real, outside Kubernetes: they serve, probes answer, hooks pass prefixes on.

What runs beside a fleet is in test_started_beside.py; what watches it, and ends it, in test_started_watched.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import httpx
import pytest

from .chart import HELMS, NAMESPACE, main_container, of_kind, rendered, value_set
from .fleet import MODEL, Fleet
from .outside import KEYS, Running, moved

pytestmark = [
    pytest.mark.helm,
    pytest.mark.model,
    pytest.mark.fleet,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("helms"),
]


def test_every_probe_path_of_the_chart_answers(fleet: Fleet) -> None:
    asked = set()
    for component, running in (("router", [fleet.router]), ("worker", fleet.workers)):
        container = main_container(fleet.manifests, component)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = container[probe]["httpGet"]["path"]
            for one in running:
                answer = httpx.get(one.url + path, timeout=container[probe]["timeoutSeconds"])
                assert answer.status_code == 200, f"{component} {probe} {path}: {answer.status_code}"
                asked.add((component, path))
    assert asked == {("router", "/livez"), ("router", "/readyz"), ("worker", "/livez"), ("worker", "/readyz")}


def test_the_router_finds_every_worker_of_the_service(fleet: Fleet) -> None:
    rows = httpx.get(fleet.router.url + "/workers", headers=fleet.bearer("admin-key")).json()["workers"]
    assert {row["url"] for row in rows} == {one.url for one in fleet.workers}
    assert states(fleet) == {"up"}


def test_nobody_is_served_without_a_key(fleet: Fleet) -> None:
    for url in (fleet.router.url, fleet.workers[0].url):
        answer = httpx.post(url + "/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 1})
        assert answer.status_code == 401


def test_what_helm_test_runs_passes_and_fails_when_a_model_is_missing(fleet: Fleet) -> None:
    (pod,) = of_kind(fleet.manifests, "Pod")
    container = pod["spec"]["containers"][0]
    script, url, key_file, *models = container["args"]
    assert url == f"http://prod-trieway-router.{NAMESPACE}.svc.cluster.local:80"
    assert key_file == "/etc/trieway/client/key"
    assert models == [MODEL]

    def run(*names: str) -> subprocess.CompletedProcess[str]:
        _, *flags = container["command"]
        return subprocess.run(
            [sys.executable, *flags, script, fleet.router.url, fleet.keys / "client-key", *names],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    good = run(*models)
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith(f"{MODEL}: ")
    bad = run("another")
    assert bad.returncode == 1
    assert "another is not served yet" in bad.stderr


def test_logs_are_json_and_hold_no_key(fleet: Fleet) -> None:
    keys = [path.read_text() for path in fleet.keys.iterdir()]
    for one in (fleet.router, *fleet.workers):
        text = one.text()
        assert not [key for key in keys if key in text]
        for line in text.splitlines():
            if not line.startswith("trieway "):
                assert json.loads(line)["level"]


def hook(fleet: Fleet, values: str, kind: str, worker: Running) -> subprocess.CompletedProcess[str]:
    """Runs a worker's hook as the chart renders it for a value set, with this fleet's addresses."""
    manifests = rendered(HELMS[-1], value_set(values))
    command = main_container(manifests, "worker")["lifecycle"][kind]["exec"]["command"]
    address, port = worker.url.removeprefix("http://").split(":")
    peers = [one.url.removeprefix("http://").split(":")[0] for one in fleet.workers]
    assert command[0] == "python"
    assert f"--peers=prod-trieway-{MODEL}.{NAMESPACE}.svc.cluster.local" in command
    there = [
        *(
            part
            for part in moved(command[1:], host="", port=int(port), paths={KEYS: str(fleet.keys)})
            if "peers" not in part
        ),
        *("--peers", *peers),
    ]
    environ = {"PATH": os.environ["PATH"], "POD_IP": address}
    return subprocess.run(
        [sys.executable, *there], capture_output=True, text=True, timeout=300, check=False, env=environ
    )


def test_a_pod_that_comes_is_given_prefixes(fleet: Fleet) -> None:
    prompt = "A long text that only the second worker has seen. " * 20
    assert fleet.cached_tokens(fleet.workers[1], prompt) < 20, "but for its first words"
    done = hook(fleet, "gpu", "postStart", fleet.workers[0])
    assert done.returncode == 0, done.stderr
    assert "gave" in done.stdout
    assert "nothing" not in done.stdout
    assert fleet.cached_tokens(fleet.workers[0], prompt) > 100


def test_a_pod_that_goes_gives_its_prefixes_and_then_turns_away(fleet: Fleet) -> None:
    leaving, stays = fleet.workers
    prompt = "A long text that only the first worker has seen. " * 20
    assert fleet.cached_tokens(leaving, prompt) < 20, "but for its first words"
    done = hook(fleet, "minimal", "preStop", leaving)
    assert done.returncode == 0, done.stderr
    assert "gave" in done.stdout
    assert fleet.cached_tokens(stays, prompt) > 100
    assert httpx.get(leaving.url + "/readyz").status_code == 503
    answers = [fleet.complete(f"{turn} more", max_tokens=1) for turn in range(4)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-trieway-worker"] for answer in answers} == {stays.url.removeprefix("http://")}
    leaving.restart()
    deadline = time.monotonic() + 60
    while states(fleet) != {"up"}:
        assert time.monotonic() < deadline, "the router knows it again"
        time.sleep(0.1)


def states(fleet: Fleet) -> set[str]:
    """Of all workers, as the router sees them."""
    rows = httpx.get(fleet.router.url + "/workers", headers=fleet.bearer("admin-key")).json()["workers"]
    return {row["state"] for row in rows}
