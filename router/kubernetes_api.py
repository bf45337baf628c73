"""What the router asks of a Kubernetes API server: the EndpointSlices of one Service, listed and watched.

Keeps true: a Role with `list` and `watch` on `endpointslices` is enough; every answer is bounded in size and time. Does
not know what the slices mean (endpoint_slices.py), nor how the server is reached (kubernetes_http.py).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec

from trieway.router.endpoint_slices import EndpointSlice, EndpointSliceList
from trieway.router.kubernetes_http import ACCOUNT, ApiError, Connection, Server, namespace_of_pod, refusal
from trieway.serving.config import ConfigError, RouterConfig

__all__ = ["ApiError", "ApiGone", "Change", "Cluster", "KubernetesApi"]

PAGE_ITEMS = 500
LINE_MAX_BYTES = 8 << 20
"""One event: a slice holds at most 1,000 endpoints, about 0.5 MB."""
CONNECT_TIMEOUT_S = 30.0
WATCH_GRACE_S = 10.0
"""The server ends a watch by itself; a connection silent for this much longer is dead."""
PAGES_MAX = 1000


class ApiGone(Exception):
    """The version asked for is no longer known (410, or the server said so inside the watch): list again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Where the API server is and whose slices to read. Files are read when they are needed."""

    url: str
    namespace: str
    service: str
    token_file: Path | None
    ca_file: Path | None

    @classmethod
    def of(cls, config: RouterConfig, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Cluster:
        """From the configuration, and inside a pod from what Kubernetes puts there. Raises ConfigError."""
        if config.kubernetes_service is None:
            raise ConfigError("--discover kubernetes needs --kubernetes-service NAME, the Service of the workers")
        namespace = config.kubernetes_namespace or namespace_of_pod(account)
        if namespace is None:
            raise ConfigError("--discover kubernetes outside a pod needs --kubernetes-namespace")
        server = Server.found(
            url=config.kubernetes_api,
            token_file=config.kubernetes_token_file,
            ca_file=config.kubernetes_ca_file,
            environ=environ,
            account=account,
        )
        return cls(
            url=server.url,
            namespace=namespace,
            service=config.kubernetes_service,
            token_file=server.token_file,
            ca_file=server.ca_file,
        )


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One event of a watch. `kind`: ADDED, MODIFIED, DELETED or BOOKMARK (then only the version counts)."""

    kind: str
    item: EndpointSlice


class KubernetesApi:
    """Open it inside the event loop; `close` ends its connections."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connection = Connection(Server(url=cluster.url, token_file=cluster.token_file, ca_file=cluster.ca_file))

    async def list(self) -> tuple[list[EndpointSlice], str]:
        """All slices, and the version from which to watch.

        Raises:
            ApiGone: a page's continuation was too old.
            ApiError: no or no usable answer.
        """
        slices: list[EndpointSlice] = []
        page = ""
        for _ in range(PAGES_MAX):
            query = f"&limit={PAGE_ITEMS}" + (f"&continue={quote(page, safe='')}" if page else "")
            found = await self._page(query)
            slices += found.items or ()
            page = found.metadata.next_page
            if not page:
                return slices, found.metadata.resourceVersion
        raise ApiError(f"the list of EndpointSlices has more than {PAGES_MAX} pages")

    async def _page(self, query: str) -> EndpointSliceList:
        status, body = await self._connection.whole("GET", self._path(query), what="listing EndpointSlices")
        _check_status(status, body)
        try:
            return msgspec.json.decode(body, type=EndpointSliceList)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ApiError(f"the list of EndpointSlices cannot be read: {error}") from None

    async def watch(self, version: str, *, seconds: int) -> AsyncIterator[Change]:
        """Changes since `version`, until the server ends the watch.

        Raises:
            ApiGone: the server no longer knows `version`.
            ApiError: the connection broke, fell silent, or brought something unreadable.
        """
        query = f"&watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={quote(version, safe='')}"
        timeout = aiohttp.ClientTimeout(total=seconds + WATCH_GRACE_S, sock_connect=CONNECT_TIMEOUT_S)
        rest = b""
        try:
            async with self._connection.request("GET", self._path(query), timeout) as response:
                if response.status != 200:
                    _check_status(response.status, await response.content.read(LINE_MAX_BYTES))
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > LINE_MAX_BYTES:
                        raise ApiError(f"an event is over {LINE_MAX_BYTES} bytes")
                    for line in lines:
                        if line.strip():
                            yield _change(line)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"the watch broke: {error or type(error).__name__}") from None
        if rest.strip():
            raise ApiError("the watch ended inside an event")

    def _path(self, query: str) -> str:
        """The slices' path, quoted, with a query that is."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(self._cluster.namespace, safe='')}/endpointslices"
        label = quote(f"kubernetes.io/service-name={self._cluster.service}", safe="")
        return f"{path}?labelSelector={label}{query}"

    async def close(self) -> None:
        await self._connection.close()


def _check_status(status: int, body: bytes) -> None:
    if status == 200:
        return
    if status == 410:
        raise ApiGone
    raise refusal(status, body, needs="list and watch on endpointslices.discovery.k8s.io")


def _change(line: bytes) -> Change:
    try:
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            if status.code == 410:
                raise ApiGone
            raise ApiError(f"the watch was ended with {status.code}: {status.message[:300]}")
        return Change(kind=event.type, item=msgspec.json.decode(event.object, type=EndpointSlice))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiError(f"an event of the watch cannot be read: {error}") from None
