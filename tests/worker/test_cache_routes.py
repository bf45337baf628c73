"""The cache's own routes: card, feed, stats, flush and the prefix hint, and that all of them tell one story."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from trieway.meta_tree.chain import WIRE_VERSION
from trieway.meta_tree.digest import Digest
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.meta_tree.frames import Buckets, Delta, Frame, FrameReader, Heartbeat, Hello, SnapshotBegin, SnapshotEnd
from trieway.meta_tree.ids import Namespace
from trieway.serving.chat_template import ChatTemplate
from trieway.serving.handshake import decode_card, decode_vocabulary, vocabulary_digest
from trieway.serving.headers import Receipt

from .fakes import TABLE, TEMPLATE, encode
from .harness import EPOCH, Worker, running, wait_until

LONG = "a text of a little over one hundred and ninety bytes, so that it holds three whole blocks of sixty-four; "
LONG = (LONG * 2)[:200]


class Follower:
    """What a router would know: applies frames to a table of blocks."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.held: dict[int, int] = {}
        self.number = 0
        self.beats = 0

    def take(self, frame: Frame) -> None:
        self.frames.append(frame)
        match frame:
            case SnapshotBegin():
                self.held.clear()
            case Delta(event=Stored() as event):
                self.held.update(zip(event.hashes, event.usable, strict=True))
            case Delta(event=Removed() as event):
                for block in event.hashes:
                    del self.held[block]
            case Delta(event=Cleared()):
                self.held.clear()
            case Heartbeat():
                self.beats += 1
                assert frame.number == self.number
                assert frame.buckets == self.digest().buckets(), "the digest is that of what was told"
        if isinstance(frame, (Delta, SnapshotEnd)):
            self.number = frame.number

    def digest(self) -> Digest:
        digest = Digest()
        for block, usable in self.held.items():
            digest.add(block, 0, usable)
        return digest


@contextmanager
def feed(worker: Worker, **query: int) -> Iterator[Iterator[Follower]]:
    """Follows the feed; each `next` applies one more frame."""
    with worker.client.stream("GET", "/cache/feed", params=query, headers=worker.bearer()) as response:
        assert response.status_code == 200

        def follow() -> Iterator[Follower]:
            follower, reader = Follower(), FrameReader()
            for data in response.iter_raw():
                for frame in reader.feed(data):
                    follower.take(frame)
                    yield follower

        yield follow()


def until(follow: Iterator[Follower], kind: type[Frame]) -> Follower:
    return next(one for one in follow if isinstance(one.frames[-1], kind))


def test_the_card_says_what_a_router_needs(worker: Worker) -> None:
    response = worker.client.get("/cache/model", headers=worker.bearer())
    card = decode_card(response.content)
    assert (card.wire, card.block_bytes, card.epoch) == (WIRE_VERSION, 64, EPOCH)
    assert (card.model, card.aliases) == ("tiny", ("tiny-alias",))
    assert card.seed_id == worker.key.seed_id
    assert card.template == TEMPLATE
    assert card.template_digest == ChatTemplate(TEMPLATE).digest
    assert (card.page_size, card.context_tokens, card.kv_tokens) == (1, 512, 2048)
    vocabulary = worker.client.get("/cache/model", params={"part": "vocabulary"}, headers=worker.bearer()).content
    assert decode_vocabulary(vocabulary) == TABLE
    assert (card.vocabulary_size, card.vocabulary_digest) == (len(TABLE), vocabulary_digest(TABLE))
    assert worker.client.get("/cache/model", params={"part": "other"}, headers=worker.bearer()).status_code == 400


def test_workers_of_one_model_are_one_group_and_others_are_not(worker: Worker) -> None:
    with running(kv_tokens=512) as same, running(template="{{ messages[0].content }}") as other:
        groups = [one.built.service.card.group for one in (worker, same, other)]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize("path", ["/cache/feed", "/cache/model", "/cache/feed?buckets=1"])
def test_feed_and_card_open_to_the_fleets_token_alone(worker: Worker, path: str) -> None:
    assert worker.client.get(path).status_code == 401
    assert worker.client.get(path, headers={"authorization": "Bearer nonsense"}).status_code == 401


@pytest.mark.parametrize("query", ["since=x", "since=-1", "epoch=1e9", "buckets=256", "buckets=a", "since=" + "9" * 30])
def test_a_senseless_query_is_refused(worker: Worker, query: str) -> None:
    response = worker.client.get(f"/cache/feed?{query}", headers=worker.bearer())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.split("=")[0]


