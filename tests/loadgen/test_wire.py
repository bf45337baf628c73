"""HTTP/1.1 as servers really speak it: scripted bytes in, what the asker hears out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.serving import call, drive
from trieway.loadgen.client.exchange import Exchange
from trieway.loadgen.client.pool import Pool
from trieway.loadgen.client.url import parse_url
from trieway.loadgen.client.wire import Connection


@dataclass
class Heard:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytes = b""
    ends: list[str] = field(default_factory=list)

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self.status, self.headers = status, dict(headers)

    def body(self, data: bytes, now: float) -> None:
        self.data += data

    def done(self, now: float) -> None:
        self.ends.append("done")

    def broke(self, reason: str, now: float, *, heard: bool) -> None:
        self.ends.append("cut" if heard else "unheard")


class Transport(asyncio.Transport):
    """Bytes go nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborted = True


def answered(
    pieces: Sequence[bytes], *, closed: bool = False, broken: Exception | None = None
) -> tuple[Heard, Connection, Transport]:
    connection, transport, heard = Connection(), Transport(), Heard()
    connection.connection_made(transport)
    assert connection.idle
    connection.ask(b"request", heard)
    assert not connection.idle
    for piece in pieces:
        connection.data_received(piece)
    if closed or broken is not None:
        connection.connection_lost(broken)
    return heard, connection, transport


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX-A: b\r\n\r\nhello world"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\nhello world"


