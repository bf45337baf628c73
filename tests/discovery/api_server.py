"""A small Kubernetes API server: EndpointSlices of one namespace, listed in pages and watched; faults on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
LABEL = "kubernetes.io/service-name"


def endpoint(
    ip: str,
    pod: str | None = None,
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
) -> dict[str, Any]:
    conditions = {"ready": ready, "serving": ready if serving is None else serving, "terminating": terminating}
    found: dict[str, Any] = {
        "addresses": [ip],
        "conditions": {name: value for name, value in conditions.items() if value is not None},
    }
    if pod is not None:
        found["targetRef"] = {"kind": "Pod", "name": pod, "uid": f"uid-of-{pod}"}
    return found


def endpoint_slice(
    name: str,
    endpoints: Iterable[Mapping[str, Any]] | None,
    *,
    service: str = "workers",
    ports: Iterable[Mapping[str, Any]] = ({"name": "metrics", "port": 9}, {"name": "http", "port": 8100}),
    kind: str = "IPv4",
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {LABEL: service}},
        "addressType": kind,
        "endpoints": None if endpoints is None else list(endpoints),
        "ports": list(ports),
    }


class ApiServer:
    """`put` and `drop` change the slices as a controller would. `page_items` splits lists; the rest are faults."""

    def __init__(self) -> None:
        self.version = 100
        self.slices: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[int, dict[str, Any]]] = []
        self.oldest = 0
        """Versions before this one are gone."""
        self.page_items: int | None = None
        self.status = 200
        self.forget_events = False
        self.silent_gone = False
        """Say 410 inside the watch, not as its status."""
        self.token: str | None = None
        self.lists = 0
        self.watches = 0
        self.open_watches = 0
        self.seen: list[web.BaseRequest] = []
        self._moved = asyncio.Event()
        self._cut: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.cut_watches()
        assert self._runner is not None
        await self._runner.cleanup()

    def put(self, each: dict[str, Any]) -> None:
        name = each["metadata"]["name"]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = each
        self._event(kind, each)

    def drop(self, name: str) -> None:
        self._event("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        self._event("BOOKMARK", {"metadata": {}})

    def compact(self) -> None:
        """Forgets the past: watches from before now get 410."""
        self.version += 1
        self.oldest = self.version

    def cut_watches(self) -> None:
        """Breaks every open watch, in the middle of whatever it says."""
        for task in tuple(self._cut):
            task.cancel()

    def _event(self, kind: str, each: dict[str, Any]) -> None:
        self.version += 1
        each["metadata"]["resourceVersion"] = str(self.version)
        if not self.forget_events:
            self.log.append((self.version, {"type": kind, "object": json.loads(json.dumps(each))}))
        self._moved.set()
        self._moved = asyncio.Event()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        assert request.match_info["namespace"] == "models"
        assert request.query["labelSelector"] == f"{LABEL}=workers"
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self.status != 200:
            return _status(self.status, "as told")
        return await (self._watch(request) if "watch" in request.query else self._list(request))

    async def _list(self, request: web.Request) -> web.Response:
        self.lists += 1
        names = sorted(name for name, each in self.slices.items() if each["metadata"]["labels"][LABEL] == "workers")
        start = int(request.query.get("continue", "0 /").split()[0])
        end = len(names) if self.page_items is None else start + self.page_items
        meta: dict[str, Any] = {"resourceVersion": str(self.version)}
        if end < len(names):
            meta["continue"] = f"{end} /+&="
        return web.json_response({"metadata": meta, "items": [self.slices[name] for name in names[start:end]]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        since = int(request.query["resourceVersion"])
        gone = since < self.oldest
        if gone and not self.silent_gone:
            return _status(410, "too old resource version")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        if gone:
            await response.write(_line({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "old"}}))
            return response
        task = asyncio.current_task()
        assert task is not None
        self._cut.add(task)
        self.open_watches += 1
        try:
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                while True:
                    moved = self._moved
                    for version, event in self.log:
                        if version > since:
                            since = version
                            await response.write(_line(event))
                    await moved.wait()
        except TimeoutError:
            return response
        finally:
            self._cut.discard(task)
            self.open_watches -= 1


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
