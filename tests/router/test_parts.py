"""The shell's small parts on their own: lines of a stream, headers, links, URLs, discovery, the client's errors."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.harness import in_loop
from tests.router.wire import RawServer, Seen, Wire
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.ids import GroupId, Namespace, Reject, WorkerId
from trieway.router.attempt import cached_of
from trieway.router.core import Rejection
from trieway.router.discovery import Static
from trieway.router.dispatch import rejection
from trieway.router.forwarding import Onward, request_headers, response_headers
from trieway.router.links import Lease, Link, Links, Patience
from trieway.router.questions import CHAINS_MAX, Asker, kind_of
from trieway.router.registry import parse_url
from trieway.router.sse import HOLD_MAX_BYTES, LineHold
from trieway.router.upstream import Broke, ConnectFailed, StaleConnection, TimedOut, Upstream
from trieway.serving.auth import KeyRing
from trieway.serving.errors import BadRequest

pieces = st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\r", b": c", b"\n\n", b"", b"[DONE]"]), max_size=12)


@given(pieces)
def test_a_hold_gives_every_byte_once_and_only_whole_lines_early(chunks: list[bytes]) -> None:
    hold = LineHold()
    out = b""
    for chunk in chunks:
        given_out = hold.feed(chunk)
        assert not given_out or given_out.endswith((b"\n", b"\r"))
        out += given_out
    assert out + hold.rest() == b"".join(chunks)


@given(pieces)
def test_an_event_after_a_cut_stands_alone(chunks: list[bytes]) -> None:
    hold = LineHold()
    out = b"".join(hold.feed(chunk) for chunk in chunks)
    seam = hold.seam()
    whole = (out + seam).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert not whole or whole.endswith(b"\n\n") or whole.strip(b"\n") == b""
    assert b"".join(chunks).startswith(out)


def test_a_line_without_end_goes_on_once_it_is_too_long() -> None:
    hold = LineHold()
    assert hold.feed(b"x" * HOLD_MAX_BYTES) == b""
    assert len(hold.feed(b"yy")) == HOLD_MAX_BYTES + 2


def test_done_is_seen_across_chunks() -> None:
    hold = LineHold()
    hold.feed(b"data: [DO")
    assert not hold.finished
    hold.feed(b"NE]\n")
    assert hold.finished


def test_request_headers_for_each_kind_of_worker() -> None:
    headers = [
        (b"host", b"h"),
        (b"content-length", b"3"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer k"),
        (b"connection", b"X-One,  x-two"),
        (b"x-one", b"1"),
        (b"x-two", b"2"),
        (b"x-trieway-tenant", b"forged"),
        (b"accept", b"*/*"),
    ]
    kept = {b"content-type": b"application/json", b"accept": b"*/*", b"x-request-id": b"r"}
    ours = Onward(request_id="r", fleet_token="t", tenant="acme", render_time_s=12.0, keep_credentials=True)
    assert dict(request_headers(headers, ours)) == kept | {
        b"x-trieway-fleet": b"t",
        b"x-trieway-tenant": b"acme",
        b"x-trieway-render-time": b"12",
    }
    foreign = Onward(request_id="r", tenant="acme", render_time_s=12.0)
    assert dict(request_headers(headers, foreign)) == kept
    trusted = Onward(request_id="r", keep_credentials=True)
    assert dict(request_headers(headers, trusted)) == kept | {b"authorization": b"Bearer k"}


def test_response_headers_that_http_forbids_do_not_break_the_answer() -> None:
    fine = [(b"x-fine", b"a\tb \xe9"), (b"x!#$%&'*+.^_`|~9", b"")]
    for wrong in (
        (b"x(y", b"1"),
        (b"", b"1"),
        (b"x y", b"1"),
        (b"x", b"a\x01"),
        (b"x", b"a\x7f"),
        (b"x", b"a\r\nb: c"),
    ):
        assert response_headers([wrong, *fine], []) == fine


def test_response_headers_keep_repeats_and_order() -> None:
    headers = [(b"set-cookie", b"a"), (b"server", b"s"), (b"set-cookie", b"b"), (b"transfer-encoding", b"chunked")]
    assert response_headers(headers, [(b"x-ours", b"1")]) == [
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"x-ours", b"1"),
    ]


@pytest.mark.parametrize(
    ("url", "base", "worker"),
    [
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001", "127.0.0.1:8001"),
        ("http://host/", "http://host:80", "host:80"),
        ("https://host/v1/", "https://host:443", "host:443"),
        ("http://[::1]:8/api/v1", "http://[::1]:8/api", "[::1]:8/api"),
    ],
)
def test_urls_of_workers(url: str, base: str, worker: str) -> None:
    assert parse_url(url) == (base, worker)


@pytest.mark.parametrize("url", ["", "host:1", "ftp://h", "http://", "http://u@h", "http://h?x=1", "http://h:0x1"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_url(url)


def link(name: str, group: str | None, model: str = "m", aliases: tuple[str, ...] = ()) -> Link:
    return Link(
        worker=WorkerId(name),
        url=f"http://{name}",
        model=model,
        aliases=aliases,
        group=None if group is None else GroupId(group),
    )


def test_groups_follow_their_links() -> None:
    links = Links()
    for each in (link("a", "g1"), link("b", "g1", aliases=("x",)), link("c", "g2"), link("d", None)):
        links.add(each)
    links.regroup()
    links.check()
    assert [group.id for group in links.groups_of("m")] == ["g1", "g2"]
    assert [group.id for group in links.groups_of("x")] == ["g1"]
    kept = links.groups_of("m")[0]
    links.remove(WorkerId("c"))
    links.check()
    assert links.groups_of("m") == (kept,), "what a group has learnt stays"
    links.remove(WorkerId("a"))
    links.remove(WorkerId("b"))
    assert links.groups_of("m") == ()
    assert len(links) == 1
    assert list(links.models()) == ["m"]


@in_loop
async def test_a_lease_moves_on_with_bytes_and_ends_when_lost() -> None:
    patience = Patience(first_byte_s=0.05, idle_s=0.3, total_s=9.0)
    loop = asyncio.get_running_loop()
    one = link("a", "g")
    lease = Lease(patience, loop.time() + 9.0)
    with pytest.raises(TimeoutError), one.lend(lease):
        await asyncio.sleep(5)
    assert not lease.lost
    assert one.idle.is_set()

    lease = Lease(Patience(first_byte_s=5.0, idle_s=0.2, total_s=9.0), loop.time() + 0.4)
    started = loop.time()

    async def hears() -> None:
        with one.lend(lease):
            while True:
                await asyncio.sleep(0.11)
                lease.heard()

    with pytest.raises(TimeoutError):
        await hears()
    assert 0.3 < loop.time() - started < 2.0, "the end of the whole request holds, however often bytes come"

    held = link("a", "g")
    lease = Lease(patience, loop.time() + 9.0)

    async def waits() -> None:
        with held.lend(lease):
            assert not held.idle.is_set()
            loop.call_soon(held.lose)
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError):
        await waits()
    assert lease.lost
    assert held.idle.is_set()
    lease.lose()


@in_loop
async def test_static_discovery_names_its_workers_once() -> None:
    found = [urls async for urls in Static(["http://a", "http://b"]).watch()]
    assert found == [frozenset({"http://a", "http://b"})]


def test_chains_are_remembered_within_a_bound() -> None:
    async def no_vocabulary(_: Any) -> None: ...

    asker = Asker(links=Links(), ring=KeyRing(), key=FleetKey.from_secret(None), vocabulary=no_vocabulary)
    first = asker.chain(Namespace(tenant="t"))
    assert asker.chain(Namespace(tenant="t")) is first
    for index in range(CHAINS_MAX):
        asker.chain(Namespace(tenant=f"{index}"))
    assert asker.chain(Namespace(tenant="t")) == first
    assert len(asker._chains) == CHAINS_MAX


@pytest.mark.parametrize(
    ("body", "kind"), [(b'{"messages": []}', "chat"), (b'{"prompt": 1}', "completion"), (b"{}", "completion")]
)
def test_a_bodys_kind(body: bytes, kind: str) -> None:
    assert kind_of(body) == kind


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Rejection.UNKNOWN_MODEL, 404),
        (Rejection.NO_WORKER, 503),
        (Rejection.QUEUES_FULL, 429),
        (Rejection.TOO_LONG, 400),
    ],
)
def test_every_rejection_has_its_error(reason: Rejection, status: int) -> None:
    error = rejection(Reject(reason=reason, retry_after_s=2.0), "m")
    assert error.status == status
    assert (error.retry_after_s == 2.0) == (status in (429, 503))
    early = rejection(Reject(reason=reason), "m", fresh=1)
    assert early.status == (503 if status == 404 else status), "who serves it may not have answered yet"


@pytest.mark.parametrize(
    ("body", "cached"),
    [
        (b'{"usage": {"prompt_tokens_details": {"cached_tokens": 7}}}', b"7"),
        (b'{"usage": {"prompt_tokens_details": null}, "cached_tokens": 1}', None),
        (b'{"usage": null, "cached_tokens": 1}', None),
        (b'{"usage": {"prompt_tokens_details": {"cached_tokens": "7"}}}', None),
        (b"cached_tokens {", None),
        (b"[]", None),
    ],
)
def test_what_a_foreign_engine_says_that_it_reused(body: bytes, cached: bytes | None) -> None:
    assert cached_of(body) == cached


class Calls:
    """A server whose answers are scripted, and a client of it."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.server = RawServer(self._handle)

    async def _handle(self, seen: Seen, wire: Wire) -> None:
        await self.script.pop(0)(seen, wire)

    async def __aenter__(self) -> Calls:
        await self.server.start()
        self.upstream = Upstream(connect_timeout_s=1.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.upstream.close()
        await self.server.stop()

    async def post(self, **kwargs: Any) -> Any:
        return await self.upstream.open(self.server.url, "/x", [(b"a", b"b")], b"body", **kwargs)


async def fine(seen: Seen, wire: Wire) -> None:
    await wire.send(200, b"ok")


async def cut(seen: Seen, wire: Wire) -> None:
    wire.cut()


async def hang(seen: Seen, wire: Wire) -> None:
    await wire.gone()


async def short(seen: Seen, wire: Wire) -> None:
    await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
    wire.finish()


@in_loop
async def test_the_clients_errors_say_what_happened() -> None:
    async with Calls() as calls:
        calls.script = [cut, fine, cut, short, hang]
        with pytest.raises(Broke) as broke:
            await calls.post()
        assert not isinstance(broke.value, StaleConnection), "a fresh connection is not stale"
        exchange = await calls.post()
        assert await exchange.read(100) == b"ok"
        exchange.close()
        with pytest.raises(StaleConnection):
            await calls.post()
        exchange = await calls.post()
        with pytest.raises(Broke):
            await exchange.read(100)
        exchange.close()
        with pytest.raises(TimedOut):
            await calls.post(silence_max_s=0.1)


@in_loop
async def test_a_refused_connection_is_told_from_an_unknown_name() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    upstream = Upstream(connect_timeout_s=1.0)
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(ConnectFailed) as refused:
            await upstream.open(f"http://{host}:{port}", "/", [], b"")
        assert refused.value.refused, host
    with pytest.raises(ConnectFailed) as unknown:
        await upstream.open("http://no-such-host.invalid", "/", [], b"")
    assert not unknown.value.refused
    await upstream.close()


@in_loop
async def test_the_client_sends_what_it_is_given_and_no_more() -> None:
    async with Calls() as calls:
        calls.script = [fine, fine]
        exchange = await calls.post()
        await exchange.read(10)
        big = bytes(1_000_000)
        headers = [(b"x", b"1"), (b"x", b"2"), (b"x", b"bad \x00"), (b"x", b"\xff"), (b"x", "é\t".encode())]
        exchange = await calls.upstream.open(calls.server.url, "/%41?q=%20+", headers, big)
        await exchange.read(10)
    first, second = calls.server.seen
    assert sorted(first.headers) == [("a", "b"), ("content-length", "4"), ("host", calls.server.id)]
    assert second.target == "/%41?q=%20+"
    assert second.body == big
    assert [value for name, value in second.headers if name == "x"] == ["1", "2", "é".encode().decode("latin-1")]


@in_loop
async def test_small_answers_have_a_bound_in_size_and_time() -> None:
    async with Calls() as calls:
        calls.script = [fine, fine, hang]
        get = calls.upstream.get
        assert await get(calls.server.url, "/", [], timeout_s=1.0, body_max_bytes=2) == (
            200,
            [(b"content-type", b"application/json"), (b"content-length", b"2")],
            b"ok",
        )
        with pytest.raises(Broke):
            await get(calls.server.url, "/", [], timeout_s=1.0, body_max_bytes=1)
        with pytest.raises(TimedOut):
            await get(calls.server.url, "/", [], timeout_s=0.05, body_max_bytes=1)
