"""The board's entries: who is alive, as seen by a reader that may be cut off; and discovery by them."""

from __future__ import annotations

import asyncio

import msgspec

from tests.router.harness import in_loop, until
from trieway.router.ray_discovery import RayBoard
from trieway.serving.ray_entries import Entry, EntryTable, State, decode_entry, encode_entry


def entry(name: str, beat: int, *, state: State = "ready", born: int = 0) -> Entry:
    return Entry(
        role="worker",
        replica=name,
        state=state,
        url=f"http://{name}:1",
        probe_url=f"http://{name}:1",
        model="m",
        node="n",
        pid=1,
        born=born,
        beat=beat,
    )


def test_an_entry_survives_its_encoding_and_nonsense_is_none() -> None:
    assert decode_entry(encode_entry(entry("a", 3))) == entry("a", 3)
    assert decode_entry(b"\xff") is None
    assert decode_entry(b"{}") is None


def test_what_does_not_beat_is_dead() -> None:
    table = EntryTable(stale_s=10)
    for second in range(20):
        table.read([entry("a", second), entry("b", 7)], float(second))
        table.check()
    assert [one.replica for one in table.alive()] == ["a"]
    assert [one.replica for one in table.dead()] == ["b"]
    table.read([entry("a", 20), entry("b", 8)], 20.0)
    assert table.serving() == {"http://a:1", "http://b:1"}


def test_time_in_which_nothing_was_read_declares_nobody_dead() -> None:
    table = EntryTable(stale_s=10)
    table.read([entry("a", 1)], 0.0)
    # The head was away for a minute: the writer could not write either.
    table.read([entry("a", 1)], 60.0)
    assert table.serving() == {"http://a:1"}
    table.read([entry("a", 2)], 61.0)
    assert table.serving() == {"http://a:1"}


def test_only_ready_workers_serve_and_the_oldest_comes_first() -> None:
    table = EntryTable()
    router = msgspec.structs.replace(entry("r", 1, born=1), role="router")
    table.read([entry("c", 1, born=3), entry("a", 1, state="draining"), entry("b", 1, state="starting"), router], 0.0)
    assert table.serving() == {"http://c:1"}
    assert [one.replica for one in table.alive()] == ["a", "b", "r", "c"]


def test_a_removed_entry_is_forgotten() -> None:
    table = EntryTable()
    table.read([entry("a", 1)], 0.0)
    table.read([], 1.0)
    assert table.alive() == []
    table.check()


@in_loop
async def test_a_board_that_is_away_leaves_the_workers_known() -> None:
    board = {"a": entry("a", 1)}
    away = False

    def entries() -> list[Entry]:
        if away:
            raise RuntimeError("the head is gone")
        return [msgspec.structs.replace(one, beat=one.beat) for one in board.values()]

    heard: list[frozenset[str]] = []

    async def listen() -> None:
        async for urls in RayBoard(entries, poll_s=0.01).watch():
            heard.append(urls)

    task = asyncio.ensure_future(listen())
    try:
        await until(lambda: heard == [{"http://a:1"}])
        away = True
        board["b"] = entry("b", 1)
        await asyncio.sleep(0.05)
        assert len(heard) == 1
        away = False
        await until(lambda: heard[-1] == {"http://a:1", "http://b:1"})
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
