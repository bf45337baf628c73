"""One connection to a Kubernetes API server: its address, the pod's token and CA, and answers within bounds.

Keeps true: the token is read anew for each request (it is rotated on disk); nothing is redirected; every answer that is
read whole is bounded in size and time. Does not know objects (kubernetes_api.py, kubernetes_pods.py).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from yarl import URL

from trieway.serving.config import ConfigError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_MAX_BYTES = 64 << 20
ANSWER_TIMEOUT_S = 30.0


class ApiError(Exception):
    """The API server did not answer as it should. The message says what to do where that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """Where the API server is and who asks. Files are read when they are needed."""

    url: str
    token_file: Path | None
    ca_file: Path | None

    @classmethod
    def found(
        cls,
        *,
        url: str | None = None,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        account: Path = ACCOUNT,
    ) -> Server:
        """As told, and for the rest as Kubernetes puts it into every pod. Raises ConfigError outside one."""
        if url is None:
            host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise ConfigError("outside a pod --kubernetes-api URL is needed (`kubectl proxy`)")
            url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return cls(
            url=url.rstrip("/"),
            token_file=token_file or _there(account / "token"),
            ca_file=ca_file or _there(account / "ca.crt"),
        )


def namespace_of_pod(account: Path = ACCOUNT) -> str | None:
    """The namespace of the pod that this process is in; None outside one."""
    return _line(account / "namespace")


def _line(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _there(path: Path) -> Path | None:
    return path if path.exists() else None


class Connection:
    """Open it inside the event loop; `close` ends it. The server's faults come as aiohttp's errors from `request`,
    as ApiError from `whole`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session: aiohttp.ClientSession | None = None

    def request(
        self, method: str, path: str, timeout: aiohttp.ClientTimeout, *, data: bytes | None = None, kind: str = ""
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """`path` is quoted already, query and all; `kind` is the content type of `data`."""
        server = self._server
        if self._session is None:
            secure = ssl.create_default_context(cafile=server.ca_file) if server.url.startswith("https") else False
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=secure), trust_env=False, auto_decompress=True
            )
        headers = {"accept": "application/json"}
        if data is not None:
            headers["content-type"] = kind
        if server.token_file is not None and (token := _line(server.token_file)) is not None:
            headers["authorization"] = f"Bearer {token}"
        return self._session.request(
            method,
            # Already quoted: it must not be quoted or unquoted again.
            URL(f"{server.url}{path}", encoded=True),
            data=data,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        )

    async def whole(
        self, method: str, path: str, *, what: str, data: bytes | None = None, kind: str = ""
    ) -> tuple[int, bytes]:
        """Status and body. `what` names the doing in messages. Raises ApiError: no answer, or one without end."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        try:
            async with self.request(method, path, timeout, data=data, kind=kind) as response:
                body = await response.content.read(ANSWER_MAX_BYTES + 1)
                while len(body) <= ANSWER_MAX_BYTES and (more := await response.content.readany()):
                    body += more
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"{what} failed: {error or type(error).__name__}") from None
        if len(body) > ANSWER_MAX_BYTES:
            raise ApiError(f"{what} failed: the answer is over {ANSWER_MAX_BYTES} bytes")
        return status, body

    async def close(self) -> None:
        """Ends it; it opens again when it is asked again."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class _Status(msgspec.Struct):
    message: str = ""


def refusal(status: int, body: bytes, *, needs: str) -> ApiError:
    """What the server said, in one line; `needs` is the right that the caller's Role must give."""
    hint = f"; the ServiceAccount needs a Role with {needs}" if status in (401, 403) else ""
    return ApiError(f"the Kubernetes API answered {status}: {message_of(body)}{hint}")


def message_of(body: bytes) -> str:
    """The text of a Status object."""
    try:
        return " ".join(msgspec.json.decode(body, type=_Status).message.split())[:300]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "no Status in its body"
