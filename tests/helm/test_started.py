"""The rendered commands started for real, outside Kubernetes: they serve, their probes answer, they drain, and a real
Prometheus finds every series that rules and dashboard read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.verify.fleet import free_port

from .chart import (
    CHART,
    HELMS,
    NAMESPACE,
    VALUES,
    Manifest,
    dashboard_queries,
    main_container,
    metric_names,
    of_kind,
    rendered,
    rules,
)
from .fake_api import FakeApi, fake_api
from .outside import KEYS, Running, model_cache, moved, start, write_keys

pytestmark = [
    pytest.mark.helm,
    pytest.mark.model,
    pytest.mark.fleet,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("helms"),
]
MODEL = "smollm2-135m"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


@dataclass
class Fleet:
    """The release of a value set, outside Kubernetes. Workers have one port, each its own loopback address."""

    manifests: tuple[Manifest, ...]
    router: Running
    workers: list[Running]
    keys: Path

    @property
    def client(self) -> httpx.Client:
        key = (self.keys / "client-key").read_text()
        return httpx.Client(base_url=self.router.url, headers={"authorization": f"Bearer {key}"}, timeout=120.0)

    def worker_at(self, name: str) -> Running:
        """The worker that `x-trieway-worker` names."""
        (found,) = (one for one in self.workers if one.url.removeprefix("http://") in name)
        return found


def slices(hosts: list[str], port: int) -> dict[str, Any]:
    """What the API server lists for the workers' Service."""
    endpoints = [{"addresses": [host], "conditions": {"ready": True}, "targetRef": {"uid": host}} for host in hosts]
    one = {
        "metadata": {"name": "workers-1", "resourceVersion": "7"},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": port}],
    }
    return {"kind": "EndpointSliceList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [one]}


@pytest.fixture(scope="module")
def fleet(helms: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("release")
    manifests = rendered(HELMS[-1], next(path for path in VALUES if path.stem == "minimal"))
    (secret,) = of_kind(manifests, "Secret")
    write_keys(secret, folder / "keys")
    started: list[Running] = []
    with fake_api() as api:
        try:
            workers = _workers(manifests, folder, started)
            router = _router(manifests, folder, api, workers, started)
            yield Fleet(manifests, router, workers, folder / "keys")
        finally:
            for one in started:
                one.close()


def _workers(manifests: tuple[Manifest, ...], folder: Path, started: list[Running]) -> list[Running]:
    container = main_container(manifests, "StatefulSet", "worker")
    (workload,) = of_kind(manifests, "StatefulSet")
    port = free_port()
    cache = {KEYS: str(folder / "keys"), "/var/cache/trieway": model_cache()}
    for index in range(workload["spec"]["replicas"]):
        host = f"127.0.0.{index + 2}"
        arguments = moved(container["args"], host=host, port=port, paths=cache)
        started.append(start(container, arguments, f"http://{host}:{port}", folder / f"worker-{index}.log"))
    for one in started:
        one.wait_for("/readyz")
    return list(started)


def _router(
    manifests: tuple[Manifest, ...], folder: Path, api: FakeApi, workers: list[Running], started: list[Running]
) -> Running:
    hosts = [one.url.removeprefix("http://").split(":") for one in workers]
    api.objects[SLICES] = slices([host for host, _ in hosts], int(hosts[0][1]))
    container = main_container(manifests, "Deployment", "router")
    port = free_port()
    arguments = moved(container["args"], host="127.0.0.1", port=port, paths={KEYS: str(folder / "keys")})
    # What a pod finds in its environment and its ServiceAccount.
    arguments.append(f"--kubernetes-api={api.url}")
    started.append(start(container, arguments, f"http://127.0.0.1:{port}", folder / "router.log"))
    started[-1].wait_for("/readyz")
    assert SLICES in api.asked
    return started[-1]


def test_every_probe_path_of_the_chart_answers(fleet: Fleet) -> None:
    asked = set()
    for kind, component, running in (
        ("Deployment", "router", [fleet.router]),
        ("StatefulSet", "worker", fleet.workers),
    ):
        container = main_container(fleet.manifests, kind, component)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = container[probe]["httpGet"]["path"]
            for one in running:
                answer = httpx.get(one.url + path, timeout=container[probe]["timeoutSeconds"])
                assert answer.status_code == 200, f"{component} {probe} {path}: {answer.status_code}"
                asked.add((component, path))
    assert asked == {("router", "/livez"), ("router", "/readyz"), ("worker", "/livez"), ("worker", "/readyz")}


def test_the_router_finds_every_worker_of_the_service(fleet: Fleet) -> None:
    admin = (fleet.keys / "admin-key").read_text()
    rows = httpx.get(fleet.router.url + "/workers", headers={"authorization": f"Bearer {admin}"}).json()["workers"]
    assert {row["url"] for row in rows} == {one.url for one in fleet.workers}
    assert {row["state"] for row in rows} == {"up"}


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
            capture_output=True, text=True, timeout=120, check=False,
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


def cached_tokens(fleet: Fleet, worker: Running, prompt: str) -> int:
    """How much of a prompt one worker reuses, asked directly."""
    key = (fleet.keys / "client-key").read_text()
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(worker.url + "/v1/completions", json=body, headers=headers, timeout=120.0)
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def hook(fleet: Fleet, values: str, kind: str, worker: Running) -> subprocess.CompletedProcess[str]:
    """Runs a worker's hook as the chart renders it for a value set, with this fleet's addresses."""
    manifests = rendered(HELMS[-1], next(path for path in VALUES if path.stem == values))
    command = main_container(manifests, "StatefulSet", "worker")["lifecycle"][kind]["exec"]["command"]
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
        [sys.executable, *there], capture_output=True, text=True, timeout=120, check=False, env=environ
    )


@pytest.mark.parametrize(("kind", "values", "giver"), [("preStop", "minimal", 0), ("postStart", "gpu", 1)])
def test_hooks_pass_prefixes_to_the_workers_that_stay_and_to_those_that_come(
    fleet: Fleet, kind: str, values: str, giver: int
) -> None:
    taker = 1 - giver
    prompt = f"A long text that only worker {giver} has seen. " * 20
    assert cached_tokens(fleet, fleet.workers[giver], prompt) < 20, "but for its first words"
    # The one that leaves gives; the one that comes asks the others to give.
    done = hook(fleet, values, kind, fleet.workers[0])
    assert done.returncode == 0, done.stderr
    assert "gave" in done.stdout
    assert "nothing" not in done.stdout
    assert cached_tokens(fleet, fleet.workers[taker], prompt) > 100


def test_the_load_job_drives_the_fleet_and_leaves_its_reports(fleet: Fleet, tmp_path: Path) -> None:
    manifests = rendered(HELMS[-1], next(path for path in VALUES if path.stem == "load-run"))
    container = main_container(manifests, "Job", "client")
    (fleet.keys / "key").write_text((fleet.keys / "client-key").read_text())
    paths = {"/etc/trieway/client": str(fleet.keys), "/reports": str(tmp_path)}
    service = "http://prod-trieway-router.llm.svc.cluster.local:80"
    assert service in container["args"]
    arguments = [
        fleet.router.url if argument == service else argument
        for argument in moved(container["args"], host="", port=0, paths=paths)
    ]
    job = start(container, arguments, "", tmp_path / "load.log")
    try:
        assert job.process.wait(180) == 0, job.text()[-3000:]
    finally:
        job.close()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] or report["version"]
    assert (tmp_path / "report.html").read_text().lstrip().lower().startswith("<!doctype html")
    for key in fleet.keys.iterdir():
        assert key.read_text() not in (tmp_path / "report.json").read_text()


