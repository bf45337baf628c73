"""Runs a whole router on a loopback port inside the test's own loop, and proves at its end that nothing leaked."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvloop

from tests.router.fakes import FakeWorker, ForeignServer
from trieway.meta_tree.chain import FleetKey
from trieway.router.assembly import Router, Secrets
from trieway.router.main import Server, listen, ready_line
from trieway.serving.auth import KeyRing
from trieway.serving.config import RouterConfig
from trieway.serving.tracing import Tracer

QUICK: dict[str, Any] = {
    "port": 0,
    "data_plane": "protocol",
    "probe_interval_s": 0.05,
    "connect_timeout_s": 1.0,
    "first_byte_timeout_s": 5.0,
    "idle_timeout_s": 5.0,
    "drain_timeout_s": 0.5,
    "seed": 7,
}


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Makes a coroutine a test, on the loop that production uses."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        uvloop.run(test(*args, **kwargs))

    return run


async def until(holds: Callable[[], Any], limit_s: float = 5.0) -> None:
    """Waits for a state that some other task brings about."""
    async with asyncio.timeout(limit_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Client:
    """A client of the router under test."""

    def __init__(self, url: str, router: Router, server: Server, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.router = router
        self.server = server
        self.http = session

    async def get(self, path: str, **kwargs: Any) -> tuple[int, Any]:
        async with self.http.get(self.url + path, **kwargs) as response:
            body = await response.read()
            return response.status, json.loads(body) if "json" in response.content_type else body

    async def post(self, path: str, body: Any, **kwargs: Any) -> Reply:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.http.post(self.url + path, data=data, **kwargs) as response:
            return Reply(response.status, response.headers.copy(), await response.read())

    async def complete(self, prompt: Any = "hello", **fields: Any) -> Reply:
        return await self.post("/v1/completions", {"model": "fake-model", "prompt": prompt, **fields})

    async def worker_up(self, *workers: FakeWorker | ForeignServer) -> None:
        """Waits until the router knows these workers and has loaded their feeds."""

        def up() -> bool:
            rows = {row.worker: row for row in self.router.core.workers(time.monotonic())}
            return all(
                worker.id in rows
                and rows[worker.id].state.value == "up"
                and (rows[worker.id].synced or not rows[worker.id].has_feed)
                for worker in workers
            )

        await until(up)

    def booked(self) -> int:
        return sum(row.booked for row in self.router.core.workers(time.monotonic()))


@dataclasses.dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found

    @property
    def worker(self) -> str:
        return self.headers["x-trieway-worker"]

    @property
    def attempts(self) -> int:
        return int(self.headers["x-trieway-attempts"])


@asynccontextmanager
async def routed(
    *workers: FakeWorker | ForeignServer,
    ring: KeyRing | None = None,
    key: FleetKey | None = None,
    tracer: Tracer | None = None,
    wait: bool = True,
    **settings: Any,
) -> AsyncIterator[Client]:
    """Starts the workers that are not started yet and a router in front of them."""
    for worker in workers:
        if not worker.http.port:
            await worker.start()
    config = RouterConfig(**{**QUICK, "workers": tuple(worker.url for worker in workers), **settings})
    secrets = Secrets(ring=ring or KeyRing(), key=key or FleetKey.from_secret(None))
    router = Router(config, secrets, tracer=tracer)
    listening = listen(config.host, config.port)
    line = ready_line(listening)
    started = asyncio.Event()
    server = Server(router, config, line, lambda _: started.set())
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30), auto_decompress=False
    )
    try:
        await started.wait()
        client = Client(line.rsplit(" ", 1)[1], router, server, session)
        if wait:
            await client.worker_up(*workers)
        yield client
        await until(lambda: client.booked() == 0)
        assert all(not link.leases for link in router.links)
        assert router.dispatcher.running == 0
        router.check()
    finally:
        await session.close()
        server.should_exit = True
        await serving
        await router.close()
        for worker in workers:
            await worker.kill()
