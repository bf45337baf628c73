"""Discovery by Kubernetes against a fake API server: what a router hears, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.discovery.api_server import ApiServer, endpoint, endpoint_slice
from tests.router.harness import in_loop, until
from trieway.router.kubernetes_api import Cluster
from trieway.router.kubernetes_discovery import Kubernetes, WatchPace
from trieway.serving.config import ConfigError, RouterConfig

QUICK = WatchPace(watch_s=30, relist_s=600, backoff_s=0.01, backoff_max_s=0.02)


class Watcher:
    """Listens to a discovery in the background."""

    def __init__(self, discovery: Kubernetes) -> None:
        self.discovery = discovery
        self.heard: list[frozenset[str]] = []
        self.task = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        async for urls in self.discovery.watch():
            self.heard.append(urls)

    @property
    def urls(self) -> frozenset[str] | None:
        return self.heard[-1] if self.heard else None

    async def hears(self, *hosts: str) -> None:
        await until(lambda: self.urls == urls(*hosts))
        assert not self.task.done()


def urls(*hosts: str) -> frozenset[str]:
    return frozenset(f"http://{host}:8100" for host in hosts)


@contextlib.asynccontextmanager
async def watching(
    *,
    pace: WatchPace = QUICK,
    token_file: Path | None = None,
    prepare: Callable[[ApiServer], None] = lambda _: None,
    leaving: bool = False,
) -> AsyncIterator[tuple[ApiServer, Watcher]]:
    server = ApiServer()
    prepare(server)
    await server.start()
    cluster = Cluster(url=server.url, namespace="models", service="workers", token_file=token_file, ca_file=None)
    watcher = Watcher(Kubernetes(cluster, "http", random.Random(1), pace=pace, leaving=leaving))
    try:
        yield server, watcher
    finally:
        watcher.task.cancel()
        await asyncio.gather(watcher.task, return_exceptions=True)
        await server.stop()


async def settled(server: ApiServer) -> None:
    await until(lambda: server.open_watches == 1)


@in_loop
async def test_workers_come_and_go() -> None:
    async with watching() as (server, watcher):
        await watcher.hears()
        server.put(endpoint_slice("a", [endpoint("10.0.0.1", "p1")]))
        await watcher.hears("10.0.0.1")
        server.put(endpoint_slice("b", [endpoint("10.0.0.2", "p2")]))
        await watcher.hears("10.0.0.1", "10.0.0.2")
        server.put(endpoint_slice("a", [endpoint("10.0.0.1", "p1", ready=False)]))
        await watcher.hears("10.0.0.2")
        server.drop("b")
        await watcher.hears()
        assert server.lists == 1, "all of it came by one watch"


@in_loop
async def test_a_terminating_endpoint_leaves_before_its_pod_does() -> None:
    async with watching() as (server, watcher):
        server.put(endpoint_slice("a", [endpoint("10.0.0.1", "p1"), endpoint("10.0.0.2", "p2")]))
        await watcher.hears("10.0.0.1", "10.0.0.2")
        server.put(endpoint_slice("a", [endpoint("10.0.0.1", "p1", terminating=True), endpoint("10.0.0.2", "p2")]))
        await watcher.hears("10.0.0.2")


@in_loop
async def test_one_that_hands_over_stays_until_it_turns_away() -> None:
    async with watching(leaving=True) as (server, watcher):
        server.put(endpoint_slice("a", [endpoint("10.0.0.1", "p1"), endpoint("10.0.0.2", "p2")]))
        await watcher.hears("10.0.0.1", "10.0.0.2")
        giving = endpoint("10.0.0.1", "p1", ready=False, serving=True, terminating=True)
        server.put(endpoint_slice("a", [giving, endpoint("10.0.0.3", "p3")]))
        await watcher.hears("10.0.0.1", "10.0.0.3")
        done = endpoint("10.0.0.1", "p1", ready=False, serving=False, terminating=True)
        server.put(endpoint_slice("a", [done, endpoint("10.0.0.3", "p3")]))
        await watcher.hears("10.0.0.3")


@in_loop
async def test_a_list_of_many_pages_is_one_set() -> None:
    def prepare(server: ApiServer) -> None:
        server.page_items = 2
        for n in range(7):
            server.put(endpoint_slice(f"s{n}", [endpoint(f"10.0.0.{n}")]))

    async with watching(prepare=prepare) as (server, watcher):
        await watcher.hears(*(f"10.0.0.{n}" for n in range(7)))
        assert watcher.heard == [urls(*(f"10.0.0.{n}" for n in range(7)))]
        assert server.lists == 4


@in_loop
async def test_a_broken_watch_is_healed_by_a_list() -> None:
    async with watching() as (server, watcher):
        server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        await watcher.hears("10.0.0.1")
        await settled(server)
        # What happens now is told to nobody.
        server.forget_events = True
        server.put(endpoint_slice("b", [endpoint("10.0.0.2")]))
        server.drop("a")
        server.cut_watches()
        await watcher.hears("10.0.0.2")
        assert server.lists == 2


@in_loop
async def test_events_lost_in_silence_are_healed_by_the_next_list() -> None:
    pace = WatchPace(watch_s=1, relist_s=0.5, backoff_s=0.01, backoff_max_s=0.02)
    async with watching(pace=pace) as (server, watcher):
        await settled(server)
        server.forget_events = True
        server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        await watcher.hears("10.0.0.1")


@in_loop
async def test_a_watch_that_the_server_ends_goes_on_from_where_it_was() -> None:
    pace = WatchPace(watch_s=1, relist_s=600, backoff_s=0.01, backoff_max_s=0.02)
    async with watching(pace=pace) as (server, watcher):
        server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        await watcher.hears("10.0.0.1")
        await until(lambda: server.watches >= 2)
        server.put(endpoint_slice("b", [endpoint("10.0.0.2")]))
        await watcher.hears("10.0.0.1", "10.0.0.2")
        assert server.lists == 1


@pytest.mark.parametrize("silent", [False, True], ids=["status 410", "410 inside the watch"])
def test_a_forgotten_version_is_listed_again(silent: bool) -> None:
    @in_loop
    async def run() -> None:
        pace = WatchPace(watch_s=1, relist_s=600, backoff_s=0.01, backoff_max_s=0.02)
        async with watching(pace=pace) as (server, watcher):
            await settled(server)
            server.silent_gone = silent
            server.forget_events = True
            server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
            server.compact()
            await watcher.hears("10.0.0.1")
            assert server.lists == 2

    run()


@in_loop
async def test_bookmarks_move_the_version_and_say_nothing() -> None:
    async with watching() as (server, watcher):
        server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        await watcher.hears("10.0.0.1")
        await settled(server)
        server.bookmark()
        server.put(endpoint_slice("b", [endpoint("10.0.0.2")]))
        await watcher.hears("10.0.0.1", "10.0.0.2")
        assert len(watcher.heard) <= 3


@in_loop
async def test_an_address_that_passes_to_another_pod_leaves_for_one_step() -> None:
    async with watching() as (server, watcher):
        server.put(endpoint_slice("a", [endpoint("10.0.0.1", "old"), endpoint("10.0.0.2", "other")]))
        await watcher.hears("10.0.0.1", "10.0.0.2")
        before = len(watcher.heard)
        server.put(endpoint_slice("a", [endpoint("10.0.0.1", "new"), endpoint("10.0.0.2", "other")]))
        await until(lambda: len(watcher.heard) == before + 2)
        assert watcher.heard[before:] == [urls("10.0.0.2"), urls("10.0.0.1", "10.0.0.2")]


@in_loop
async def test_while_the_server_is_away_the_workers_stay() -> None:
    async with watching() as (server, watcher):
        server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        await watcher.hears("10.0.0.1")
        server.status = 500
        server.cut_watches()
        asked = len(server.seen)
        await until(lambda: len(server.seen) > asked + 3)
        assert watcher.urls == urls("10.0.0.1")
        server.status = 200
        server.put(endpoint_slice("a", [endpoint("10.0.0.2")]))
        await watcher.hears("10.0.0.2")


@in_loop
async def test_a_missing_role_is_said_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(prepare=lambda server: setattr(server, "status", 403)) as (server, watcher):
        await until(lambda: len(server.seen) > 3)
        assert watcher.heard == []
        told = [record.getMessage() for record in caplog.records if "endpointslices" in record.getMessage()]
        assert len([line for line in told if "Role with list and watch" in line]) >= 1
        server.status = 200
        await watcher.hears()


@in_loop
async def test_a_rotated_token_is_read_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with watching(token_file=token, prepare=lambda server: setattr(server, "token", "first")) as (
        server,
        watcher,
    ):
        await watcher.hears()
        server.token = "second"
        token.write_text("second\n")
        server.cut_watches()
        server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        await watcher.hears("10.0.0.1")


@in_loop
async def test_nonsense_is_no_answer_and_no_end() -> None:
    async with watching() as (server, watcher):
        await watcher.hears()
        await settled(server)
        server.log.append((server.version + 1, {"type": "MODIFIED", "object": {"metadata": 7}}))
        server.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        server.log[-2] = (server.version, server.log[-2][1])
        await watcher.hears("10.0.0.1")


def config(**fields: object) -> RouterConfig:
    return RouterConfig(discover="kubernetes", **fields)  # type: ignore[arg-type]


def test_inside_a_pod_only_the_service_is_needed(tmp_path: Path) -> None:
    for name, text in (("namespace", "models\n"), ("token", "t"), ("ca.crt", "pem")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = Cluster.of(config(kubernetes_service="workers"), environ, tmp_path)
    assert (found.url, found.namespace, found.service) == ("https://[fd00::1]:6443", "models", "workers")
    assert (found.token_file, found.ca_file) == (tmp_path / "token", tmp_path / "ca.crt")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "--kubernetes-service"),
        ({"kubernetes_service": "w"}, "--kubernetes-namespace"),
        ({"kubernetes_service": "w", "kubernetes_namespace": "n"}, "--kubernetes-api"),
    ],
)
def test_outside_a_pod_the_rest_is_asked_for(fields: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        Cluster.of(config(**fields), {}, tmp_path)