def test_the_feed_begins_with_all_that_is_held(worker: Worker) -> None:
    worker.complete(LONG, max_tokens=1)
    chain = worker.key.chain(Namespace())
    with feed(worker) as follow:
        follower = until(follow, Heartbeat)
    hello, begin, *_, end, beat = follower.frames
    assert isinstance(hello, Hello)
    assert isinstance(begin, SnapshotBegin)
    assert isinstance(end, SnapshotEnd)
    assert isinstance(beat, Heartbeat)
    assert (hello.epoch, hello.group, hello.seed_id) == (EPOCH, worker.built.service.card.group, worker.key.seed_id)
    assert list(follower.held) == chain.hashes(LONG.encode())
    for block, usable in enumerate(follower.held.values()):
        ends = [len(b"".join(TABLE[token] for token in encode(LONG)[: i + 1])) for i in range(len(encode(LONG)))]
        assert usable == sum(end <= 64 * (block + 1) for end in ends)
    assert beat.load.kv_total_tokens == 2048
    assert not beat.load.draining


def test_events_of_an_answer_come_before_its_last_byte(worker: Worker) -> None:
    """The follower has read nothing yet when the answer is whole: all must lie in its socket by then."""
    with feed(worker) as follow:
        until(follow, SnapshotEnd)
        for turn in range(20):
            prompt = f"turn {turn} of {LONG}"
            response = worker.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
            receipt = Receipt.parse(response.headers["x-trieway-receipt"])
            assert receipt is not None
            sent = [subscriber.sent for subscriber in worker.built.service.feed._subscribers]
            assert min(sent) >= receipt.number == worker.built.service.feed.publisher.number
            told = until(follow, Delta)
            hashes = worker.key.chain(Namespace()).hashes(prompt.encode())
            while not set(hashes) <= set(told.held):
                told = next(follow)


def test_generated_text_extends_the_chain(worker: Worker) -> None:
    said = "the model says this, and the next turn of the chat will begin with these words exactly STOP!"
    answer = worker.complete(f"say:{said}|", max_tokens=100)["choices"][0]["text"]
    whole = f"say:{said}|{answer}".encode()
    with feed(worker) as follow:
        follower = until(follow, Heartbeat)
    hashes = worker.key.chain(Namespace()).hashes(whole)
    assert len(hashes) == len(follower.held) >= 2
    assert list(follower.held) == hashes


