"""One worker hands its prefixes to others over HTTP: they hit there, are announced there, and cost nobody."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from trieway.worker.core import legacy
from trieway.worker.core.legacy import gift_tokens

from .fakes import TABLE
from .harness import CONFIG, Worker, running

PROMPT = "a shared system prompt of some length that everybody begins with, and then goes on: "


@pytest.fixture
def giver() -> Iterator[Worker]:
    with running() as one:
        yield one


@pytest.fixture
def taker() -> Iterator[Worker]:
    with running() as one:
        yield one


def give(giver: Worker, *takers: str, **fields: Any) -> dict[str, Any]:
    answer = giver.client.post("/cache/handover", json={"to": list(takers), **fields}, headers=giver.bearer())
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cached(worker: Worker, prompt: str, **fields: Any) -> int:
    found = worker.complete(prompt, max_tokens=1, **fields)
    return int(found["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_what_one_computed_the_other_hits(giver: Worker, taker: Worker) -> None:
    for tail in ("first", "second", "third"):
        giver.complete(PROMPT + tail, max_tokens=1)
    given = give(giver, taker.url)
    assert given["given"] == {taker.url: given["prefixes"]}
    prompt = PROMPT + "second"
    assert cached(taker, prompt) == cached(giver, prompt) > len(PROMPT) // 2
    held = taker.built.service.feed.publisher
    assert held.blocks >= len(PROMPT) // 64, "the taker announces what it took"


def test_generated_text_keeps_its_exact_tokens(giver: Worker, taker: Worker) -> None:
    turn = giver.complete(PROMPT, max_tokens=40, temperature=1.5, seed=11)
    prompt = PROMPT + turn["choices"][0]["text"] + " and"
    give(giver, taker.url)
    assert cached(taker, prompt) == cached(giver, prompt)


def test_namespaces_stay_apart(giver: Worker, taker: Worker) -> None:
    giver.complete(PROMPT, max_tokens=1, cache_salt="a secret of one")
    give(giver, taker.url)
    assert cached(taker, PROMPT) == 0
    assert cached(taker, PROMPT, cache_salt="a secret of one") > 0


def test_the_bound_on_tokens_holds(giver: Worker, taker: Worker) -> None:
    giver.complete(PROMPT, max_tokens=1)
    give(giver, taker.url, tokens_max=20)
    assert 0 < taker.stats().kv_cached <= 20


def test_a_giver_gives_the_share_that_is_asked_for(giver: Worker, taker: Worker) -> None:
    for head in "abcdefghijklmnop":
        giver.complete(head * 120, max_tokens=1)
    give(giver, taker.url, share=0.125)
    assert 0 < taker.stats().kv_cached <= gift_tokens(CONFIG.kv_tokens, 0.125)


def test_givers_at_once_give_no_more_than_a_takers_share(giver: Worker, taker: Worker) -> None:
    """Each believes to be alone: what they give together is bounded by the taker."""
    with running() as other:
        for worker, heads in ((giver, "abcdefghijklmnop"), (other, "ABCDEFGHIJKLMNOP")):
            for head in heads:
                worker.complete(head * 120, max_tokens=1)
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda one: give(one, taker.url), (giver, other)))
    assert all(one["given"][taker.url] > 0 for one in found), "they take turns"
    share = gift_tokens(CONFIG.kv_tokens, legacy.SHARE_OF_TAKER)
    assert share * 0.8 < taker.stats().kv_cached <= share


def test_a_newcomer_takes_from_each_in_turn_until_it_has_its_share(giver: Worker, taker: Worker) -> None:
    with running() as other:
        for worker, heads in ((giver, "abcdefghijklmnop"), (other, "ABCDEFGHIJKLMNOP")):
            for head in heads:
                worker.complete(head * 120, max_tokens=1)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda one: give(one, taker.url, share=0.3), (giver, other)))
        share = gift_tokens(CONFIG.kv_tokens, 0.3)
        assert share * 0.8 < taker.stats().kv_cached <= share
        held = [sum(cached(taker, head * 120) > 60 for head in heads) for heads in ("ponm", "PONM")]
    assert min(held) >= 1


def test_a_long_path_is_computed_in_pieces(giver: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a user who comes waits for one of them."""
    monkeypatch.setattr(legacy.pieces, "__defaults__", (32,))
    giver.complete(PROMPT * 2, max_tokens=1)
    with running() as taker:
        give(giver, taker.url)
        held = taker.stats()
        assert cached(taker, PROMPT * 2) == cached(giver, PROMPT * 2)
    assert held.requests_total == -(-held.kv_cached // 32)
    assert held.computed_tokens_total <= held.kv_cached + held.requests_total, "nothing twice but last tokens"


def test_what_a_taker_has_already_costs_it_nothing(giver: Worker, taker: Worker) -> None:
    for worker in (giver, taker):
        worker.complete(PROMPT, max_tokens=1)
    before = taker.stats().computed_tokens_total
    give(giver, taker.url)
    assert taker.stats().computed_tokens_total - before <= 2


def test_a_taker_that_is_gone_costs_only_its_share(giver: Worker, taker: Worker) -> None:
    for head in "abcdefgh":
        giver.complete(head * 80, max_tokens=1)
    found = give(giver, taker.url, "http://127.0.0.1:9", timeout_s=10)
    assert found["given"]["http://127.0.0.1:9"] == 0
    assert 0 < found["given"][taker.url] < found["prefixes"]


def test_who_drains_serves_until_it_has_given_and_nothing_new_afterwards(giver: Worker, taker: Worker) -> None:
    giver.complete(PROMPT, max_tokens=1)
    give(giver, taker.url)
    assert cached(giver, PROMPT) > 0, "it serves on"
    give(giver, taker.url, drain=True)
    answer = giver.client.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT, "max_tokens": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert giver.client.get("/readyz").status_code == 503
    assert giver.built.service.load().draining, "routers hear it"
    assert cached(taker, PROMPT) > 0


def test_who_cannot_give_drains_all_the_same(giver: Worker) -> None:
    giver.complete(PROMPT, max_tokens=1)
    assert give(giver, "http://127.0.0.1:9", drain=True)["given"] == {"http://127.0.0.1:9": 0}
    assert giver.client.get("/readyz").status_code == 503


def test_two_takers_share_evenly(giver: Worker, taker: Worker) -> None:
    for head in "abcdefgh":
        giver.complete(head * 80, max_tokens=1)
    with running() as other:
        found = give(giver, taker.url, other.url)
        assert sorted(found["given"].values()) == [found["prefixes"] // 2] * 2


def test_a_stranger_takes_nothing(giver: Worker) -> None:
    giver.complete(PROMPT, max_tokens=1)
    with running(secret=b"another fleet") as stranger:
        assert give(giver, stranger.url)["given"] == {stranger.url: 0}
        assert stranger.stats().kv_cached == 0


@pytest.mark.parametrize("path", ["/cache/handover", "/cache/adopt"])
def test_only_the_fleet_may(worker: Worker, path: str) -> None:
    assert worker.client.post(path, json={"to": ["http://127.0.0.1:9"]}).status_code == 401
    assert worker.client.get("/cache/load").status_code == 401
    assert worker.client.get("/cache/worth").status_code == 401


def test_a_worker_says_what_its_cache_is_worth(giver: Worker) -> None:
    def worth() -> dict[str, float]:
        found: dict[str, float] = giver.client.get("/cache/worth", headers=giver.bearer()).json()
        return found

    assert worth() == {"worth_tokens": 0.0, "cached_tokens": 0}
    giver.complete(PROMPT, max_tokens=1)
    after = worth()
    assert after["cached_tokens"] == giver.stats().kv_cached > 0
    assert 0.9 * after["cached_tokens"] <= after["worth_tokens"] <= after["cached_tokens"], "just used"


@pytest.mark.parametrize(
    "paths",
    [
        [["1", "2", 0, []]],
        [["1", "2", 0, [len(TABLE)]]],
        [["1", "2", 0, [-1]]],
        [["one", "2", 0, [1]]],
        [["1", "2", 0]],
        "nothing",
    ],
)
def test_nonsense_is_refused(worker: Worker, paths: Any) -> None:
    card = worker.built.service.card
    gift = {"vocabulary_digest": card.vocabulary_digest, "seed_id": card.seed_id, "paths": paths, "share": 0.5}
    assert worker.client.post("/cache/adopt", json=gift, headers=worker.bearer()).status_code == 400


@pytest.mark.parametrize("share", [0.0, -0.1, 0.6])
def test_a_share_has_bounds(worker: Worker, share: float) -> None:
    card = worker.built.service.card
    order = {"to": ["http://127.0.0.1:9"], "share": share}
    gift = {"vocabulary_digest": card.vocabulary_digest, "seed_id": card.seed_id, "paths": [], "share": share}
    assert worker.client.post("/cache/handover", json=order, headers=worker.bearer()).status_code == 400
    assert worker.client.post("/cache/adopt", json=gift, headers=worker.bearer()).status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"to": []}, {"to": ["http://a"] * 100}, {"to": ["http://a"], "timeout_s": 1e9},
        {"to": ["http://a"], "timeout_s": 0}, {"to": ["http://a"], "tokens_max": -1}, {"to": [""]},
        {"to": ["garbage"]}, {"to": ["file:///etc/passwd"]}, {"to": ["http://a\nFAKE line"]}, {"to": ["http://a/b"]},
        {"to": ["http://user@a"]},
    ],
)  # fmt: skip
def test_orders_have_bounds(worker: Worker, fields: dict[str, Any]) -> None:
    assert worker.client.post("/cache/handover", json=fields, headers=worker.bearer()).status_code == 400


