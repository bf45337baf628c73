"""What is asked of a server beside completions: is it there, what does it serve, who stands behind it, empty caches.

Keeps true: keys go only where they were given for; loopback never through a proxy; what an answer lacks is None, what a
server cannot do is one line. Does not know workloads or records.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.exchange import BROKEN, CONNECT, Exchange
from trieway.loadgen.client.pool import Pool
from trieway.loadgen.client.url import Url, parse_url
from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.records import OK
from trieway.loadgen.reports.schema import Branch

ADMIN_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 120.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
TREE_DEPTH = 8
PROBE_WORD = "zyzzyva"
CHAT_MARKS_CHARS = 32
"""Before a first message there is always a mark or two; only what is longer is a text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Where and with whose keys. `admin_key`: for flush, workers and tree."""

    url: Url
    key: str | None = None
    admin_key: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One worker, as the router lists it; a server that lists none is its own. `cache_tokens`: size of its cache."""

    name: str
    url: str
    cache_tokens: int | None = None


class Target:
    """One server. Use as `async with`."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ADMIN_TIMEOUT_S, connect=10.0),
            trust_env=not access.url.loopback,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, *, url: str | None = None, admin: bool = False) -> tuple[int, bytes]:
        """Status and body; RunFailed where nothing answers. `url`: of another server than the target."""
        return await self._ask("GET", path, url, None, admin)

    async def post(self, path: str, body: Any, *, url: str | None = None, admin: bool = False) -> tuple[int, bytes]:
        """Status and body; RunFailed where nothing answers."""
        return await self._ask("POST", path, url, body, admin)

    async def _ask(self, method: str, path: str, url: str | None, body: Any, admin: bool) -> tuple[int, bytes]:
        base = str(self.access.url) if url is None else url.rstrip("/")
        key = (self.access.admin_key or self.access.key) if admin else self.access.key
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        try:
            async with self._session.request(method, base + path, json=body, headers=headers) as answer:
                return answer.status, await answer.content.read(ANSWER_BYTES_MAX)
        except aiohttp.ClientConnectorError:
            raise RunFailed(f"nothing answers at {base}; start a fleet with `trieway up` or give its URL") from None
        except TimeoutError:
            raise RunFailed(f"{base} did not answer {path} in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RunFailed(f"{base} does not speak HTTP: {error or type(error).__name__}") from None

    async def _json(self, path: str, *, url: str | None = None, admin: bool = False) -> Any:
        """The JSON of a 200 answer, else None."""
        status, data = await self.get(path, url=url, admin=admin)
        try:
            return json.loads(data) if status == 200 else None
        except ValueError:
            return None

    async def model(self, wanted: str | None) -> str:
        """The model to ask for: the wanted one, else the first one served. LoadError: it is not served."""
        status, data = await self.get("/v1/models")
        try:
            names = [str(row["id"]) for row in json.loads(data)["data"]] if status == 200 else []
        except (ValueError, KeyError, TypeError):
            names = []
        if status in (401, 403):
            raise LoadError(f"{self.access.url} wants a key: give one with --key-file")
        if wanted is not None:
            if names and wanted not in names:
                raise LoadError(f"{self.access.url} does not serve {wanted!r}; it serves {', '.join(names[:20])}")
            return wanted
        if not names:
            raise RunFailed(f"{self.access.url} lists no model at /v1/models (status {status}); name one with --model")
        return names[0]

    async def probe(self, dialect: Dialect, *, stream: bool, usage_needed: bool) -> None:
        """One small completion, as the run's will be. RunFailed: it failed, or has no usage where that is needed."""
        body: dict[str, object] = {"model": dialect.model, "prompt": PROBE_WORD, "max_tokens": 1, "temperature": 0}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        exchange = await self._once(dialect, "/v1/completions", body)
        if exchange.http == 404:  # some servers only chat
            body = {**body, "messages": [{"role": "user", "content": PROBE_WORD}]}
            del body["prompt"]
            exchange = await self._once(dialect, "/v1/chat/completions", body)
        url = self.access.url
        if exchange.status in (CONNECT, BROKEN):
            raise RunFailed(f"nothing answers completions at {url}: {exchange.message}")
        if exchange.status != OK:
            raise RunFailed(
                f"{url} cannot serve a completion ({exchange.status}): {exchange.message or 'no reason given'}"
            )
        told = exchange.usage is not None and exchange.usage.prompt_tokens is not None
        if usage_needed and not told:
            where = "in its last stream event (stream_options.include_usage)" if stream else "in its answers"
            raise RunFailed(
                f"{url} sends no usage {where}, so tokens and cache hits cannot be counted; --no-usage runs without"
            )

    async def _once(self, dialect: Dialect, path: str, body: dict[str, object]) -> Exchange:
        loop = asyncio.get_running_loop()
        pool = Pool(dialect.url, connections_max=1)
        over: asyncio.Future[None] = loop.create_future()

        def ended(exchange: Exchange) -> None:
            pool.ended(exchange)
            if not over.done():
                over.set_result(None)

        exchange = Exchange(dialect.plain(path, body), monotonic() + PROBE_TIMEOUT_S, ended)
        try:
            pool.send(exchange)
            await over
        finally:
            await pool.close()
        return exchange

    async def backends(self) -> list[Backend]:
        """The workers behind a router, or the server itself."""
        listed = await self._json("/workers", admin=True)
        rows = listed.get("workers") if isinstance(listed, dict) else None
        if isinstance(rows, list) and rows:
            return [found for found in map(_backend, rows) if found is not None]
        stats = await self._json("/cache/stats", admin=True)
        size = stats.get("kv_total_tokens", stats.get("kv_total")) if isinstance(stats, dict) else None
        return [Backend(name="server", url=str(self.access.url), cache_tokens=size if isinstance(size, int) else None)]

    async def flush(self, backends: list[Backend]) -> None:
        """Empty every worker's cache. RunFailed: one cannot."""
        for backend in backends:
            status, data = await self.post("/cache/flush", {}, url=backend.url, admin=True)
            if status in (401, 403):
                raise RunFailed(f"{backend.url} flushes only with the admin key: give it with --admin-key-file")
            if status != 200:
                raise RunFailed(
                    f"{backend.url} cannot flush its cache (status {status}: {data[:100].decode(errors='replace')!r}); "
                    "run without --flush"
                )

    async def tree(self) -> dict[str, list[Branch]]:
        """The upper part of a router's meta-tree, by group; empty where there is none to see."""
        try:
            told = await self._json(f"/tree?depth={TREE_DEPTH}", admin=True)
            dump = told.get("dump") if isinstance(told, dict) else None
            return msgspec.convert(dump or {}, dict[str, list[Branch]])
        except (RunFailed, msgspec.ValidationError):
            return {}

    async def chat_head(self, model: str) -> str | None:
        """The text that the model's template puts before a chat that has no system message, beyond marks; None where
        there is none or the server cannot tell."""
        messages = [{"role": "user", "content": PROBE_WORD}]
        try:
            status, data = await self.post("/tokenize", {"model": model, "messages": messages})
            tokens = json.loads(data)["tokens"] if status == 200 else None
            if not tokens:
                return None
            status, data = await self.post("/detokenize", {"model": model, "tokens": tokens})
            head, found, _ = str(json.loads(data)["prompt"]).partition(PROBE_WORD) if status == 200 else ("", "", "")
        except (RunFailed, ValueError, KeyError, TypeError):
            return None
        return head if found and len(head) > CHAT_MARKS_CHARS else None


def _backend(row: Any) -> Backend | None:
    try:
        url = str(parse_url(str(row["url"])))
    except (LoadError, KeyError, TypeError):
        return None
    load = row.get("load")
    size = load.get("kv_total_tokens") if isinstance(load, dict) else None
    return Backend(name=str(row.get("id", url)), url=url, cache_tokens=size if isinstance(size, int) else None)