def test_ids_that_no_text_would_take_are_not_announced(worker: Worker) -> None:
    ids = [ord(char) for char in LONG]
    assert encode(LONG) != ids
    worker.complete([ids], max_tokens=1)
    with feed(worker) as follow:
        follower = until(follow, Heartbeat)
    agreeing = next(i for i, (a, b) in enumerate(zip(ids, encode(LONG), strict=False)) if a != b)
    assert len(follower.held) == agreeing // 64
    usage = worker.complete([ids], max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(ids) - 1, "but they are reused"


def test_a_router_that_comes_back_gets_what_it_missed(worker: Worker) -> None:
    worker.complete(LONG, max_tokens=1)
    with feed(worker) as follow:
        before = until(follow, SnapshotEnd).number
    worker.complete("another " + LONG, max_tokens=1)
    with feed(worker, since=before, epoch=EPOCH) as follow:
        follower = until(follow, Delta)
    kinds = [type(frame) for frame in follower.frames]
    assert kinds == [Hello, Delta]
    with feed(worker, since=before, epoch=EPOCH - 1) as follow:
        follower = until(follow, SnapshotEnd)
    assert len(follower.held) > 3, "another epoch's number means nothing here"


def test_one_who_missed_too_much_gets_a_snapshot() -> None:
    with running(ring_events_max=4) as worker:
        for turn in range(8):
            worker.complete(f"{turn} {LONG}", max_tokens=1)
        with feed(worker, since=1, epoch=EPOCH) as follow:
            follower = until(follow, Heartbeat)
        assert isinstance(follower.frames[1], SnapshotBegin)


def test_buckets_give_the_blocks_of_those_buckets(worker: Worker) -> None:
    worker.complete(LONG, max_tokens=1)
    hashes = worker.key.chain(Namespace()).hashes(LONG.encode())
    wanted = hashes[1] >> 56
    response = worker.client.get(f"/cache/feed?buckets={wanted}", headers=worker.bearer())
    (frame,) = FrameReader().feed(response.content)
    assert isinstance(frame, Buckets)
    assert frame.indices == (wanted,)
    told = [block for event in frame.events for block in event.hashes]
    assert told == [block for block in hashes if block >> 56 == wanted]


def test_evicted_blocks_are_taken_back() -> None:
    with running(kv_tokens=256) as worker, feed(worker) as follow:
        until(follow, SnapshotEnd)
        for turn in range(12):
            worker.complete(f"{turn} {LONG}"[:150], max_tokens=1)
        assert worker.stats().evicted_tokens_total > 0
        number = worker.built.service.feed.publisher.number
        follower = next(one for one in follow if one.number >= number and isinstance(one.frames[-1], Heartbeat))
        assert any(isinstance(f, Delta) and isinstance(f.event, Removed) for f in follower.frames)
        assert follower.digest().total() == worker.built.service.feed.publisher.digest_total
        assert len(follower.held) == worker.stats().blocks


def test_stats_tell_what_is_held(worker: Worker) -> None:
    worker.complete(LONG, max_tokens=2)
    stats = worker.client.get("/cache/stats").json()
    assert stats["kv_free"] + stats["kv_cached"] == stats["kv_total"] == 2048
    assert stats["kv_cached"] == len(encode(LONG)) + 1
    assert stats["blocks"] == stats["announced_blocks"] == 3
    assert stats["epoch"] == EPOCH
    assert int(stats["digest"], 16) == worker.built.service.feed.publisher.digest_total
    assert stats["memory_records"] == 1


def test_a_flush_forgets_everything_and_says_so(worker: Worker) -> None:
    worker.complete(LONG, max_tokens=2)
    cached = worker.stats().kv_cached
    with feed(worker) as follow:
        until(follow, SnapshotEnd)
        assert worker.client.post("/cache/flush").json() == {"flushed_tokens": cached}
        told = next(one for one in follow if isinstance(one.frames[-1], Delta))
        assert told.held == {}
    stats = worker.client.get("/cache/stats").json()
    assert (stats["kv_cached"], stats["announced_blocks"], stats["memory_records"]) == (0, 0, 0)


@pytest.mark.parametrize(
    "body", [{"prompt": LONG}, {"messages": [{"role": "user", "content": LONG}]}, {"prompt": [encode(LONG)]}]
)
def test_a_hint_makes_a_prefix_resident(worker: Worker, body: dict[str, Any]) -> None:
    first = worker.post("/cache/prefix", body)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert first["completion_tokens"] == 0
    assert worker.stats().kv_cached == first["prompt_tokens"]
    again = worker.post("/cache/prefix", body)["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"] - 1
    if "messages" not in body:
        usage = worker.complete(LONG + " and a fork", max_tokens=1)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == len(encode(LONG))


def test_salts_and_tenants_do_not_see_each_other(worker: Worker) -> None:
    def cached(**fields: Any) -> int:
        headers = fields.pop("headers", {})
        usage = worker.post("/v1/completions", {"prompt": LONG, "max_tokens": 1, **fields}, **headers)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    namespaces: list[dict[str, Any]] = [
        {},
        {"cache_salt": "one"},
        {"cache_salt": "two"},
        {"headers": {"x-tenant-id": "one"}},
        {"headers": worker.fleet(**{"x-trieway-tenant": "three"})},
    ]
    assert [cached(**dict(one)) for one in namespaces] == [0] * 5
    assert all(cached(**dict(one)) == len(encode(LONG)) - 1 for one in namespaces)
    assert cached(cache_salt="") == len(encode(LONG)) - 1, "an empty salt is none"
    assert cached(headers={"x-tenant-id": "three"}) > 0, "a router's tenant is the same tenant"
    assert worker.stats().namespaces == 5


def test_many_readers_at_once(worker: Worker) -> None:
    """Feeds opened and closed while requests run leave no subscriber behind."""

    def read() -> None:
        with (
            httpx.Client(base_url=worker.url, timeout=30) as client,
            client.stream("GET", "/cache/feed", headers=worker.bearer()) as response,
        ):
            next(response.iter_raw())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(10):
        worker.complete(f"{turn} {LONG}", max_tokens=1)
    for thread in threads:
        thread.join(30)
    worker.complete(LONG, max_tokens=1)
    wait_until(lambda: worker.built.service.feed.subscribers == 0)
