"""The control plane: registry, explain, tree, models, probes, keys, metrics, dashboard."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from typing import Any

import pytest

from tests.router.fakes import MODEL, VOCABULARY, FakeWorker, ForeignServer, hangs, well
from tests.router.harness import Client, in_loop, routed, until
from trieway.router import registry
from trieway.serving.auth import KeyRing

KEYED = KeyRing({"key-a": "acme", "key-b": "bolt", "key-c": None}, admin_key="root")
LONG = "q" * 1280

pytestmark = pytest.mark.usefixtures("both_planes")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def applied(client: Client, worker: FakeWorker) -> None:
    """Waits until the worker's announcements have come in."""
    rows = client.router.core.workers
    await until(lambda: rows(time.monotonic())[0].number == worker.publisher.number > 0)


@in_loop
async def test_workers_are_added_listed_and_removed() -> None:
    first, second = await FakeWorker().start(), await FakeWorker(model="other").start()
    async with routed(first) as client:
        assert (await client.complete(model="other")).status == 404
        added = await client.post("/workers", {"url": second.url + "/v1/"})
        assert (added.status, added.json) == (201, {"id": second.id, "url": second.url})
        assert (await client.post("/workers", {"url": second.url})).status == 200
        await client.worker_up(second)
        assert (await client.complete(model="other")).worker == second.id
        listed = {row["id"]: row for row in (await client.get("/workers"))[1]["workers"]}
        assert listed[second.id]["model"] == "other"
        assert listed[second.id]["kind"] == "trieway"
        assert listed[first.id]["booked"] == 0
        async with client.http.delete(f"{client.url}/workers/{second.id}") as response:
            assert response.status == 200
        assert len((await client.get("/workers"))[1]["workers"]) == 1
        assert (await client.complete(model="other")).status == 404
        async with client.http.delete(f"{client.url}/workers/{second.id}") as response:
            assert response.status == 404
    await second.kill()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": 1},
        {"url": "ftp://x"},
        {"url": "http://"},
        {"url": "http://u:p@h:1"},
        {"url": "http://h:99999"},
        b"[",
    ],
)
def test_bad_worker_urls_are_refused(body: Any) -> None:
    @in_loop
    async def run() -> None:
        async with routed() as client:
            reply = await client.post("/workers", body)
            assert (reply.status, reply.error["param"]) == (400, "url")

    run()


@in_loop
async def test_a_full_registry_says_so() -> None:
    async with routed(FakeWorker(), workers_max=1) as client:
        assert (await client.post("/workers", {"url": "http://127.0.0.1:1"})).status == 503


@in_loop
async def test_a_drained_worker_finishes_what_it_has() -> None:
    worker, other = FakeWorker(), FakeWorker()
    go = asyncio.Event()

    async def waits(worker: FakeWorker, seen: Any, wire: Any) -> None:
        await go.wait()
        await well(worker, seen, wire)

    worker.answer = other.answer = waits
    async with routed(worker, other) as client:
        tasks = [asyncio.ensure_future(client.complete(f"{index}" * 99)) for index in range(8)]
        await until(lambda: worker.waiting + other.waiting == 8)  # none is on its way still
        other.answer = well
        async with client.http.delete(f"{client.url}/workers/{worker.id}?drain=true") as response:
            assert response.status == 202
        before = len(worker.completions())
        assert {(await client.complete(f"new {index}")).worker for index in range(6)} == {other.id}
        # A feed that comes back does not undo the drain.
        await worker.http.drop("/cache/feed")
        await asyncio.sleep(0.1)
        assert {(await client.complete(f"newer {index}")).worker for index in range(6)} == {other.id}
        assert len(worker.completions()) == before
        assert client.router.links.find(worker.id) is not None
        go.set()
        assert {reply.status for reply in await asyncio.gather(*tasks)} == {200}
        await until(lambda: client.router.links.find(worker.id) is None)


