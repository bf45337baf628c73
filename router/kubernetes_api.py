"""What the router asks of a Kubernetes API server: the EndpointSlices of one Service, listed and watched.

Keeps true: a Role with `list` and `watch` on `endpointslices` is enough; the token is read anew for each request (it is
rotated on disk); every answer is bounded in size and time. Does not know what the slices mean (endpoint_slices.py).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from trieway.router.endpoint_slices import EndpointSlice, EndpointSliceList
from trieway.serving.config import ConfigError, RouterConfig

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE_ITEMS = 500
ANSWER_MAX_BYTES = 64 << 20
LINE_MAX_BYTES = 8 << 20
"""One event: a slice holds at most 1,000 endpoints, about 0.5 MB."""
LIST_TIMEOUT_S = 30.0
WATCH_GRACE_S = 10.0
"""The server ends a watch by itself; a connection silent for this much longer is dead."""
PAGES_MAX = 1000


class ApiGone(Exception):
    """The version asked for is no longer known (410, or the server said so inside the watch): list again."""


class ApiError(Exception):
    """The API server did not answer as it should. The message says what to do where that is known."""


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
        namespace = config.kubernetes_namespace or _line(account / "namespace")
        if namespace is None:
            raise ConfigError("--discover kubernetes outside a pod needs --kubernetes-namespace")
        url = config.kubernetes_api
        if url is None:
            host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise ConfigError("--discover kubernetes outside a pod needs --kubernetes-api URL (`kubectl proxy`)")
            url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return cls(
            url=url.rstrip("/"),
            namespace=namespace,
            service=config.kubernetes_service,
            token_file=config.kubernetes_token_file or _there(account / "token"),
            ca_file=config.kubernetes_ca_file or _there(account / "ca.crt"),
        )


def _line(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _there(path: Path) -> Path | None:
    return path if path.exists() else None


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
        self._session: aiohttp.ClientSession | None = None

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
        try:
            async with self._get(query, aiohttp.ClientTimeout(total=LIST_TIMEOUT_S)) as response:
                body = await response.content.read(ANSWER_MAX_BYTES + 1)
                while len(body) <= ANSWER_MAX_BYTES and (more := await response.content.readany()):
                    body += more
                _check_status(response.status, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"listing EndpointSlices failed: {error or type(error).__name__}") from None
        if len(body) > ANSWER_MAX_BYTES:
            raise ApiError(f"a page of EndpointSlices is over {ANSWER_MAX_BYTES} bytes")
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
        timeout = aiohttp.ClientTimeout(total=seconds + WATCH_GRACE_S, sock_connect=LIST_TIMEOUT_S)
        rest = b""
        try:
            async with self._get(query, timeout) as response:
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

    def _get(self, query: str, timeout: aiohttp.ClientTimeout) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        cluster = self._cluster
        if self._session is None:
            secure = ssl.create_default_context(cafile=cluster.ca_file) if cluster.url.startswith("https") else False
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=secure), trust_env=False, auto_decompress=True
            )
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(cluster.namespace, safe='')}/endpointslices"
        label = quote(f"kubernetes.io/service-name={cluster.service}", safe="")
        headers = {"accept": "application/json"}
        if cluster.token_file is not None and (token := _line(cluster.token_file)) is not None:
            headers["authorization"] = f"Bearer {token}"
        return self._session.get(
            # Already quoted: it must not be quoted or unquoted again.
            URL(f"{cluster.url}{path}?labelSelector={label}{query}", encoded=True),
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _check_status(status: int, body: bytes) -> None:
    if status == 200:
        return
    if status == 410:
        raise ApiGone
    hint = ""
    if status in (401, 403):
        hint = "; the router's ServiceAccount needs a Role with list and watch on endpointslices.discovery.k8s.io"
    raise ApiError(f"the Kubernetes API answered {status}: {_message(body)}{hint}")


def _message(body: bytes) -> str:
    try:
        return " ".join(msgspec.json.decode(body, type=_Status).message.split())[:300]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "no Status in its body"


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