@dataclass
class Prometheus:
    """A real one that scrapes the fleet."""

    url: str

    def ask(self, path: str, **query: str) -> Any:
        answer = httpx.get(self.url + "/api/v1/" + path, params=query, timeout=30.0)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def names(self) -> set[str]:
        return set(self.ask("label/__name__/values"))


def scrape_config(fleet: Fleet) -> dict[str, Any]:
    """What the Prometheus operator would make of the chart's ServiceMonitors, with the fleet's addresses."""
    everything = rendered(HELMS[-1], next(path for path in VALUES if path.stem == "everything"))
    jobs = []
    for monitor in of_kind(everything, "ServiceMonitor"):
        component = monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        (endpoint,) = monitor["spec"]["endpoints"]
        running = [fleet.router] if component == "router" else fleet.workers
        labels = {"namespace": NAMESPACE, "service": monitor["metadata"]["name"]}
        if component == "worker":
            (relabel,) = endpoint["relabelings"]
            labels |= {relabel["targetLabel"]: MODEL}
        jobs.append(
            {
                "job_name": component,
                "metrics_path": endpoint["path"],
                "static_configs": [
                    {"targets": [one.url.removeprefix("http://")], "labels": labels | {"pod": f"{component}-{index}"}}
                    for index, one in enumerate(running)
                ],
            }
        )
    return {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(CHART / "files" / "rules.yaml")],
        "scrape_configs": jobs,
    }


