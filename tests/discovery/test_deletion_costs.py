"""The keeper of deletion costs against a fake API server and fake workers: what it writes, and what it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiohttp import web

from tests.discovery.pod_server import NAMESPACE, SELECTOR, PodServer, pod
from tests.router.harness import in_loop, until
from trieway.router.deletion_costs import Keeper, Pace, keep, main
from trieway.router.kubernetes_http import ApiError, Server
from trieway.router.kubernetes_pods import KubernetesPods

TOKEN = "the fleet's token"
QUICK = Pace(every_s=0.01, answer_timeout_s=0.2, writes_max=20)


class Workers:
    """Fake workers on one address, each with its own port; `worth` None: it does not answer in time."""

    def __init__(self) -> None:
        self.worths: dict[str, float | bytes | None] = {}
        self.urls: dict[str, str] = {}
        self.asked = 0
        self._runners: list[web.AppRunner] = []

    async def start(self, **worths: float | bytes | None) -> None:
        for name, worth in worths.items():
            self.worths[name] = worth
            app = web.Application()
            app.router.add_get("/cache/worth", self._handler(name))
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._runners.append(runner)
            self.urls[name] = f"http://127.0.0.1:{runner.addresses[0][1]}"

    def _handler(self, name: str):  # type: ignore[no-untyped-def]
        async def answer(request: web.Request) -> web.Response:
            self.asked += 1
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return web.json_response({}, status=401)
            worth = self.worths[name]
            if worth is None:
                await asyncio.sleep(30)
            if isinstance(worth, bytes):
                return web.Response(body=worth)
            return web.json_response({"worth_tokens": worth, "cached_tokens": 1_000_000})

        return answer

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@dataclass
class Scene:
    api: PodServer
    workers: Workers
    keeper: Keeper
    now: list[float]


def new_keeper(url: str, pace: Pace = QUICK, now: list[float] | None = None, token: str = TOKEN) -> Keeper:
    server = Server(url=url, token_file=None, ca_file=None)
    clock = (lambda: now[0]) if now is not None else (lambda: 0.0)
    return Keeper(KubernetesPods(server, NAMESPACE, SELECTOR), token, random.Random(1), pace=pace, clock=clock)


@contextlib.asynccontextmanager
async def scene(pace: Pace = QUICK, **worths: float | bytes | None) -> AsyncIterator[Scene]:
    """Workers with these caches, each in a ready pod of a Deployment."""
    api, workers, now = PodServer(), Workers(), [0.0]
    await api.start()
    await workers.start(**worths)
    api.put(*(pod(name, workers.urls[name]) for name in worths))
    keeper = new_keeper(api.url, pace, now)
    try:
        yield Scene(api, workers, keeper, now)
    finally:
        await keeper.close()
        await workers.stop()
        await api.stop()


@in_loop
async def test_each_pod_gets_its_share_of_the_dearest_cache() -> None:
    async with scene(a=40_000.0, b=10_000.0, c=0.0) as one:
        assert await one.keeper.round() == 2
        assert one.api.costs() == {"a": "1000", "b": "250", "c": None}, "nothing is written where 0 is true"


@in_loop
async def test_nothing_is_written_while_nothing_changes_much() -> None:
    async with scene(a=40_000.0, b=10_000.0) as one:
        await one.keeper.round()
        before = len(one.api.patches)
        one.workers.worths |= {"a": 20_000.0, "b": 5_500.0}
        assert await one.keeper.round() == 0
        assert len(one.api.patches) == before
        one.workers.worths["b"] = 20_000.0
        assert await one.keeper.round() == 1
        assert one.api.cost("b") == "1000"


@in_loop
async def test_a_patch_names_the_pod_by_uid_and_touches_one_annotation() -> None:
    async with scene(a=40_000.0) as one:
        one.api.put(pod("a", one.workers.urls["a"], cost="7"))
        spec = one.api.pods["a"]["spec"]
        await one.keeper.round()
        annotation = {"controller.kubernetes.io/pod-deletion-cost": "1000"}
        assert one.api.patches == [("a", {"metadata": {"uid": "uid-of-a", "annotations": annotation}})]
        assert one.api.pods["a"]["metadata"]["annotations"] == {**annotation, "other": "stays"}
        assert one.api.pods["a"]["spec"] == spec


@in_loop
async def test_models_are_compared_with_themselves_only() -> None:
    async with scene(a=40_000.0, b=10_000.0) as one:
        one.api.put(pod("b", one.workers.urls["b"], model="small"))
        await one.keeper.round()
        assert one.api.costs() == {"a": "1000", "b": "1000"}


@in_loop
async def test_pods_that_no_choice_would_fall_on_are_left_alone() -> None:
    async with scene(a=40_000.0, b=40_000.0, c=40_000.0, d=40_000.0) as one:
        urls = one.workers.urls
        one.api.put(pod("b", urls["b"], owner="StatefulSet"), pod("c", urls["c"], ready=False))
        one.api.put(pod("d", urls["d"], leaving=True))
        await one.keeper.round()
        assert one.api.costs() == {"a": "1000", "b": None, "c": None, "d": None}
        assert one.workers.asked == 1


@in_loop
async def test_a_cost_below_zero_is_somebodys_word() -> None:
    async with scene(a=40_000.0, b=40_000.0) as one:
        one.api.put(pod("b", one.workers.urls["b"], cost="-2147483648"))
        await one.keeper.round()
        assert one.api.costs() == {"a": "1000", "b": "-2147483648"}


@in_loop
async def test_a_round_writes_the_most_wrong_first_and_not_more_than_it_may() -> None:
    async with scene(Pace(writes_max=2), a=40_000.0, b=4_000.0, c=20_000.0, d=30_000.0) as one:
        assert await one.keeper.round() == 2
        assert one.api.costs() == {"a": "1000", "b": None, "c": None, "d": "750"}
        assert await one.keeper.round() == 2
        assert await one.keeper.round() == 0
        assert one.api.costs() == {"a": "1000", "b": "100", "c": "500", "d": "750"}


@in_loop
async def test_a_list_of_many_pages_is_one_fleet() -> None:
    async with scene(a=40_000.0, b=20_000.0, c=10_000.0) as one:
        one.api.page_items = 1
        await one.keeper.round()
        assert one.api.lists == 3
        assert one.api.costs() == {"a": "1000", "b": "500", "c": "250"}


@in_loop
async def test_who_does_not_answer_keeps_what_it_told_last_for_a_while() -> None:
    async with scene(Pace(answer_timeout_s=0.1), a=40_000.0, b=10_000.0) as one:
        await one.keeper.round()
        one.workers.worths["a"] = None
        one.workers.worths["b"] = 20_000.0
        await one.keeper.round()
        assert one.api.costs() == {"a": "1000", "b": "500"}, "the dearest is still counted"
        one.now[0] = 601.0
        await one.keeper.round()
        assert one.api.costs() == {"a": "1000", "b": "1000"}, "nobody knows better by now"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"worth_tokens": "much"}', b'{"worth_tokens": 1e999}', b"\xff\xfe", b'{"worth_tokens": -5}']
)
def test_nonsense_is_no_worth(body: bytes) -> None:
    @in_loop
    async def run() -> None:
        async with scene(a=body, b=10_000.0) as one:
            await one.keeper.round()
            assert one.api.costs() == {"a": None, "b": "1000"}

    run()


@in_loop
async def test_a_worker_without_the_route_or_of_another_fleet_is_left_alone() -> None:
    async with scene(a=40_000.0) as one:
        stranger = new_keeper(one.api.url, token="another")
        assert await stranger.round() == 0
        await stranger.close()
        one.api.put(pod("old", one.api.url))
        await one.keeper.round()
        assert one.api.costs() == {"a": "1000", "old": None}


@in_loop
async def test_a_conflict_is_tried_again_in_the_next_round() -> None:
    async with scene(a=40_000.0, b=20_000.0) as one:
        one.api.conflicts = 1
        assert await one.keeper.round() == 1
        assert one.api.costs() == {"a": None, "b": "500"}
        assert await one.keeper.round() == 1
        assert one.api.costs() == {"a": "1000", "b": "500"}


@in_loop
async def test_a_pod_that_went_or_was_replaced_meanwhile_costs_nothing() -> None:
    async with scene(a=40_000.0, b=40_000.0, c=40_000.0) as one:
        one.api.vanish, one.api.renewed = {"a"}, {"b"}
        assert await one.keeper.round() == 1
        assert one.api.costs() == {"b": None, "c": "1000"}, "the newcomer is not taken for the one that went"


@in_loop
async def test_two_keepers_agree_and_write_nothing_twice() -> None:
    async with scene(a=40_000.0, b=20_000.0, c=10_000.0) as one:
        other = new_keeper(one.api.url)
        for _ in range(3):
            await one.keeper.round()
            await other.round()
        await other.close()
        assert len(one.api.patches) == 3


@pytest.mark.parametrize(
    ("lacks", "hint"),
    [(("list", "pods"), "Role with list on pods"), (("patch", "pods/status"), "Role with patch on pods/status")],
)
def test_a_missing_right_is_said_with_what_to_do(
    lacks: tuple[str, str], hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        async with scene(a=40_000.0) as one:
            one.api.rights -= {lacks}
            with pytest.raises(ApiError, match=hint):
                await one.keeper.round()
            running = asyncio.ensure_future(one.keeper.run())
            await until(lambda: hint in caplog.text)
            one.api.rights |= {lacks}
            await until(lambda: one.api.cost("a") == "1000")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert caplog.text.count(hint) == 1, "said once, not each round"

    run()


@in_loop
async def test_the_status_subresource_is_all_that_is_written() -> None:
    """With the right on pods themselves and without that on their status, nothing works: so it is not needed."""
    async with scene(a=40_000.0) as one:
        one.api.rights = {("list", "pods"), ("patch", "pods")}
        with pytest.raises(ApiError):
            await one.keeper.round()
        assert one.api.patches == []


@in_loop
async def test_while_the_server_is_away_rounds_get_rarer_and_go_on_after() -> None:
    async with scene(a=40_000.0) as one:
        assert 0.9 * QUICK.every_s <= one.keeper.pause_s() <= 1.1 * QUICK.every_s
        one.api.status = 500
        running = asyncio.ensure_future(one.keeper.run())
        await until(lambda: one.keeper.pause_s() > 7 * QUICK.every_s)
        one.api.status = 0
        await until(lambda: one.api.cost("a") == "1000")
        await until(lambda: one.keeper.pause_s() < 2 * QUICK.every_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_loop
async def test_a_server_that_is_not_there_is_an_error_in_words() -> None:
    keeper = new_keeper("http://127.0.0.1:9")
    with pytest.raises(ApiError, match="listing pods failed"):
        await keeper.round()
    await keeper.close()


@in_loop
async def test_it_ends_when_it_is_told_to(caplog: pytest.LogCaptureFixture) -> None:
    import os
    import signal

    caplog.set_level(logging.INFO)
    async with scene(a=40_000.0) as one:
        kept = asyncio.ensure_future(keep(one.keeper))
        await until(lambda: one.api.cost("a") == "1000")
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await kept
    assert "the costs stay as they are" in caplog.text


def test_outside_a_pod_the_command_asks_for_what_it_lacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--selector", SELECTOR]) == 2
    assert "--kubernetes-namespace" in capsys.readouterr().err
    assert main(["--selector", SELECTOR, "--kubernetes-namespace", "x"]) == 2
    assert "--kubernetes-api" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--selector", SELECTOR, "--every-s", "0"])
