"""What is asked of servers beside completions, and the lines for what they cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.loadgen.serving import serving
from tests.tools.mock_openai import Options
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.scrape import SAMPLES_MAX, Scraper, Source, parse_metrics
from trieway.loadgen.client.target import Access, Backend, Target
from trieway.loadgen.client.url import parse_url
from trieway.loadgen.errors import LoadError, RunFailed


def with_target(
    work: Callable[[Target], Coroutine[Any, Any, Any]], options: Options | None = None, **access: Any
) -> Any:
    async def main() -> Any:
        async with serving(options) as url, Target(Access(url=url, **access)) as target:
            return await work(target)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("127.0.0.1:8000", "http://127.0.0.1:8000"), ("http://a/v1/", "http://a"), ("https://a:443/x/v1", "https://a/x"),
     ("http://a:80", "http://a"), ("localhost", "http://localhost"), ("HTTP://A:9", "http://a:9")],
)  # fmt: skip
def test_a_url_as_a_person_types_it(typed: str, meant: str) -> None:
    assert str(parse_url(typed)) == meant


@pytest.mark.parametrize(
    "typed", ["", "http://", "ftp://a", "http://a:b", "http://a:99999", "http://u:p@a", "http://a?x=1", "http://a#b",
              "http://a/\r\nx: 1", "http://[::1", "http://ä"],
)  # fmt: skip
def test_what_is_no_url_is_one_line(typed: str) -> None:
    with pytest.raises(LoadError) as caught:
        parse_url(typed)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_loopback_is_known() -> None:
    assert parse_url("127.0.0.2").loopback
    assert parse_url("[::1]").loopback
    assert parse_url("localhost").loopback
    assert not parse_url("example.org").loopback


def test_the_model_is_the_first_served_or_the_one_named() -> None:
    assert with_target(lambda target: target.model(None)) == "mock"
    assert with_target(lambda target: target.model("mock")) == "mock"
    with pytest.raises(LoadError, match="does not serve 'other'; it serves mock"):
        with_target(lambda target: target.model("other"))


def test_nobody_there_is_a_line_with_exit_code_1() -> None:
    async def main() -> None:
        async with serving() as url:
            pass
        async with Target(Access(url=url)) as target:
            await target.model(None)

    with pytest.raises(RunFailed, match="nothing answers at") as caught:
        asyncio.run(main())
    assert caught.value.exit_code == 1


def test_something_that_speaks_no_http_is_a_line() -> None:
    async def main() -> None:
        async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 smtp ready\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(rude, "127.0.0.1", 0)
        url = parse_url(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            async with Target(Access(url=url)) as target:
                await target.model(None)
        finally:
            server.close()

    with pytest.raises(RunFailed, match="does not speak HTTP"):
        asyncio.run(main())


def probe(options: Options, *, stream: bool = True, usage_needed: bool = True) -> None:
    async def work(target: Target) -> None:
        dialect = Dialect(url=target.access.url, model="mock")
        await target.probe(dialect, stream=stream, usage_needed=usage_needed)

    with_target(work, options)


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_can_is_let_through(stream: bool) -> None:
    probe(Options(), stream=stream)
    probe(Options(usage=False), stream=stream, usage_needed=False)


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_without_usage_is_one_line(stream: bool) -> None:
    with pytest.raises(RunFailed, match=r"sends no usage .* --no-usage"):
        probe(Options(usage=False), stream=stream)


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ("500", r"http_500\): told to fail"),
        ("refuse", "nothing answers completions"),
        ("cut", "cut"),
        ("404", "http_404"),
    ],
)
def test_a_server_that_cannot_serve_is_one_line(trouble: str, says: str) -> None:
    with pytest.raises(RunFailed, match=says):
        probe(Options(trouble={0: trouble, 1: trouble}))


def test_workers_are_those_a_router_lists_or_the_server_itself() -> None:
    found = with_target(lambda target: target.backends())
    assert [(one.name, one.cache_tokens) for one in found] == [("w0", 1_000_000), ("w1", 1_000_000)]
    alone = with_target(lambda target: target.backends(), Options(workers=()))
    assert [(one.name, one.cache_tokens) for one in alone] == [("server", None)]


def test_a_flush_reaches_every_worker() -> None:
    options = Options()

    async def work(target: Target) -> None:
        await target.flush(await target.backends())

    with_target(work, options)
    assert options.stats["flushes"] == 2


def test_a_server_that_cannot_flush_is_a_line() -> None:
    async def work(target: Target) -> None:
        await target.flush([Backend(name="x", url=f"{target.access.url}/nowhere")])

    with pytest.raises(RunFailed, match=r"cannot flush its cache \(status 404"):
        with_target(work)


def test_the_tree_is_read_as_branches() -> None:
    tree = with_target(lambda target: target.tree())
    assert tree["mock"][0].children[0].workers == ["w1"]


def test_a_template_that_the_server_does_not_tell_is_none() -> None:
    assert with_target(lambda target: target.chat_head("mock")) is None


METRICS = """
# HELP x says
# TYPE x_total counter
x_total 3
x_total{worker="a b",code="200"} 4.5e2
running_requests 2
bad line here
nan_gauge NaN
latency_bucket{le="+Inf"} 3
latency_sum 1.5
with_time 7 1700000000
"""


def test_prometheus_text_is_read_line_by_line() -> None:
    assert parse_metrics(METRICS) == {
        "x_total": 3, 'x_total{worker="a b",code="200"}': 450, "running_requests": 2, 'latency_bucket{le="+Inf"}': 3,
        "latency_sum": 1.5, "with_time": 7,
    }  # fmt: skip


def test_counters_are_told_as_what_they_gained_and_gauges_as_series() -> None:
    source = Source("w", "http://w")
    for number in range(3):
        source.add(
            {"x_total": 10.0 + number, "idle_total": 1.0, "running_requests": float(number), "other": 5.0}, number
        )
    told = source.told()
    assert told.deltas == {"x_total": 2.0}
    assert [(series.name, series.values) for series in told.series] == [("running_requests", [0.0, 1.0, 2.0])]


def test_a_long_run_is_thinned() -> None:
    source = Source("w", "http://w")
    for number in range(5 * SAMPLES_MAX):
        source.add({"running_requests": float(number)}, float(number))
    (series,) = source.told().series
    assert len(series.values) == len(series.times_s) <= SAMPLES_MAX + 1
    assert series.times_s[-1] > 4.5 * SAMPLES_MAX
    steps = {b - a for a, b in zip(series.times_s, series.times_s[1:], strict=False)}
    assert len(steps) == 1, "evenly"


def test_a_scrape_that_fails_is_counted_and_harms_nothing() -> None:
    async def work(target: Target) -> Any:
        scraper = Scraper(target, [Backend(name="gone", url="http://127.0.0.1:1")], 1.0)
        await scraper.once()
        return scraper.told()

    told = with_target(work)
    assert [(one.source, one.scrapes, one.failed) for one in told] == [("router", 1, 0)]


def test_the_workers_of_a_router_behind_one_address_are_scraped_once() -> None:
    async def work(target: Target) -> Any:
        scraper = Scraper(target, await target.backends(), 1.0)
        await scraper.once()
        return scraper.told()

    assert [one.source for one in with_target(work)] == ["server"]