@pytest.fixture
def scraping(fleet: Fleet, prometheus: Path, tmp_path: Path) -> Iterator[Prometheus]:
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump(scrape_config(fleet)))
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
    try:
        Running(process, f"http://127.0.0.1:{port}", tmp_path / "log").wait_for("/-/ready", 60)
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait(30)


def complete(fleet: Fleet, prompt: str, max_tokens: int = 24) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    with fleet.client as client:
        return client.post("/v1/completions", json=body)


def break_a_stream(fleet: Fleet) -> str:
    """Kills the worker of a running stream, with other requests running beside; returns the stream's text."""
    answers: list[int] = []
    # They go where the stream's prefix is.
    shared = "Once upon a time there was a worker whose end nobody noticed. " * 24
    others = [
        threading.Thread(
            target=lambda n=n: answers.append(complete(fleet, f"{shared}{n} is a number that", 96).status_code)
        )
        for n in range(6)
    ]
    text = ""
    body = {"model": MODEL, "prompt": shared, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with fleet.client as client, client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        for one in others:
            one.start()
        time.sleep(1.0)
        fleet.worker_at(answer.headers["x-trieway-worker"]).kill()
        text = "".join(answer.iter_text())
    for one in others:
        one.join(120)
    assert answers == [200] * len(others), "requests without a stream go to another worker"
    return text


def test_every_series_of_rules_and_dashboard_is_in_a_real_scrape(fleet: Fleet, scraping: Prometheus) -> None:
    for index in range(4):
        assert complete(fleet, f"A prefix that is shared by all, {index}").status_code == 200
    assert "error" in break_a_stream(fleet)
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    queries = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()} | dashboard_queries()
    wanted = {name for query in queries.values() for name in metric_names(query)}
    # Ratios of failures have no series while nothing fails.
    wanted -= {name for name, query in recorded.items() if "code=" in query}
    until = time.monotonic() + 60
    while wanted - scraping.names() and time.monotonic() < until:
        time.sleep(1.0)
    health = {
        one["labels"]["pod"]: (one["health"], one["lastError"]) for one in scraping.ask("targets")["activeTargets"]
    }
    assert not wanted - scraping.names(), f"missing: {sorted(wanted - scraping.names())}; targets: {health}"
    for query in queries.values():
        asked = query.replace("$namespace", NAMESPACE).replace("$__rate_interval", "1m")
        assert scraping.ask("query", query=asked)["resultType"] == "vector"
    for group in scraping.ask("rules")["groups"]:
        for rule in group["rules"]:
            assert rule["health"] in {"ok", "unknown"}, rule


def test_kedas_queries_count_this_fleets_requests(fleet: Fleet, scraping: Prometheus) -> None:
    everything = rendered(HELMS[-1], next(path for path in VALUES if path.stem == "everything"))
    queries = [
        trigger["metadata"]["query"]
        for scaled in of_kind(everything, "ScaledObject")
        if scaled["metadata"]["labels"]["trieway.dev/model"] == MODEL
        for trigger in scaled["spec"]["triggers"]
    ]
    assert len(queries) == 2
    until = time.monotonic() + 30
    for query in queries:
        while not (found := scraping.ask("query", query=query)["result"]) and time.monotonic() < until:
            time.sleep(0.5)
        (one,) = found
        assert float(one["value"][1]) >= 0.0


def test_a_stream_ends_whole_while_its_worker_and_its_router_are_told_to_go(fleet: Fleet) -> None:
    body = {"model": MODEL, "prompt": "In the beginning", "max_tokens": 120, "ignore_eos": True, "stream": True}
    codes: list[int] = []
    with fleet.client as client, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        worker = fleet.worker_at(answer.headers["x-trieway-worker"])
        ends = [threading.Thread(target=lambda one=one: codes.append(one.end())) for one in (worker, fleet.router)]
        for one in ends:
            one.start()
        rest = [line for line in lines if line]
    for one in ends:
        one.join(60)
    assert rest[-1] == "data: [DONE]"
    assert not [line for line in rest if "error" in line]
    assert codes == [0, 0]
