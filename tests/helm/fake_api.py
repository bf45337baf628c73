"""Enough of a Kubernetes API server for Helm, a router and the keeper of deletion costs: versions, discovery, objects
by path, EndpointSlices, patches that are kept as they came.

Answers 404 for what it does not hold, so that Helm takes objects for new ones. A watch tells nothing until it ends:
what changes, and what patches do, is tested with the stand-ins of tests/discovery. Does not validate or admit anything.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GROUPS: dict[str, dict[str, str]] = {
    "v1": {
        "Secret": "secrets", "ConfigMap": "configmaps", "Service": "services", "Pod": "pods",
        "ServiceAccount": "serviceaccounts", "PersistentVolumeClaim": "persistentvolumeclaims",
        "Namespace": "namespaces",
    },
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets"},
    "batch/v1": {"Job": "jobs"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "networking.k8s.io/v1": {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"},
    "rbac.authorization.k8s.io/v1": {"Role": "roles", "RoleBinding": "rolebindings"},
    "keda.sh/v1alpha1": {"ScaledObject": "scaledobjects"},
    "monitoring.coreos.com/v1": {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"},
    "gateway.networking.k8s.io/v1": {"HTTPRoute": "httproutes"},
    "ray.io/v1": {"RayService": "rayservices"},
}  # fmt: skip


@dataclass
class FakeApi:
    """`url` to reach it; `objects` by path, such as `/api/v1/namespaces/llm/secrets/keys`."""

    url: str
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    patched: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@contextmanager
def fake_api(minor: int = 33) -> Iterator[FakeApi]:
    """Serves on loopback until the block ends."""
    holder: list[FakeApi] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].rstrip("/")
            holder[0].asked.append(path)
            if path.endswith("/endpointslices") and "watch=1" in self.path:
                self.send_response(200)
                self.send_header("connection", "close")
                self.end_headers()
                ended.wait(60)
                self.close_connection = True
                return
            found = _answer(path, holder[0].objects, minor)
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            data = json.dumps(status if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            holder[0].patched.append((self.path.partition("?")[0], body))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    holder.append(FakeApi(f"http://127.0.0.1:{server.server_address[1]}"))
    ended = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield holder[0]
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(path: str, objects: dict[str, dict[str, Any]], minor: int) -> dict[str, Any] | None:
    if path == "/version":
        return {"major": "1", "minor": str(minor), "gitVersion": f"v1.{minor}.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(one) for one in GROUPS if "/" in one]}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version in GROUPS:
        return {"kind": "APIResourceList", "groupVersion": version, "resources": _resources(GROUPS[version])}
    if path in objects:
        return objects[path]
    if path.endswith("/secrets"):
        return {"kind": "SecretList", "apiVersion": "v1", "items": []}
    return None


def _group(version: str) -> dict[str, Any]:
    one = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": version.partition("/")[0], "versions": [one], "preferredVersion": one}


def _resources(kinds: dict[str, str]) -> list[dict[str, Any]]:
    verbs = ["get", "list", "create", "update", "patch", "delete", "watch"]
    return [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "verbs": verbs, "namespaced": kind != "Namespace"}
        for kind, plural in kinds.items()
    ]
