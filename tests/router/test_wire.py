"""Both clients that carry completions to workers: one behaviour; and what only our own wire promises."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.router.harness import in_loop, until
from tests.router.scripted import calling, connections, fine, raw
from tests.router.wire import Seen, Wire
from trieway.router.carrier import Answer
from trieway.router.upstream import Broke, ConnectFailed, StaleConnection, TimedOut, Upstream, UpstreamError
from trieway.router.wire_connection import HEAD_BYTES_MAX, UNREAD_BYTES_MAX, WireExchange
from trieway.router.wire_upstream import WireUpstream, head_lines

KINDS = ("wire", "general")


async def cut(seen: Seen, wire: Wire) -> None:
    wire.cut()


@pytest.mark.parametrize("kind", KINDS)
def test_what_happened_is_told(kind: str) -> None:
    @in_loop
    async def run() -> None:
        async with calling(kind) as calls:
            calls.script[:] = [cut, fine, cut, raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", close=True)]
            with pytest.raises(Broke) as broke:
                await calls.post()
            assert not isinstance(broke.value, StaleConnection), "a fresh connection is not stale"
            assert await calls.whole() == b"ok"
            with pytest.raises(StaleConnection):
                await calls.post()
            with pytest.raises(Broke):
                await calls.whole()

    run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after_head", [False, True])
def test_silence_has_its_bound(kind: str, after_head: bool) -> None:
    @in_loop
    async def run() -> None:
        async def pauses(seen: Seen, wire: Wire) -> None:
            assert seen.method == "GET"
            assert seen.header("content-length") is None
            if after_head:
                await wire.begin()
                for _ in range(3):
                    await asyncio.sleep(0.05)
                    await wire.chunk(b"x")
            await wire.gone()

        async with calling(kind) as calls:
            calls.script[:] = [pauses]
            got: list[bytes] = []

            async def read() -> None:
                answer = await calls.carrier.open(calls.server.url, "/x", [], None, silence_max_s=0.12)
                try:
                    async for chunk in answer.chunks():
                        got.append(chunk)
                finally:
                    answer.close()

            with pytest.raises(TimedOut):
                await read()
            assert b"".join(got) == (b"xxx" if after_head else b"")
            await until(lambda: connections(calls) == 0)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_listens_and_nobody_is_known(kind: str) -> None:
    @in_loop
    async def run() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        async with calling(kind) as calls:
            for host in (f"127.0.0.1:{port}", f"localhost:{port}", "no-such-host.invalid:80"):
                with pytest.raises(ConnectFailed):
                    await calls.carrier.open(f"http://{host}", "/", [], b"")

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_is_what_was_given(kind: str) -> None:
    @in_loop
    async def run() -> None:
        async with calling(kind) as calls:
            calls.script[:] = [fine, fine]
            await calls.whole()
            headers = [(b"x", b"1"), (b"x", b"2"), (b"x", b"bad \x00"), (b"x", "é\t".encode())]
            big = bytes(3_000_000)
            answer = await calls.carrier.open(calls.server.url + "/base", "/%41?q=%20+", headers, big)
            assert [chunk async for chunk in answer.chunks()] == [b"ok"]
            answer.close()
        first, second = calls.server.seen
        assert sorted(first.headers) == [("a", "b"), ("content-length", "4"), ("host", calls.server.id)]
        assert second.target == "/base/%41?q=%20+"
        assert second.body == big
        assert [value for name, value in second.headers if name == "x"] == ["1", "2", "é".encode().decode("latin-1")]

    run()


BODY = b"0123456789"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
FORMS = {
    "length": SIZED + BODY,
    "chunks": CHUNKED + b"4\r\n0123\r\n6;x=y\r\n456789\r\n0\r\nx-late: 1\r\n\r\n",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + SIZED + BODY,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_answer_is_read_and_its_connection_kept(form: str, kind: str) -> None:
    @in_loop
    async def run() -> None:
        data = FORMS[form]

        async def torn(seen: Seen, wire: Wire) -> None:
            for at in range(len(data)):
                await wire.raw(data[at : at + 1])
                await asyncio.sleep(0)

        async with calling(kind) as calls:
            calls.script[:] = [raw(data), torn, fine]
            for _ in range(2):
                answer = await calls.post()
                assert (answer.status, answer.delimited) == (200, True)
                assert b"".join([chunk async for chunk in answer.chunks()]) == BODY
                assert b"x-late" not in dict(answer.headers)
                answer.close()
            assert await calls.whole() == b"ok"
            assert connections(calls) == 1

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_ends_with_its_connection(kind: str) -> None:
    @in_loop
    async def run() -> None:
        async with calling(kind) as calls:
            calls.script[:] = [raw(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True), fine]
            answer = await calls.post()
            assert not answer.delimited
            assert b"".join([chunk async for chunk in answer.chunks()]) == b"all of it"
            answer.close()
            assert await calls.whole() == b"ok"

    run()


NO_HTTP = {
    "garbage": b"\x00\x01\x02\r\n\r\n",
    "status": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "switch": b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NO_HTTP)
def test_what_is_no_answer_is_told_and_not_kept(name: str, kind: str) -> None:
    @in_loop
    async def run() -> None:
        async with calling(kind) as calls:
            calls.script[:] = [raw(NO_HTTP[name], close=True), fine]
            with pytest.raises(UpstreamError):
                await calls.whole()
            assert await calls.whole() == b"ok"

    run()


@in_loop
async def test_a_head_too_long_is_refused_while_it_comes() -> None:
    async with calling() as calls:
        calls.script[:] = [raw(b"HTTP/1.1 200 OK\r\n" + b"x: %s\r\n" % (b"y" * 1000) * (HEAD_BYTES_MAX // 900))]
        with pytest.raises(Broke):
            await calls.post()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_given_up_closes_its_connection(kind: str) -> None:
    @in_loop
    async def run() -> None:
        async with calling(kind) as calls:
            calls.script[:] = [raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"), fine]
            answer = await calls.post()
            answer.close()
            answer.close()
            assert await calls.whole() == b"ok"
            await until(lambda: connections(calls) <= 1)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_before_the_head_closes_the_connection(kind: str) -> None:
    @in_loop
    async def run() -> None:
        async def hang(seen: Seen, wire: Wire) -> None:
            await wire.gone()

        async with calling(kind) as calls:
            calls.script[:] = [hang]
            task = asyncio.ensure_future(calls.post())
            await until(lambda: calls.server.seen)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: connections(calls) == 0)

    run()


@in_loop
async def test_more_than_was_asked_for_ends_the_connection() -> None:
    twice = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" * 2
    async with calling() as calls:
        calls.script[:] = [raw(twice), fine]
        assert await calls.whole() == b"ok"
        assert await calls.whole() == b"ok"
        await until(lambda: connections(calls) <= 1)
    assert len(calls.server.seen) == 2


@in_loop
async def test_bytes_on_an_idle_connection_end_it() -> None:
    async def late(seen: Seen, wire: Wire) -> None:
        await wire.send(200, b"ok")
        await asyncio.sleep(0.02)
        await wire.raw(b"HTTP/1.1 408 X\r\ncontent-length: 0\r\n\r\n")

    async with calling() as calls:
        calls.script[:] = [late, fine]
        assert await calls.whole() == b"ok"
        await until(lambda: connections(calls) == 0)
        assert await calls.whole() == b"ok"


@in_loop
async def test_an_answer_before_the_end_of_its_request_keeps_no_connection() -> None:
    """The rest of the body would be taken for the next request."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 X\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        writer.close()
        ended.append(True)

    ended: list[bool] = []
    server = await asyncio.start_server(early, "127.0.0.1", 0, limit=1 << 16)
    general = Upstream(connect_timeout_s=1.0)
    carrier = WireUpstream(general, connect_timeout_s=1.0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    answer = await carrier.open(url, "/", [], bytes(16 << 20))
    assert answer.status == 413
    assert b"".join([chunk async for chunk in answer.chunks()]) == b"no"
    answer.close()
    assert all(not origin.idle or not origin.idle[-1].open for origin in carrier._origins.values())
    await until(lambda: ended)
    await carrier.close()
    await general.close()
    server.close()
    await server.wait_closed()


@in_loop
async def test_what_is_not_read_is_left_with_the_worker() -> None:
    sent = [0]
    piece = bytes(65_536)

    async def floods(seen: Seen, wire: Wire) -> None:
        await wire.begin()
        for _ in range(400):
            await wire.chunk(piece)
            sent[0] += 1
        await wire.end()

    async with calling() as calls:
        calls.script[:] = [floods]
        answer = await calls.post()
        assert isinstance(answer, WireExchange)
        before = -1
        while before != sent[0]:
            before = sent[0]
            await asyncio.sleep(0.1)
        assert sent[0] < 300
        assert answer._unread < UNREAD_BYTES_MAX + (1 << 20)
        total = 0
        async for chunk in answer.chunks():
            total += len(chunk)
        assert total == 400 * len(piece)


@in_loop
async def test_idle_connections_are_let_go_and_addresses_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trieway.router.wire_upstream.SWEEP_S", 0.02)
    monkeypatch.setattr("trieway.router.wire_upstream.KEEP_ALIVE_S", 0.05)
    async with calling() as calls:
        calls.script[:] = [fine, fine]
        assert await calls.whole() == b"ok"
        await until(lambda: connections(calls) == 0)
        assert isinstance(calls.carrier, WireUpstream)
        await until(lambda: not calls.carrier._origins)  # type: ignore[attr-defined]
        assert await calls.whole() == b"ok"


@in_loop
async def test_what_the_wire_does_not_speak_goes_to_the_general_client() -> None:
    asked: list[str] = []

    class General:
        async def open(
            self, base_url: str, target: str, headers: Any, body: bytes | None, *, silence_max_s: float | None = None
        ) -> Answer:
            asked.append(base_url)
            raise Broke("enough")

        async def close(self) -> None: ...

    carrier = WireUpstream(General(), connect_timeout_s=1.0)
    for url in ("https://127.0.0.1:1", "http://bücher.invalid:80"):
        with pytest.raises(Broke):
            await carrier.open(url, "/", [], b"")
    await carrier.close()
    assert asked == ["https://127.0.0.1:1", "http://bücher.invalid:80"]


def test_a_head_cannot_be_split() -> None:
    lines = head_lines([(b"good", b"1"), (b"bad", b"1\r\nx-forged: 1"), (b"worse", b"\n"), (b"fine", b"\xff")], 3)
    assert lines == b"content-length: 3\r\ngood: 1\r\nfine: \xff\r\n\r\n"
