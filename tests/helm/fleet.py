"""A release outside Kubernetes: the chart's own commands with real workers and a router that finds them through a
stand-in for the API server. Started once for all tests of the chart that need it (the fixture `fleet`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.verify.fleet import free_port

from .chart import NAMESPACE, Manifest, main_container, workloads
from .fake_api import FakeApi
from .outside import KEYS, Running, model_cache, moved, start

MODEL = "smollm2-135m"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


@dataclass
class Fleet:
    """The release of a value set. Workers have one port, each its own loopback address."""

    manifests: tuple[Manifest, ...]
    router: Running
    workers: list[Running]
    keys: Path

    @property
    def client(self) -> httpx.Client:
        """Shows the client's key to the router."""
        return httpx.Client(base_url=self.router.url, headers=self.bearer("client-key"), timeout=120.0)

    def bearer(self, key: str) -> dict[str, str]:
        """The header that shows a key, by the name of its file."""
        return {"authorization": f"Bearer {(self.keys / key).read_text()}"}

    def worker_at(self, name: str) -> Running:
        """The worker that `x-trieway-worker` names."""
        (found,) = (one for one in self.workers if one.url.removeprefix("http://") in name)
        return found

    def complete(self, prompt: str, max_tokens: int = 24) -> httpx.Response:
        """A completion through the router."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        with self.client as client:
            return client.post("/v1/completions", json=body)

    def cached_tokens(self, worker: Running, prompt: str) -> int:
        """How much of a prompt one worker reuses, asked directly; it holds all of it afterwards."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        answer = httpx.post(worker.url + "/v1/completions", json=body, headers=self.bearer("client-key"), timeout=120.0)
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def start_fleet(manifests: tuple[Manifest, ...], folder: Path, api: FakeApi, started: list[Running]) -> Fleet:
    """Every worker and a router; each process is in `started` from its first moment on."""
    workers = _workers(manifests, folder, started)
    return Fleet(manifests, _router(manifests, folder, api, workers, started), workers, folder / "keys")


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


def _workers(manifests: tuple[Manifest, ...], folder: Path, started: list[Running]) -> list[Running]:
    container = main_container(manifests, "worker")
    (workload,) = workloads(manifests, "worker")
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
    container = main_container(manifests, "router")
    port = free_port()
    arguments = moved(container["args"], host="127.0.0.1", port=port, paths={KEYS: str(folder / "keys")})
    # What a pod finds in its environment and its ServiceAccount.
    arguments.append(f"--kubernetes-api={api.url}")
    started.append(start(container, arguments, f"http://127.0.0.1:{port}", folder / "router.log"))
    started[-1].wait_for("/readyz")
    assert SLICES in api.asked
    return started[-1]
