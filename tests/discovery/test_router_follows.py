"""A whole router that discovers its workers: sets come, workers serve, drain, and come back as others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.discovery.api_server import ApiServer, endpoint, endpoint_slice
from tests.router.fakes import FakeWorker
from tests.router.harness import QUICK, in_loop, until
from trieway.router.assembly import Router, Secrets
from trieway.router.links import LinkState
from trieway.serving.config import RouterConfig


class Told:
    """A discovery that says what the test says."""

    def __init__(self) -> None:
        self.sets: asyncio.Queue[frozenset[str]] = asyncio.Queue()

    async def watch(self) -> AsyncIterator[frozenset[str]]:
        while True:
            yield await self.sets.get()

    def tell(self, *workers: FakeWorker) -> None:
        self.sets.put_nowait(frozenset(worker.url for worker in workers))


async def up(router: Router, worker: FakeWorker) -> None:
    def holds() -> bool:
        link = router.links.find(worker.id)
        return link is not None and link.state is LinkState.UP and not link.draining

    await until(holds)


@in_loop
async def test_a_worker_named_again_while_it_drains_serves_again() -> None:
    worker, told = FakeWorker(), Told()
    await worker.http.start()
    config = RouterConfig(**QUICK)
    router = Router(config, Secrets.load(config), told)
    try:
        told.tell(worker)
        await up(router, worker)
        first = router.links.get(worker.id)
        first.idle.clear()  # a request is with it
        told.tell()
        await until(lambda: first.draining)
        told.tell(worker)
        await up(router, worker)
        assert router.links.get(worker.id) is not first
        router.check()
    finally:
        await router.close()
        await worker.http.stop()


@in_loop
async def test_a_worker_drained_by_hand_stays_away_while_discovery_names_it() -> None:
    worker, told = FakeWorker(), Told()
    await worker.http.start()
    config = RouterConfig(**QUICK)
    router = Router(config, Secrets.load(config), told)
    try:
        told.tell(worker)
        await up(router, worker)
        router.registry.drain(router.links.get(worker.id).worker)
        await until(lambda: router.links.find(worker.id) is None)
        told.tell(worker)
        await until(told.sets.empty)
        assert router.links.find(worker.id) is None
    finally:
        await router.close()
        await worker.http.stop()


@in_loop
async def test_a_router_serves_what_kubernetes_names(tmp_path: pytest.TempPathFactory) -> None:
    server, worker = ApiServer(), FakeWorker()
    await server.start()
    await worker.http.start()
    port = int(worker.url.rsplit(":", 1)[1])
    server.put(endpoint_slice("a", [endpoint("127.0.0.1", "p")], ports=[{"name": "http", "port": port}]))
    config = RouterConfig(
        discover="kubernetes",
        kubernetes_api=server.url,
        kubernetes_service="workers",
        kubernetes_namespace="models",
        **QUICK,
    )
    router = Router(config, Secrets.load(config))
    try:
        await up(router, worker)
        server.put(endpoint_slice("a", [endpoint("127.0.0.1", "p", ready=False)]))
        await until(lambda: router.links.find(worker.id) is None)
    finally:
        await router.close()
        await worker.http.stop()
        await server.stop()
