"""The control plane: registry, explain, tree, models, probes, metrics, dashboard.

Keeps true: probes and metrics are open, admin routes need the admin key once one is configured, everything else needs
an API key once keys exist; every error has OpenAI's shape. Does not know the hot path, which stands in front (asgi.py).
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from trieway.meta_tree.ids import WorkerId
from trieway.router import dashboard, listing
from trieway.router.core import Readiness, RouterCore
from trieway.router.explain import explain
from trieway.router.hot_path import HOT_PATHS, HotRequest
from trieway.router.links import Links
from trieway.router.metrics import CONTENT_TYPE, RouterMetrics
from trieway.router.pass_on import PassOn
from trieway.router.questions import Asker, header_map, request_id
from trieway.router.registry import Registry
from trieway.serving.auth import KeyRing
from trieway.serving.errors import ApiError, BadRequest, NotFound, Unauthorized
from trieway.serving.http import BodyLimit, install_error_handlers

TREE_DEPTH_MAX = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """All that the control plane looks at and works on."""

    core: RouterCore
    links: Links
    registry: Registry
    asker: Asker
    pass_on: PassOn
    ring: KeyRing
    metrics: RouterMetrics
    body_max_bytes: int
    began_at: float
    clock: Callable[[], float] = time.monotonic

    def readiness(self) -> Readiness:
        return listing.readiness(self.core, self.links, self.began_at, self.clock())

    def workers(self) -> list[dict[str, Any]]:
        return listing.workers(self.core, self.links, self.clock())


def build_app(control: Control) -> Any:
    """The ASGI app, with the bound on bodies around it."""
    app = FastAPI(title="Trieway router", version="1", docs_url="/docs", redoc_url=None)
    install_error_handlers(app)
    _probes(app, control)
    _registry(app, control)
    _questions(app, control)
    return BodyLimit(app, control.body_max_bytes)


def _probes(app: FastAPI, control: Control) -> None:
    @app.get("/livez")
    async def livez() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """200 once some worker is up and enough of the fleet's index is loaded; the share is told either way."""
        ready = control.readiness()
        told = {
            "status": "ready" if ready.ready else "not ready",
            "index_share": round(ready.share, 4),
            "workers": ready.workers,
            "up": ready.up,
            "reason": ready.reason,
        }
        return JSONResponse(told, 200 if ready.ready else 503)

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while any worker is up."""
        ready = control.readiness()
        told = {"status": "ok" if ready.up else "no worker", "workers": ready.workers, "up": ready.up}
        return JSONResponse(told, 200 if ready.up else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(control.metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/", response_class=HTMLResponse)
    async def table(request: Request) -> HTMLResponse:
        readiness = control.readiness()
        try:
            control.ring.require_admin(_basic_as_bearer(_headers(request)))
        except ApiError:
            asks = {"www-authenticate": 'Basic realm="Trieway admin key as the password"'}
            return HTMLResponse(dashboard.page(readiness, None), 401, asks)
        return HTMLResponse(dashboard.page(readiness, control.workers()))


def _registry(app: FastAPI, control: Control) -> None:
    @app.get("/workers")
    async def workers(request: Request) -> dict[str, Any]:
        control.ring.require_admin(_headers(request))
        return {"workers": control.workers()}

    @app.post("/workers")
    async def add_worker(request: Request) -> JSONResponse:
        """Body: {"url": ...}. 201 for a new worker, 200 for one that is known."""
        control.ring.require_admin(_headers(request))
        try:
            url = msgspec.json.decode(await request.body(), type=_NewWorker).url
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadRequest('the body is {"url": "http://host:port"}', param="url") from None
        before = len(control.links)
        link = control.registry.add(url)
        return JSONResponse({"id": link.worker, "url": link.url}, 201 if len(control.links) > before else 200)

    @app.delete("/workers/{worker:path}")
    async def remove_worker(request: Request, worker: str, drain: bool = False) -> JSONResponse:
        """Forgets a worker; with `?drain=true` once its running requests are done."""
        control.ring.require_admin(_headers(request))
        if control.links.find(worker) is None:
            raise NotFound("no such worker: GET /workers lists them", param="id")
        if drain:
            control.registry.drain(WorkerId(worker))
            return JSONResponse({"id": worker, "status": "draining"}, 202)
        control.registry.remove(WorkerId(worker))
        return JSONResponse({"id": worker, "status": "removed"})

    @app.get("/tree")
    async def tree(request: Request, depth: int | None = None) -> dict[str, Any]:
        """Summary of the meta-tree; `?depth=` adds a bounded dump of hashes and counts."""
        control.ring.require_admin(_headers(request))
        if depth is not None and not 0 <= depth <= TREE_DEPTH_MAX:
            raise BadRequest(f"depth is 0 to {TREE_DEPTH_MAX}", param="depth")
        return listing.tree(control.core, control.links, depth, control.clock())


def _questions(app: FastAPI, control: Control) -> None:
    for path in HOT_PATHS:
        # For the API's description, and so that other methods are told apart from unknown paths.
        app.add_api_route(path, _served_in_front, methods=["POST"])

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        control.ring.principal(_headers(request))
        return listing.models(control.links)

    @app.get("/v1/models/{model:path}")
    async def model(request: Request, model: str) -> dict[str, Any]:
        control.ring.principal(_headers(request))
        for entry in listing.models(control.links)["data"]:
            if entry["id"] == model:
                return dict(entry)
        raise NotFound.model(model)

    @app.post("/explain")
    async def explain_route(request: Request) -> dict[str, Any]:
        """Takes a completion or chat body; says which worker it would go to and why."""
        hot = await _hot_request(request)
        question = await control.asker.ask(hot, request_id(hot.headers))
        return explain(control.core, question, control.clock())

    @app.post("/tokenize")
    @app.post("/detokenize")
    async def pass_on(request: Request) -> Response:
        """Passed on to a worker of the model."""
        hot = await _hot_request(request)
        principal = control.ring.principal(header_map(hot.headers))
        status, headers, body = await control.pass_on.send(hot, principal)
        response = Response(body, status)
        response.raw_headers = headers
        return response


async def _served_in_front() -> None:
    """Served by the hot path; see OpenAI's API."""
    raise AssertionError("the hot path stands in front of this route")


class _NewWorker(msgspec.Struct):
    url: str


async def _hot_request(request: Request) -> HotRequest:
    raw = request.scope["headers"]
    return HotRequest(kind=None, target=request.url.path, headers=list(raw), body=await request.body())


def _headers(request: Request) -> dict[str, str]:
    return header_map(request.scope["headers"])


def _basic_as_bearer(headers: dict[str, str]) -> dict[str, str]:
    """A browser shows the admin key as a password: read it as the bearer token that it stands for."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return headers
    try:
        _, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("the credentials cannot be read") from None
    return headers | {"authorization": f"Bearer {password}"}