@in_loop
async def test_removing_a_worker_under_its_requests_breaks_nothing() -> None:
    worker = FakeWorker()
    worker.answer = hangs
    async with routed(worker) as client:
        task = asyncio.ensure_future(client.complete())
        await until(lambda: worker.waiting)
        async with client.http.delete(f"{client.url}/workers/{worker.id}") as response:
            assert response.status == 200
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: client.router.dispatcher.running == 0)


@in_loop
async def test_explain_dispatches_nothing_and_agrees_with_what_happens() -> None:
    worker, other = FakeWorker(), FakeWorker()
    async with routed(worker, other) as client:
        served = (await client.complete(LONG)).worker
        await until(lambda: sum(row.blocks for row in client.router.core.workers(0.0)) == 20)
        sent = len(worker.completions()) + len(other.completions())
        told = (await client.post("/explain", {"model": MODEL, "prompt": LONG})).json
        assert len(worker.completions()) + len(other.completions()) == sent
        assert told["choice"]["worker"] == served
        assert told["blocks"] == 20
        rows = {row["worker"]: row for row in told["workers"]}
        assert rows[served]["matched_tokens"]["device"] == 319
        assert rows[served]["matched_tokens"].keys() == {"device", "host", "external"}
        terms = ("queue_ms", "prefill_ms", "reload_ms", "interference_ms")
        for row in rows.values():
            assert sum(row[term] for term in terms) == pytest.approx(row["ttft_ms"], abs=0.01)
        assert (await client.complete(LONG)).worker == served
        chat = {"model": MODEL, "messages": [{"role": "user", "content": LONG}]}
        assert (await client.post("/explain", chat)).json["blocks"] == 20
        unknown = (await client.post("/explain", {"model": "no", "prompt": "p"})).json
        assert unknown["choice"] is None
        assert unknown["rejected"]["reason"] == "unknown_model"
        assert (await client.post("/explain", b"{")).status == 400
        assert client.booked() == 0


@in_loop
async def test_explain_looks_into_the_callers_own_namespace_only() -> None:
    worker = FakeWorker()
    async with routed(worker, ring=KEYED) as client:
        body = {"model": MODEL, "prompt": LONG}
        assert (await client.post("/v1/completions", body, headers=bearer("key-a"))).status == 200
        await applied(client, worker)

        async def matched(key: str, **more: Any) -> int:
            reply = await client.post("/explain", {**body, **more}, headers={**bearer(key), "x-tenant-id": "acme"})
            return int(reply.json["workers"][0]["matched_tokens"]["device"])

        assert await matched("key-a") == 319
        assert await matched("key-b") == await matched("key-c") == 0
        assert await matched("key-a", cache_salt="s") == 0
        assert (await client.post("/explain", body)).status == 401


@in_loop
async def test_salts_and_tenants_do_not_share() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:

        async def cached(tenant: str | None, salt: str | None) -> list[str]:
            headers = {"x-tenant-id": tenant} if tenant else {}
            body = {"model": MODEL, "prompt": LONG, "cache_salt": salt}
            reply = await client.post("/v1/completions", body, headers=headers)
            await applied(client, worker)
            return [reply.headers[f"x-trieway-{what}-tokens"] for what in ("predicted", "cached")]

        for namespace in [(None, None), ("t", None), (None, "t"), ("t", "t")]:
            assert await cached(*namespace) == ["0", "0"]
            assert await cached(*namespace) == ["319", "319"]


ADMIN = [("GET", "/workers"), ("POST", "/workers"), ("DELETE", "/workers/x"), ("GET", "/tree"), ("GET", "/")]
KEYS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/cache/prefix"),
    ("POST", "/explain"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
]
OPEN = ["/livez", "/readyz", "/health", "/metrics"]


@in_loop
async def test_who_may_do_what() -> None:
    async with routed(FakeWorker(), ring=KEYED) as client:

        async def status(method: str, path: str, key: str | None) -> int:
            headers = bearer(key) if key else {}
            async with client.http.request(method, client.url + path, headers=headers) as response:
                return response.status

        for method, path in ADMIN:
            assert await status(method, path, None) == 401, path
            if path != "/":
                assert await status(method, path, "key-a") == 403, path
            assert await status(method, path, "root") not in (401, 403), path
        for method, path in KEYS:
            assert await status(method, path, None) == 401, path
            assert await status(method, path, "wrong") == 401, path
            assert await status(method, path, "key-a") != 401, path
        for path in OPEN:
            assert await status("GET", path, None) == 200, path