@given(st.sampled_from([CHUNKED, LENGTH]), st.lists(st.integers(0, 120), max_size=8))
def test_an_answer_is_heard_the_same_however_it_is_cut(whole: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    heard, connection, _ = answered([whole[a:b] for a, b in pairwise(places)])
    assert (heard.status, heard.data, heard.ends) == (200, b"hello world", ["done"])
    assert heard.headers[b"x-a"] == b"b", "names are in lower case"
    assert connection.idle


def test_an_answer_that_ends_with_its_connection() -> None:
    heard, connection, _ = answered([UNTIL_CLOSE], closed=True)
    assert (heard.data, heard.ends) == (b"hello world", ["done"])
    assert not connection.idle


@pytest.mark.parametrize("whole", [CHUNKED, LENGTH])
def test_an_answer_that_is_cut_is_not_whole(whole: bytes) -> None:
    heard, connection, _ = answered([whole[:-3]], closed=True)
    assert heard.ends == ["cut"]
    assert not connection.idle


def test_an_answer_until_the_end_that_breaks_is_cut() -> None:
    heard, _, _ = answered([UNTIL_CLOSE], broken=ConnectionResetError("reset"))
    assert heard.ends == ["cut"]


def test_a_close_before_any_byte_is_told_apart() -> None:
    heard, _, _ = answered([], closed=True)
    assert heard.ends == ["unheard"]


def test_a_connection_that_shall_not_be_kept_is_closed() -> None:
    heard, connection, transport = answered([LENGTH.replace(b"X-A: b", b"Connection: close")])
    assert heard.ends == ["done"]
    assert transport.aborted
    assert not connection.idle


def test_an_old_server_closes_by_itself() -> None:
    heard, connection, _ = answered([LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0")])
    assert heard.ends == ["done"]
    assert not connection.idle


def test_an_interim_answer_is_passed_over() -> None:
    heard, connection, _ = answered([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", LENGTH])
    assert (heard.status, heard.ends) == (200, ["done"])
    assert b"link" not in heard.headers
    assert connection.idle


def test_an_empty_answer_is_whole() -> None:
    heard, connection, _ = answered([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert (heard.status, heard.data, heard.ends) == (204, b"", ["done"])
    assert connection.idle


@pytest.mark.parametrize("noise", [b"220 smtp\r\n", b"\x16\x03\x01\x02\x00", b"HTTP/1.1 abc\r\n\r\n", b"<html>"])
def test_what_is_no_http_breaks_the_connection(noise: bytes) -> None:
    heard, connection, transport = answered([noise])
    assert heard.ends == ["cut"]
    assert transport.aborted
    assert not connection.open


def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    heard, connection, transport = answered([LENGTH])
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert heard.ends == ["done"]
    assert transport.aborted
    assert not connection.idle


def test_a_dropped_connection_says_nothing_more() -> None:
    connection, transport, heard = Connection(), Transport(), Heard()
    connection.connection_made(transport)
    connection.ask(b"request", heard)
    connection.close()
    connection.connection_lost(None)
    assert heard.ends == []


def test_our_own_fault_is_not_the_servers() -> None:
    class Faulty(Heard):
        def body(self, data: bytes, now: float) -> None:
            raise ZeroDivisionError

    connection, heard = Connection(), Faulty()
    connection.connection_made(Transport())
    connection.ask(b"request", heard)
    with pytest.raises(ZeroDivisionError):
        connection.data_received(LENGTH)


def test_one_exchange_at_a_time() -> None:
    connection = Connection()
    connection.connection_made(Transport())
    connection.ask(b"request", Heard())
    with pytest.raises(AssertionError, match="one exchange"):
        connection.ask(b"request", Heard())


# An exchange's end, by what it heard


def exchange_of(status: int, content_type: bytes, pieces: Sequence[bytes], *, end: str = "done") -> Exchange:
    ended: list[Exchange] = []
    exchange = Exchange(b"", 1e9, ended.append)
    exchange.sent_s = 1.0
    exchange.head(status, {b"content-type": content_type})
    for number, piece in enumerate(pieces):
        exchange.body(piece, 2.0 + number)
    if end == "done":
        exchange.done(9.0)
    else:
        exchange.broke("gone", 9.0, heard=end == "cut")
    assert ended == [exchange], "it ends once"
    return exchange


SSE = b"text/event-stream; charset=utf-8"
TOKEN = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
STOP = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"


def test_the_last_token_ends_an_answer_not_the_streams_end() -> None:
    exchange = exchange_of(200, SSE, [TOKEN, TOKEN, STOP, USAGE, DONE])
    assert (exchange.status, exchange.first_s, exchange.last_s, exchange.text) == ("ok", 2.0, 3.0, "xx")
    assert exchange.gaps == [(1.0, 1)]
    assert exchange.output_tokens == 2


def test_an_answer_without_any_text_is_timed_by_its_end() -> None:
    exchange = exchange_of(200, SSE, [STOP, DONE])
    assert (exchange.status, exchange.first_s, exchange.last_s) == ("ok", 9.0, 9.0)


@pytest.mark.parametrize(
    ("pieces", "end", "status"),
    [
        ([TOKEN], "done", "cut"),
        ([TOKEN], "cut", "cut"),
        ([TOKEN, STOP], "cut", "ok"),
        ([TOKEN, DONE], "cut", "ok"),
        ([], "done", "cut"),
        ([], "unheard", "broken"),
        ([TOKEN, b"data: {oops\n\n", DONE], "done", "bad_answer"),
        ([TOKEN, b'event: error\ndata: {"error": {"message": "m"}}\n\n', DONE], "done", "stream_error"),
    ],
)
def test_a_stream_is_whole_only_with_its_end(pieces: list[bytes], end: str, status: str) -> None:
    assert exchange_of(200, SSE, pieces, end=end).status == status


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (200, b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": 7}}', "ok", ""),
        (200, b'{"choices": []}', "bad_answer", "an answer without choices"),
        (200, b'{"error": {"message": "quota"}}', "bad_answer", "quota"),
        (200, b"<html>", "bad_answer", ""),
        (400, b'{"error": {"message": "too  long\\n"}}', "http_400", "too long"),
        (422, b'{"detail": [{"msg": "bad"}]}', "http_422", "bad"),
        (500, b'{"error": "plain words"}', "http_500", "plain words"),
        (502, b"<html>bad gateway</html>", "http_502", "<html>bad gateway</html>"),
        (503, b"", "http_503", ""),
        (500, b"\xff\xfe" + b"x" * 5000, "http_500", ""),
    ],
)
def test_a_whole_answer_or_error_is_named(status: int, body: bytes, kind: str, message: str) -> None:
    exchange = exchange_of(status, b"application/json", [body[:3], body[3:]])
    assert exchange.status == kind
    assert message in exchange.message
    assert len(exchange.message) <= 200


def test_what_the_router_says_is_read_from_headers() -> None:
    exchange = Exchange(b"", 1e9, lambda one: None)
    exchange.head(200, {b"x-trieway-worker": b"w", b"x-trieway-attempts": b"3", b"x-trieway-cached-tokens": b"12",
                        b"x-trieway-predicted-tokens": b"no number"})  # fmt: skip
    assert (exchange.worker, exchange.attempts, exchange.cached_tokens, exchange.predicted_tokens) == ("w", 3, 12, None)


# The pool under servers that misbehave


def test_a_server_that_hangs_up_at_once_is_an_error_not_a_loop() -> None:
    async def main() -> None:
        asked = 0

        async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            writer.close()

        server = await asyncio.start_server(rude, "127.0.0.1", 0)
        async with server:
            url = parse_url(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            records = await drive(url, [call("a"), call("b")])
        assert {record.status for record in records} <= {"broken", "connect"}
        assert asked == 2

    asyncio.run(main())


def test_the_pools_sums_hold_while_exchanges_come_and_go() -> None:
    async def main() -> None:
        gone: list[int] = []

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    await asyncio.sleep(0.002)
                    writer.write(LENGTH)
            except (asyncio.IncompleteReadError, ConnectionError):
                gone.append(1)
            finally:
                writer.close()

        server = await asyncio.start_server(slow, "127.0.0.1", 0)
        async with server:
            url = parse_url(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            pool = Pool(url, connections_max=3)
            left = 40
            over = asyncio.get_running_loop().create_future()

            def ended(exchange: Exchange) -> None:
                nonlocal left
                pool.ended(exchange)
                pool.check()
                left -= 1
                if not left:
                    over.set_result(None)

            for _ in range(40):
                pool.send(Exchange(b"GET / HTTP/1.1\r\n\r\n", 1e12, ended))
                pool.check()
            await over
            assert pool.in_flight == 0
            assert pool.connections_most == 3
            await pool.close()
            while len(gone) < 3:  # noqa: ASYNC110 - the server's side has to see it too
                await asyncio.sleep(0.001)

    asyncio.run(main())
