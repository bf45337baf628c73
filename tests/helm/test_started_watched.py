"""A real Prometheus watches the fleet and finds every series that rules and dashboard read; then workers are killed and
told to go, and streams end as they should. Runs last of all that uses the fleet: it ends it."""

from __future__ import annotations

import json
import os
import subprocess
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

from .chart import CHART, HELMS, NAMESPACE, dashboard_queries, metric_names, of_kind, rendered, rules, value_set
from .fleet import MODEL, Fleet
from .outside import Running

pytestmark = [
    pytest.mark.helm,
    pytest.mark.model,
    pytest.mark.fleet,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("helms"),
]


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
    everything = rendered(HELMS[-1], value_set("everything"))
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


def break_a_stream(fleet: Fleet) -> str:
    """Kills the worker of a running stream, with other requests running beside; returns the stream's text."""
    answers: list[int] = []
    # They go where the stream's prefix is.
    shared = "Once upon a time there was a worker whose end nobody noticed. " * 24
    others = [
        threading.Thread(
            target=lambda n=n: answers.append(fleet.complete(f"{shared}{n} is a number that", 96).status_code)
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
        assert fleet.complete(f"A prefix that is shared by all, {index}").status_code == 200
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
    everything = rendered(HELMS[-1], value_set("everything"))
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
    chunks = [json.loads(line.removeprefix("data: ")) for line in rest[:-1]]
    assert not [chunk for chunk in chunks if "error" in chunk]
    assert codes == [0, 0]
