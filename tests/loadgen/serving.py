"""The mock server inside the test's own event loop, and short ways to drive it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.tools.mock_openai import Options, Server
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.driver import Driver, Pace
from trieway.loadgen.client.pool import Pool
from trieway.loadgen.client.url import Url, parse_url
from trieway.loadgen.records import Record
from trieway.loadgen.vocabulary import AnswerOf, Call, Message, Part, Text, Workload


@asynccontextmanager
async def serving(options: Options | None = None) -> AsyncIterator[Url]:
    server = await Server(Options(gap_ms=1) if options is None else options).listen()
    try:
        yield parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


def call(name: str = "c", *, text: str = "hello there, how are you", tokens: int = 3, **more: object) -> Call:
    parts: tuple[Part, ...] = (Text(text),)
    values: dict[str, object] = {
        "id": name, "session": name, "messages": (Message("user", parts),),
        "output_tokens": tokens, "max_tokens": tokens,
    }  # fmt: skip
    return Call(**(values | more))  # type: ignore[arg-type]


def after(name: str, before: Call, **more: object) -> Call:
    parts: tuple[Part, ...] = (AnswerOf(before.id), Text(" and then?"))
    changed = {"session": before.session, "after": (before.id,), "messages": (Message("user", parts),), **more}
    return call(name, **changed)  # type: ignore[arg-type]


def workload(*calls: Call) -> Workload:
    made = Workload(name="test", seed=0, calls=calls)
    made.check()
    return made


async def drive(
    url: Url,
    calls: Sequence[Call],
    pace: Pace | None = None,
    *,
    connections: int = 50,
    during: Callable[[Driver, Pool], None] | None = None,
    **dialect: object,
) -> list[Record]:
    """All records; the driver's and pool's sums are proved whenever a record comes."""
    records: list[Record] = []
    pool = Pool(url, connections_max=connections)

    def keep(record: Record, text: str) -> None:
        record.check()
        records.append(record)
        if during is not None:
            during(driver, pool)

    speaks = Dialect(url=url, model="mock", **dialect)  # type: ignore[arg-type]
    driver = Driver(workload(*calls), pace or Pace(timeout_s=5), speaks, pool, keep)
    try:
        await driver.run(asyncio.get_running_loop().time())
        driver.check()
    finally:
        await pool.close()
    return records