@in_loop
async def test_without_an_admin_key_the_admin_routes_are_open() -> None:
    async with routed(FakeWorker()) as client:
        for path in ("/workers", "/tree", "/"):
            assert (await client.get(path))[0] == 200


@in_loop
async def test_probes_are_honest() -> None:
    worker, other = FakeWorker(), FakeWorker()
    async with routed(worker, other) as client:
        assert (await client.get("/livez"))[0] == 200
        assert (await client.get("/health"))[0] == 200
        status, ready = await client.get("/readyz")
        assert (status, ready["index_share"], ready["up"], ready["workers"]) == (200, 1.0, 2, 2)
        await worker.kill()
        await until(lambda: client.router.links.get(worker.id).state == "away")  # type: ignore[arg-type]
        assert (await client.get("/health"))[0] == 200
        await other.kill()
        await until(lambda: client.router.links.get(other.id).state == "away")  # type: ignore[arg-type]
        assert (await client.get("/livez"))[0] == 200
        status, health = await client.get("/health")
        assert (status, health["up"], health["workers"]) == (503, 0, 2)
        assert (await client.get("/readyz"))[0] == 503


@in_loop
async def test_a_router_that_has_asked_nobody_is_not_ready() -> None:
    async with routed() as client:
        assert (await client.get("/livez"))[0] == 200
        assert (await client.get("/readyz"))[0] == 503
        assert (await client.get("/health"))[0] == 503
        assert (await client.complete()).status == 503


@in_loop
async def test_readiness_waits_for_the_index() -> None:
    workers = [FakeWorker() for _ in range(3)]
    for worker in workers[1:]:
        worker.feed_hangs = True
    async with routed(*workers, wait=False) as client:
        await client.worker_up(workers[0])
        await until(lambda: all(link.state == "up" for link in client.router.links))
        status, ready = await client.get("/readyz")
        assert (status, ready["index_share"]) == (503, 0.3333)
        workers[1].feed_hangs = False
        await workers[1].http.drop("/cache/feed")
        await client.worker_up(workers[1])
        status, ready = await client.get("/readyz")
        assert (status, ready["index_share"]) == (200, 0.6667)


@in_loop
async def test_models_are_those_of_the_workers() -> None:
    worker = FakeWorker()
    worker.card_changes = {"aliases": ("short",)}
    async with routed(worker, ForeignServer(models=("m1", "m2"))) as client:
        status, listed = await client.get("/v1/models")
        assert status == 200
        assert [entry["id"] for entry in listed["data"]] == [MODEL, "m1", "m2", "short"]
        assert all(entry["object"] == "model" for entry in listed["data"])
        assert (await client.get("/v1/models/short"))[1]["id"] == "short"
        assert (await client.get("/v1/models/none"))[0] == 404
        assert (await client.complete(model="short")).status == 200
        missing = await client.complete(model="none")
        assert (missing.status, missing.error["param"], missing.error["code"]) == (404, "model", "model_not_found")
        assert (await client.post("/v1/completions", {"prompt": "p"})).status == 400


@in_loop
async def test_one_model_need_not_be_named() -> None:
    async with routed(FakeWorker()) as client:
        assert (await client.post("/v1/completions", {"prompt": "p"})).status == 200


@in_loop
async def test_tokenize_is_passed_on() -> None:
    worker, other = FakeWorker(), FakeWorker()
    async with routed(worker, other, ring=KEYED) as client:
        body = b'{"model":"fake-model", "prompt":"as it is"}'
        for path in ("/tokenize", "/detokenize"):
            reply = await client.post(path, body, headers=bearer("key-a"))
            assert (reply.status, reply.json) == (200, {"tokens": [1, 2]})
        await (worker if reply.worker == worker.id else other).kill()
        reply = await client.post("/tokenize", body, headers=bearer("key-a"))
        assert reply.status == 200
        seen = [seen for each in (worker, other) for seen in each.http.seen if seen.path == "/tokenize"]
        assert {each.body for each in seen} == {body}
        assert seen[0].header("authorization") is None
        assert seen[0].header("x-trieway-tenant") == "acme"
        assert (await client.post("/tokenize", {"model": "none"}, headers=bearer("key-a"))).status == 404
        assert (await client.post("/tokenize", b"{", headers=bearer("key-a"))).status == 400


