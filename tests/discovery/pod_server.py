"""A small Kubernetes API server for pods: listed in pages, patched through their status; rights and faults on request.

Does as the real one where it matters here: a patch merges, a changed uid is invalid, a patch of the status leaves the
spec alone, what the Role does not give is forbidden.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

NAMESPACE = "models"
SELECTOR = "app=trieway,part=worker"
COST = "controller.kubernetes.io/pod-deletion-cost"
Rights = set[tuple[str, str]]


def pod(
    name: str,
    url: str,
    *,
    model: str = "m",
    cost: str | None = None,
    ready: bool = True,
    owner: str = "ReplicaSet",
    leaving: bool = False,
) -> dict[str, Any]:
    """A pod of a worker at `url` (http://host:port), as the API server shows it."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    metadata: dict[str, Any] = {
        "name": name,
        "uid": f"uid-of-{name}",
        "resourceVersion": "1",
        "labels": {"app": "trieway", "part": "worker", "trieway.dev/model": model},
        "ownerReferences": [{"kind": owner, "name": "x", "uid": "y", "controller": True}],
    }
    if cost is not None:
        metadata["annotations"] = {COST: cost, "other": "stays"}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {
            "containers": [
                {"name": "proxy", "image": "proxy:1"},
                {"name": "worker", "ports": [{"name": "http", "containerPort": int(port)}]},
            ]
        },
        "status": {
            "podIP": host.strip("[]"),
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
        },
    }


class PodServer:
    """`pods` by name. `rights`: what the caller may do; `status`: answer everything with this code, if not 0."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.rights: Rights = {("list", "pods"), ("patch", "pods/status")}
        self.page_items = 500
        self.status = 0
        self.conflicts = 0
        """So many patches meet somebody else's."""
        self.vanish: set[str] = set()
        """Pods that go between being listed and being patched."""
        self.renewed: set[str] = set()
        """Pods in whose place another of the same name comes in between."""
        self.lists = 0
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    def put(self, *pods: dict[str, Any]) -> None:
        self.pods |= {one["metadata"]["name"]: one for one in pods}

    def cost(self, name: str) -> str | None:
        """What is written at a pod."""
        found: str | None = self.pods[name]["metadata"].get("annotations", {}).get(COST)
        return found

    def costs(self) -> dict[str, str | None]:
        return {name: self.cost(name) for name in self.pods}

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._list)
        app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{name}/status", self._patch)
        app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{name}", self._patch)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def _refusal(self, request: web.Request, verb: str, resource: str) -> web.Response | None:
        assert request.match_info["namespace"] == NAMESPACE
        if self.status:
            return _status(self.status, "as told")
        if (verb, resource) not in self.rights:
            return _status(403, f'pods is forbidden: cannot {verb} resource "{resource}"')
        return None

    async def _list(self, request: web.Request) -> web.Response:
        if refused := self._refusal(request, "list", "pods"):
            return refused
        assert request.query["labelSelector"] == SELECTOR
        self.lists += 1
        names = sorted(self.pods)
        start = int(request.query.get("continue", "0"))
        end = start + min(self.page_items, int(request.query["limit"]))
        metadata = {"resourceVersion": "7"} | ({"continue": str(end)} if end < len(names) else {})
        return web.json_response(
            {"kind": "PodList", "metadata": metadata, "items": [self.pods[n] for n in names[start:end]]}
        )

    async def _patch(self, request: web.Request) -> web.Response:
        resource = "pods/status" if request.path.endswith("/status") else "pods"
        if refused := self._refusal(request, "patch", resource):
            return refused
        assert request.content_type == "application/merge-patch+json"
        name, patch = request.match_info["name"], json.loads(await request.read())
        self.patches.append((name, patch))
        if name in self.renewed:
            self.pods[name]["metadata"]["uid"] = "another"
        if name in self.vanish or name not in self.pods:
            self.pods.pop(name, None)
            return _status(404, f'pods "{name}" not found')
        if self.conflicts:
            self.conflicts -= 1
            return _status(409, "the object has been modified; please apply your changes to the latest version")
        metadata = self.pods[name]["metadata"]
        if patch["metadata"].get("uid", metadata["uid"]) != metadata["uid"]:
            return _status(422, "metadata.uid: Invalid value: field is immutable")
        assert patch.keys() == {"metadata"}, "nothing but metadata is written"
        metadata["annotations"] = metadata.get("annotations", {}) | patch["metadata"]["annotations"]
        return web.json_response(self.pods[name])


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
