"""How the router comes to know its workers: handshakes, feeds, deaths, returns, and those it must refuse."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from tests.router.fakes import MODEL, FakeWorker, ForeignServer, cuts_before
from tests.router.harness import Client, in_loop, routed, until
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.events import Stored
from trieway.meta_tree.frames import Hello, encode
from trieway.meta_tree.publisher import Publisher
from trieway.router.core import WorkerRow

LONG = "z" * 1280

pytestmark = pytest.mark.usefixtures("both_planes")


def row(client: Client, worker: FakeWorker | ForeignServer) -> WorkerRow:
    rows = client.router.core.workers(time.monotonic())
    return next(row for row in rows if row.worker == worker.id)


async def blocks(client: Client, worker: FakeWorker) -> int:
    status, tree = await client.get("/tree")
    assert status == 200
    return int(tree["workers"][worker.id]["blocks"])


def link_note(client: Client, worker: FakeWorker | ForeignServer) -> str:
    return client.router.links.get(worker.id).note  # type: ignore[arg-type]


@in_loop
async def test_a_feed_is_applied_and_agrees() -> None:
    worker = FakeWorker()
    chain = worker.key.chain(_common())
    before = chain.hashes(b"before" * 64)
    worker.publish(_stored(chain.root, before))
    async with routed(worker) as client:
        assert row(client, worker).blocks == len(before)
        await client.complete(LONG)
        await until(lambda: row(client, worker).number == worker.publisher.number)
        await until(lambda: row(client, worker).drift_blocks == 0)
        told = (await client.get("/tree"))[1]["workers"][worker.id]
        assert told["blocks"] == worker.publisher.blocks == len(before) + 20
        assert told["digest"] == f"{worker.publisher.digest_total:016x}"
        assert told["epoch"] == worker.epoch
        assert told["lag_events"] == told["gaps"] == told["drift_blocks"] == 0


@in_loop
async def test_a_dead_workers_prefixes_vanish_at_once_and_it_returns() -> None:
    worker, other = FakeWorker(), FakeWorker()
    async with routed(worker, other) as client:
        for index in range(8):
            await client.complete(f"{index}" * 640)
        await until(lambda: row(client, worker).blocks and row(client, other).blocks)
        await worker.kill()
        killed = time.monotonic()
        while await blocks(client, worker):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert time.monotonic() - killed < 1.0
        assert (await blocks(client, other)) > 0, "another worker's claims stay"
        assert row(client, worker).state == "gone"
        assert {(await client.complete(f"{index}" * 640)).worker for index in range(8)} == {other.id}

        await worker.restart()
        back = time.monotonic()
        await client.worker_up(worker)
        served = {(await client.complete(f"new {index} " * 64)).worker for index in range(20)}
        assert time.monotonic() - back < 5.0
        assert worker.id in served, "a returned worker takes traffic"
        assert row(client, worker).epoch == worker.epoch


@in_loop
async def test_sequential_distinct_prompts_spread_from_the_first_second_on() -> None:
    pair = FakeWorker(), FakeWorker()
    async with routed(*pair) as client:
        for index in range(40):
            assert (await client.complete(f"{index} distinct " * 50)).status == 200
        assert min(len(worker.completions()) for worker in pair) >= 12


@in_loop
async def test_a_feed_that_drops_is_resumed_without_a_new_snapshot() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        await client.complete(LONG)
        await until(lambda: row(client, worker).number == 1)
        feeds = [seen.query for seen in worker.http.seen if seen.path == "/cache/feed"]
        assert feeds == [{}]
        await worker.http.drop("/cache/feed")
        await until(lambda: len([s for s in worker.http.seen if s.path == "/cache/feed"]) == 2)
        await client.complete(LONG + "more" * 64)
        await until(lambda: row(client, worker).number == 2)
        assert [seen.query for seen in worker.http.seen if seen.path == "/cache/feed"][1] == {
            "since": "1",
            "epoch": str(worker.epoch),
        }
        assert row(client, worker).drift_blocks == 0


@in_loop
async def test_drift_is_seen_and_mended() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        await client.complete(LONG)
        await until(lambda: row(client, worker).number == 1)
        # Other blocks under the same epoch and number, as if events had been lost.
        chain = worker.key.chain(_common())
        worker.publisher = Publisher(epoch=worker.epoch, seed_id=worker.key.seed_id, group=worker.group)
        worker.publish(_stored(chain.root, chain.hashes(b"other" * 64)))
        await worker.http.drop("/cache/feed")
        await until(lambda: row(client, worker).resyncs == 1)
        await until(lambda: row(client, worker).drift_blocks == 0)
        assert row(client, worker).blocks == worker.publisher.blocks


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("wire", {"wire": 99}, "wire version"),
    ("block size", {"block_bytes": 32}, "blocks"),
    ("seed", {"seed_id": "0" * 16}, "fleet_secret_file"),
    ("template", {"template": "{% nonsense %}"}, ""),
]


@pytest.mark.parametrize(("changes", "word"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_worker_that_cannot_agree_is_refused_loudly(
    changes: dict[str, Any], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def run() -> None:
        worker, good = FakeWorker(group="odd"), FakeWorker()
        worker.card_changes = changes
        async with routed(worker, good, wait=False) as client:
            await client.worker_up(good)
            await until(lambda: client.router.links.get(worker.id).state == "refused")  # type: ignore[arg-type]
            assert word in link_note(client, worker)
            assert {(await client.complete(f"{index}")).worker for index in range(6)} == {good.id}
            listed = {row["id"]: row for row in (await client.get("/workers"))[1]["workers"]}
            assert listed[worker.id]["link"] == "refused"
            assert word in listed[worker.id]["note"]

    with caplog.at_level(logging.ERROR):
        run()
    assert "is refused" in caplog.text


@in_loop
async def test_another_fleets_worker_is_refused_and_learns_no_secret() -> None:
    theirs = FakeWorker(key=FleetKey.from_secret(b"another secret!!"))
    async with routed(theirs, wait=False, key=FleetKey.from_secret(b"our own secret!!")) as client:
        await until(lambda: client.router.links.get(theirs.id).state == "refused")  # type: ignore[arg-type]
        assert "fleet_secret_file" in link_note(client, theirs)
        assert (await client.complete()).status == 503
    assert b"secret" not in repr(theirs.http.seen).encode()


@in_loop
async def test_a_refused_worker_is_taken_once_it_agrees() -> None:
    worker = FakeWorker()
    worker.card_changes = {"wire": 99}
    async with routed(worker, wait=False) as client:
        await until(lambda: client.router.links.get(worker.id).state == "refused")  # type: ignore[arg-type]
        worker.card_changes = {}
        await client.worker_up(worker)
        assert (await client.complete()).status == 200


FEEDS = [
    b"\xff" * 64,
    b"\x05\x00\x00\x00\xee1234",
    encode(Hello(wire=99, block_bytes=64, seed_id="0" * 16, group="g", epoch=1, number=0)),
    encode(Hello(wire=1, block_bytes=64, seed_id="0" * 16, group="group-1", epoch=100, number=0)),
]


@pytest.mark.parametrize("garbage", FEEDS, ids=["noise", "unknown frame", "wrong wire", "wrong seed"])
def test_a_feed_that_cannot_be_read_does_not_harm_the_router(garbage: bytes) -> None:
    @in_loop
    async def run() -> None:
        worker, good = FakeWorker(), FakeWorker()
        worker.feed_bytes = garbage
        async with routed(worker, good, wait=False) as client:
            await client.worker_up(good)
            await until(lambda: client.router.links.get(worker.id).state == "refused")  # type: ignore[arg-type]
            assert row(client, worker).blocks == 0
            assert all([(await client.complete(f"{index}")).status == 200 for index in range(4)])
            worker.feed_bytes = None
            await client.worker_up(worker)

    run()


@in_loop
async def test_a_worker_that_is_not_ready_gets_nothing() -> None:
    worker, good = FakeWorker(), FakeWorker()
    worker.health = 503
    async with routed(worker, good, wait=False) as client:
        await client.worker_up(good)
        assert {(await client.complete(f"{index}")).worker for index in range(6)} == {good.id}
        worker.health = 200
        await client.worker_up(worker)


@in_loop
async def test_a_silent_feed_makes_a_suspect() -> None:
    worker, good = FakeWorker(), FakeWorker()
    async with routed(worker, good, heartbeat_timeout_s=1.5) as client:
        worker.feed_hangs = True
        await worker.http.drop("/cache/feed")
        await until(lambda: row(client, worker).state == "suspect")
        assert {(await client.complete(f"{index}")).worker for index in range(6)} == {good.id}
        worker.feed_hangs = False
        await client.worker_up(worker)


@in_loop
async def test_the_token_goes_to_nobody_who_is_not_ours() -> None:
    foreign = ForeignServer()
    async with routed(foreign) as client:
        reply = await client.post("/v1/completions", {"model": "foreign-model", "prompt": "p"})
        assert reply.status == 200
        assert client.router.links.get(foreign.id).fleet is False
    token = FleetKey.from_secret(None).feed_token
    assert token not in repr(foreign.http.seen)
    assert not any(seen.path.startswith("/cache") for seen in foreign.http.seen)


@in_loop
async def test_a_foreign_workers_cache_is_guessed_from_history() -> None:
    pair = ForeignServer(), ForeignServer()
    async with routed(*pair) as client:
        turns: list[dict[str, str]] = [{"role": "user", "content": "hello " * 200}]
        served = set()
        for _ in range(4):
            reply = await client.post("/v1/chat/completions", {"model": "foreign-model", "messages": turns})
            served.add(reply.worker)
            turns += [{"role": "assistant", "content": "sure " * 100}, {"role": "user", "content": "go on " * 50}]
        assert len(served) == 1, "a conversation stays where its history is"
        assert int(reply.headers["x-trieway-predicted-tokens"]) > 100
        assert reply.headers["x-trieway-cached-tokens"] == "2", "as the engine's usage says"
        ids = list(range(5000))
        placed = {
            (await client.post("/v1/completions", {"model": "foreign-model", "prompt": ids})).worker for _ in range(4)
        }
        assert len(placed) == 1, "token ids are keyed too"
        listed = (await client.get("/workers"))[1]["workers"]
        assert all(entry["approximate"] and entry["drift_blocks"] is None for entry in listed)


@in_loop
async def test_a_foreign_worker_dies_and_returns() -> None:
    foreign = ForeignServer(models=("a", "b"))
    async with routed(foreign) as client:
        assert (await client.post("/v1/completions", {"model": "b", "prompt": LONG})).status == 200
        await foreign.kill()
        assert (await client.post("/v1/completions", {"model": "b", "prompt": "p"})).status in (502, 503)
        await until(lambda: row(client, foreign).state == "gone")
        assert row(client, foreign).blocks == 0
        await foreign.http.start()
        await client.worker_up(foreign)
        assert (await client.post("/v1/completions", {"model": "b", "prompt": "p"})).status == 200


@in_loop
async def test_an_engine_that_is_dead_inside_gets_nothing() -> None:
    foreign = ForeignServer()
    async with routed(foreign) as client:
        foreign.health = 503
        await until(lambda: row(client, foreign).state == "gone")
        assert (await client.post("/v1/completions", {"model": "foreign-model", "prompt": "p"})).status == 503
        assert (await client.get("/health"))[0] == 503


@in_loop
async def test_a_failed_request_makes_the_router_look_at_once() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        worker.answer = cuts_before
        assert (await client.complete()).status == 502
        assert row(client, worker).state == "up", "one broken answer is not a dead process"


@in_loop
async def test_a_fault_of_our_own_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    worker = FakeWorker()
    async with routed(worker, wait=False) as client:
        core = client.router.core
        add, left = core.add_worker, [1]

        def fails_once(*args: Any, **kwargs: Any) -> None:
            if left:
                left.clear()
                raise AssertionError("our own fault")
            add(*args, **kwargs)

        core.add_worker = fails_once  # type: ignore[method-assign]
        await client.worker_up(worker)
        assert not left
    assert "following it failed" in caplog.text


@in_loop
async def test_two_groups_of_one_model_live_side_by_side() -> None:
    old, new = FakeWorker(group="old"), FakeWorker(group="new", template="NEW {{ messages[0].content }}")
    chats = [{"model": MODEL, "messages": [{"role": "user", "content": f"{index}" * 1280}]} for index in range(12)]
    async with routed(old, new) as client:
        first = [(await client.post("/v1/chat/completions", chat)).worker for chat in chats]
        assert set(first) == {old.id, new.id}
        await until(lambda: row(client, old).lag_events == row(client, new).lag_events == 0)
        await until(lambda: row(client, old).number == old.publisher.number)
        await until(lambda: row(client, new).number == new.publisher.number)
        again = [await client.post("/v1/chat/completions", chat) for chat in chats]
        assert [reply.worker for reply in again] == first
        assert all(reply.headers["x-trieway-predicted-tokens"] != "0" for reply in again)


def _common() -> Any:
    from trieway.meta_tree.ids import Namespace

    return Namespace()


def _stored(root: int, hashes: list[int]) -> Stored:
    return Stored(
        namespace_id=root, parent=root, hashes=tuple(hashes), usable=tuple(16 * (at + 1) for at in range(len(hashes)))
    )