@in_loop
async def test_the_hint_is_routed_and_followed() -> None:
    worker, other = FakeWorker(), FakeWorker()
    async with routed(worker, other) as client:
        hint = await client.post("/cache/prefix", {"model": MODEL, "prompt": LONG})
        assert hint.status == 200
        held = worker if hint.worker == worker.id else other
        assert [seen.target for seen in held.http.seen if seen.method == "POST"] == ["/cache/prefix"]
        await until(lambda: sum(row.blocks for row in client.router.core.workers(0.0)) == 20)
        assert {(await client.complete(LONG + f" fork {index}")).worker for index in range(4)} == {held.id}
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "c"}]}
        assert (await client.post("/cache/prefix", chat)).status == 200


@in_loop
async def test_token_ids_are_keyed_through_the_vocabulary() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        ids = [index % len(VOCABULARY) for index in range(320)]
        first = await client.complete(ids)
        fetched = [seen for seen in worker.http.seen if "part=vocabulary" in seen.target]
        assert len(fetched) == 1, "fetched when first needed"
        await applied(client, worker)
        again = await client.complete(ids)
        text = await client.complete(b"".join(VOCABULARY[each] for each in ids).decode())
        assert len([seen for seen in worker.http.seen if "part=vocabulary" in seen.target]) == 1
    assert [reply.headers["x-trieway-predicted-tokens"] for reply in (first, again, text)] == ["0", "319", "319"]


@in_loop
async def test_a_vocabulary_that_does_not_come_holds_up_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "VOCABULARY_WAIT_S", 0.2)
    worker = FakeWorker()
    worker.vocabulary_hangs = True
    async with routed(worker) as client:
        assert (await client.complete([1, 2, 3])).status == 200
        started = time.monotonic()
        assert (await client.complete([1, 2, 3])).status == 200
        assert time.monotonic() - started < 0.15
        assert (await client.complete("text")).status == 200


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b'{"model": 1, "prompt": "p"}',
    b'{"model": "fake-model"}',
    b'{"model": "fake-model", "prompt": {}}',
    b'{"model": "fake-model", "prompt": "\xff\xfe"}',
    b'{"model": "fake-model", "prompt": "\\ud800"}',
    b'{"model": "fake-model", "prompt": []}',
    b"[" * 100_000,
]


@in_loop
async def test_bad_bodies_are_400_and_the_next_request_works() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        for body in BAD_BODIES:
            for path in ("/v1/completions", "/explain", "/cache/prefix"):
                reply = await client.post(path, body)
                assert reply.status == 400, (path, body[:40])
                assert reply.error["type"] == "invalid_request_error"
        assert (await client.post("/v1/chat/completions", b'{"model": "fake-model", "messages": []}')).status == 400
        assert (await client.post("/v1/completions", b"{}", headers={"content-encoding": "gzip"})).status == 400
        assert worker.completions() == []
        assert (await client.complete()).status == 200


@in_loop
async def test_too_large_a_body_is_refused_before_it_is_read() -> None:
    worker = FakeWorker()
    async with routed(worker, body_max_bytes=100_000) as client:

        async def endless() -> Any:
            for _ in range(30):
                yield b"x" * 10_000

        for path in ("/v1/completions", "/v1/chat/completions", "/explain", "/workers"):
            assert (await client.post(path, b" " * 100_001)).status == 413
            async with client.http.post(client.url + path, data=endless()) as response:
                assert response.status == 413
                assert json.loads(await response.read())["error"]["code"] == "body_too_large"
        assert (await client.complete("x" * 90_000)).status == 200
        assert (await client.complete("y" * 99_000 + "z" * 2000)).status == 413


