"""Calls over real sockets against the mock: times, texts, errors by kind, waiting, retries, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.loadgen.serving import after, call, drive, serving
from tests.tools.mock_openai import Options
from trieway.loadgen.client.driver import Driver, Pace
from trieway.loadgen.client.pool import Pool
from trieway.loadgen.client.url import parse_url
from trieway.loadgen.records import ABANDONED, INTERRUPTED


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main, debug=False)


def test_a_stream_is_timed_and_counted() -> None:
    async def main() -> None:
        async with serving(Options(first_ms=20, gap_ms=10)) as url:
            (record,) = await drive(url, [call(tokens=5)])
        assert record.ok
        assert (record.output_tokens, record.prompt_tokens, record.cached_tokens) == (5, 13, 0)
        assert (record.worker, record.predicted_tokens) == ("w0", 4)
        assert sum(count for _, count in record.gaps) == 4
        assert record.ttft_s is not None
        assert record.ttft_s >= 0.02
        assert record.e2e_s is not None
        assert record.e2e_s >= 0.06

    run(main())


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_both_forms_streamed_and_whole(chat: bool, stream: bool) -> None:
    async def main() -> None:
        options = Options(gap_ms=1, bodies=[])
        one = call(stream=stream)
        if not chat:
            one = call(stream=stream, form="completion", messages=(), prompt=one.messages[0].parts)
        async with serving(options) as url:
            (record,) = await drive(url, [one])
        assert record.ok
        assert record.output_tokens == 3
        assert record.prompt_tokens is not None
        assert options.bodies is not None
        assert ("messages" in options.bodies[0]) == chat
        assert options.bodies[0].get("stream", False) == stream

    run(main())


@pytest.mark.parametrize(
    "options",
    [
        Options(gap_ms=1, crlf=True),
        Options(gap_ms=1, done_mark=False),
        Options(gap_ms=1, role_event=False),
        Options(gap_ms=0),
        Options(gap_ms=1, workers=(), cached=False),
    ],
    ids=["crlf", "no end mark", "no role", "at once", "foreign"],
)
def test_servers_that_speak_otherwise_are_understood(options: Options) -> None:
    async def main() -> None:
        async with serving(options) as url:
            records = await drive(url, [call("a"), call("b")])
        assert all(record.ok and record.output_tokens == 3 for record in records)
        if not options.cached:
            assert {(record.worker, record.cached_tokens) for record in records} == {(None, None)}

    run(main())


def test_without_usage_events_are_counted() -> None:
    async def main() -> None:
        async with serving(Options(gap_ms=1, usage=False)) as url:
            (record,) = await drive(url, [call()])
        assert record.ok
        assert record.output_tokens == 3
        assert record.prompt_tokens is None

    run(main())


@pytest.mark.parametrize(
    ("trouble", "status"),
    [("500", "http_500"), ("429", "http_429"), ("cut", "cut"), ("error", "stream_error"), ("garbage", "bad_answer"),
     ("hang", "timeout"), ("refuse", "broken")],
)  # fmt: skip
def test_errors_have_their_kind_and_stop_what_waits(trouble: str, status: str) -> None:
    async def main() -> None:
        said: dict[str, str] = {}

        def watch(driver: Driver, pool: Pool) -> None:
            said.update(driver.messages)

        first = call("a")
        calls = [first, after("b", first), after("c", first), call("d")]
        async with serving(Options(gap_ms=1, trouble={0: trouble})) as url:
            records = await drive(url, calls, Pace(timeout_s=0.3, users_max=1), during=watch)
        assert {record.call: record.status for record in records} == {
            "a": status, "b": ABANDONED, "c": ABANDONED, "d": "ok",
        }  # fmt: skip
        if trouble == "500":
            assert said["http_500"] == "told to fail"

    run(main())


def test_nobody_there_is_a_connect_error() -> None:
    async def main() -> None:
        async with serving() as url:
            pass
        (record,) = await drive(url, [call()])
        assert record.status == "connect"
        assert record.first_s is None

    run(main())


def test_answers_are_quoted_and_thought_over() -> None:
    async def main() -> None:
        options = Options(gap_ms=1, bodies=[])
        first = call("a")
        async with serving(options) as url:
            records = await drive(url, [first, after("b", first, think_s=0.05)])
        assert options.bodies is not None
        assert options.bodies[1]["messages"][0]["content"] == " word word word and then?"
        one, two = records
        assert one.last_s is not None
        assert two.due_s >= one.last_s + 0.05
        assert two.sent_s is not None
        assert two.sent_s >= two.due_s

    run(main())


def test_calls_go_when_they_are_due_and_not_before() -> None:
    async def main() -> None:
        calls = [call(f"c{number}", due_s=number * 0.02) for number in range(10)]
        async with serving() as url:
            records = await drive(url, calls)
        assert sorted(record.due_s for record in records) == pytest.approx([number * 0.02 for number in range(10)])
        assert all(record.lag_s is not None and record.lag_s >= 0 for record in records)

    run(main())


def test_latency_counts_from_the_due_time_when_connections_run_out() -> None:
    """No coordinated omission: what waits for a connection has been due all the time."""

    async def main() -> None:
        calls = [call(f"c{number}", tokens=1) for number in range(6)]

        def proved(driver: Driver, pool: Pool) -> None:
            assert pool.in_flight <= 6

        async with serving(Options(first_ms=30)) as url:
            records = await drive(url, calls, connections=2, during=proved)
        waits = sorted(record.ttft_s for record in records if record.ttft_s is not None)
        assert waits[0] >= 0.03
        assert waits[-1] >= 0.09
        lags = sorted(record.lag_s for record in records if record.lag_s is not None)
        assert lags[-1] >= 0.06, "the generator's own queue is its lag"

    run(main())


def test_a_closed_loop_keeps_its_users() -> None:
    async def main() -> None:
        most = 0

        def watch(driver: Driver, pool: Pool) -> None:
            nonlocal most
            most = max(most, pool.in_flight)

        async with serving() as url:
            records = await drive(url, [call(f"c{n}") for n in range(12)], Pace(users_max=3, timeout_s=5), during=watch)
        assert len(records) == 12
        assert most <= 3

    run(main())


def test_a_kept_connection_that_was_closed_is_tried_again() -> None:
    async def main() -> None:
        options = Options(gap_ms=1, close_after=1)
        async with serving(options) as url:
            records = await drive(url, [call(f"c{n}") for n in range(8)], Pace(users_max=1, timeout_s=5))
        assert [record.status for record in records] == ["ok"] * 8
        assert options.stats["connections"] >= 8

    run(main())


def test_connections_are_kept() -> None:
    async def main() -> None:
        options = Options(gap_ms=1)
        async with serving(options) as url:
            await drive(url, [call(f"c{n}") for n in range(8)], Pace(users_max=2, timeout_s=5))
        assert options.stats["connections"] == 2

    run(main())


def test_an_interrupt_records_what_was_in_flight() -> None:
    async def main() -> None:
        calls = [call("a", tokens=1), call("b", tokens=500), call("c", due_s=60.0)]

        def watch(driver: Driver, pool: Pool) -> None:
            if driver.tally.ok == 1 and driver.in_flight:
                asyncio.get_running_loop().call_soon(driver.interrupt)

        async with serving() as url:
            records = await drive(url, calls, during=watch)
        assert {record.call: record.status for record in records} == {"a": "ok", "b": INTERRUPTED}

    run(main())


def test_after_the_duration_nothing_is_sent_and_what_runs_may_finish() -> None:
    async def main() -> None:
        first = call("a", tokens=100)
        calls = [first, after("b", first), call("c", due_s=5.0)]
        async with serving(Options(gap_ms=2)) as url:
            records = await drive(url, calls, Pace(timeout_s=5, stop_s=0.05))
        assert {record.call: record.status for record in records} == {"a": "ok"}

    run(main())


def test_headers_carry_session_tenant_and_key_and_cannot_be_broken_out_of() -> None:
    async def main() -> None:
        options = Options(gap_ms=1, bodies=[])
        calls = [call("a", session="ä\r\nx-evil: 1", tenant="t 1"), call("b", tenant="known", session="s")]
        async with serving(options) as url:
            await drive(url, calls, Pace(users_max=1, timeout_s=5), tenant_keys={"known": "k1"})
            await drive(url, calls[1:], extensions=False, key="k2")
        first, second, third = options.headers
        assert "x-evil" not in first
        assert first["x-session-id"] == "%C3%A4%0D%0Ax-evil:%201"
        assert first["x-tenant-id"] == "t%201"
        assert second["authorization"] == "Bearer k1"
        assert "x-tenant-id" not in second
        assert third["authorization"] == "Bearer k2"
        assert "x-session-id" not in third
        assert options.bodies is not None
        assert "ignore_eos" in options.bodies[0]
        assert "ignore_eos" not in options.bodies[2]

    run(main())


def test_an_ipv6_host_is_written_in_brackets() -> None:
    assert parse_url("http://[::1]:80/x/v1").authority == "[::1]"
    assert str(parse_url("[::1]:9000")) == "http://[::1]:9000"