@pytest.mark.parametrize("host", ["..", "a" * 70 + ".x", "[::"])
def test_a_host_that_cannot_be_costs_only_its_share(giver: Worker, taker: Worker, host: str) -> None:
    for head in "abcdefgh":
        giver.complete(head * 80, max_tokens=1)
    given = give(giver, f"http://{host}:1", taker.url)["given"]
    assert given[f"http://{host}:1"] == 0
    assert given[taker.url] > 0


@pytest.mark.parametrize(
    ("status", "body", "given"),
    [
        (200, b'{"adopted":-5}', 0), (200, b'{"adopted":99999999999999999999999}', 1), (200, b'{"adopted":9999}', 1),
        (200, b"x" * 100_000, 0), (200, b"[" * 3000, 0), (307, b"", 0), (500, b"oh", 0),
    ],
)  # fmt: skip
def test_a_takers_answer_is_believed_within_bounds(giver: Worker, status: int, body: bytes, given: int) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    giver.complete(PROMPT, max_tokens=1)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            assert give(giver, url)["given"] == {url: given}
        finally:
            server.shutdown()
            thread.join()
    assert asked == ["/cache/adopt"], "no redirect is followed"


def test_what_is_given_is_taken_only_within_its_time(taker: Worker) -> None:
    """Also where the giver has hung up."""
    card = taker.built.service.card
    paths = [["1", str(root), 1 << 30, [root + 5] * 60] for root in range(8)]
    gift = {"vocabulary_digest": card.vocabulary_digest, "seed_id": card.seed_id, "paths": paths, "share": 0.5}
    answer = taker.client.post("/cache/adopt", json=gift | {"timeout_s": 1e-9}, headers=taker.bearer())
    assert answer.json() == {"paths": 8, "adopted": 0}
    assert taker.stats().kv_cached == 0
    assert taker.client.post("/cache/adopt", json=gift, headers=taker.bearer()).json() == {"paths": 8, "adopted": 8}
    late = taker.client.post("/cache/adopt", json=gift | {"timeout_s": 0}, headers=taker.bearer())
    assert late.status_code == 400


def test_more_than_the_taker_holds_is_taken_as_far_as_it_goes(giver: Worker) -> None:
    for head in "abcdefgh":
        giver.complete(head * 200, max_tokens=1)
    with running(kv_tokens=256, context_tokens_max=128) as small:
        give(giver, small.url)
        small.check()


def test_load_tells_what_scaling_needs(worker: Worker) -> None:
    worker.complete(PROMPT, max_tokens=3)
    found = worker.client.get("/cache/load", headers=worker.bearer()).json()
    assert found["started_total"] >= 1
    assert found["kv_total_tokens"] == CONFIG.kv_tokens
    assert found["running"] == found["waiting"] == 0
    assert found["queue_ms_total"] >= 0