@in_loop
async def test_routes_that_do_not_exist_have_openais_shape() -> None:
    async with routed() as client:
        status, body = await client.get("/nothing")
        assert (status, body["error"]["type"]) == (404, "not_found_error")
        for path in ("/v1/completions", "/v1/chat/completions", "/cache/prefix"):
            status, body = await client.get(path)
            assert (status, body["error"]["code"]) == (405, "method_not_allowed")
        status, described = await client.get("/openapi.json")
        assert {"/v1/completions", "/explain", "/workers"} <= set(described["paths"])


@in_loop
async def test_metrics_tell_what_happened_and_hold_no_text() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        await client.complete("secret words " * 100, user="someone", model=MODEL)
        await applied(client, worker)
        await client.complete("secret words " * 100, stream=True)
        await client.complete(model="asked-for-in-vain")
        status, raw = await client.get("/metrics")
        text = raw.decode()
    assert status == 200
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}
    label = f'worker="{worker.id}"'
    ok = [value for name, value in values.items() if name.startswith("trieway_router_requests_total") and "200" in name]
    assert sum(ok) == 2
    assert values['trieway_router_requests_total{code="404",reason="",worker=""}'] == 1
    assert values['trieway_router_reuse_tokens_total{stage="delivered"}'] > 300
    assert values['trieway_router_reuse_tokens_total{stage="chosen"}'] > 300
    assert values['trieway_router_reuse_tokens_total{stage="available"}'] > 300
    assert values["trieway_router_decision_seconds_count"] == 3
    assert values[f"trieway_router_ttft_seconds_count{{{label}}}"] == 2
    for gauge in ("booked_requests", "booked_tokens", "breaker_state", "feed_lag_events"):
        assert values[f"trieway_router_{gauge}{{{label}}}"] == 0, gauge
    for counter in ("feed_gaps_total", "feed_resyncs_total"):
        assert values[f"trieway_router_{counter}{{{label}}}"] == 0, counter
    assert values["trieway_router_tree_blocks"] == 20
    assert values["trieway_router_tree_bytes"] > 0
    for word in ("secret", "someone", "asked-for-in-vain"):
        assert word not in text


@in_loop
async def test_a_removed_workers_series_go_with_it() -> None:
    worker, other = FakeWorker(), FakeWorker()
    async with routed(worker, other) as client:
        for index in range(6):
            await client.complete(f"{index}" * 640)
        async with client.http.delete(f"{client.url}/workers/{worker.id}"):
            pass
        text = (await client.get("/metrics"))[1].decode()
    assert worker.id not in text
    assert other.id in text


@in_loop
async def test_the_tree_shows_hashes_and_counts_only() -> None:
    worker = FakeWorker()
    async with routed(worker) as client:
        await client.complete("secret words " * 100)
        await applied(client, worker)
        status, tree = await client.get("/tree?depth=2")
        assert status == 200
        assert tree["nodes"] == tree["blocks"] == 20
        assert tree["bytes"] > 0
        assert "secret" not in json.dumps(tree)
        assert re.search(r'"hash": "[0-9a-f]{16}"', json.dumps(tree["dump"]))
        assert "dump" not in (await client.get("/tree"))[1]
        assert (await client.get("/tree?depth=-1"))[0] == 400
        assert (await client.get("/tree?depth=x"))[0] == 400


@in_loop
async def test_the_dashboard_is_a_table_and_escapes() -> None:
    foreign = ForeignServer(models=("<script>alert(1)</script>",))
    async with routed(foreign, ring=KEYED) as client:
        status, page = await client.get("/")
        assert (status, foreign.id in page.decode()) == (401, False)
        basic = base64.b64encode(b"any:root").decode()
        status, page = await client.get("/", headers={"authorization": f"Basic {basic}"})
        assert (status, foreign.id in page.decode()) == (200, True)
        assert b"<script" not in page
        bad = {"authorization": "Basic ///"}
        assert (await client.get("/", headers=bad))[0] == 401
