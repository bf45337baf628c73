"""One request's reader: batches, failures, cancels."""

from __future__ import annotations

import asyncio

import pytest

from trieway.serving.errors import Internal
from trieway.worker.generation import Generation, Output


def new(samples: int = 1) -> tuple[Generation, list[Generation]]:
    cancelled: list[Generation] = []
    return Generation([str(i) for i in range(samples)], cancelled.append), cancelled


async def read(generation: Generation) -> list[list[str]]:
    return [[output.text for output in batch] async for batch in generation.batches()]


def test_what_came_together_is_read_together() -> None:
    async def scene() -> None:
        generation, cancelled = new(2)
        generation.push([Output(sample=0, text="a")])
        generation.push([Output(sample=1, text="b")])
        batches = generation.batches()
        assert [output.text for output in await anext(batches)] == ["a", "b"]
        generation.push([Output(sample=0, text="c", finish="stop")])
        assert [output.text for output in await anext(batches)] == ["c"]
        assert not generation.ended
        generation.push([Output(sample=1, text="d", finish="length")])
        assert [output.text for output in await anext(batches)] == ["d"]
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        assert generation.ended
        generation.cancel()
        assert not cancelled, "there is nothing left to cancel"

    asyncio.run(scene())


def test_a_failure_comes_after_what_was_before_it() -> None:
    async def scene() -> None:
        generation, _ = new()
        generation.push([Output(sample=0, text="a")])
        generation.fail(Internal("broken"))
        generation.push([Output(sample=0, text="late")])
        batches = generation.batches()
        assert [output.text for output in await anext(batches)] == ["a"]
        with pytest.raises(Internal):
            await anext(batches)

    asyncio.run(scene())


def test_a_failure_wakes_a_waiting_reader() -> None:
    async def scene() -> None:
        generation, _ = new()
        reading = asyncio.create_task(read(generation))
        await asyncio.sleep(0)
        generation.fail(Internal("broken"))
        generation.fail(Internal("again"))
        with pytest.raises(Internal, match="broken"):
            await reading

    asyncio.run(scene())


def test_a_cancel_is_told_once_and_drops_what_crossed_it() -> None:
    async def scene() -> None:
        generation, cancelled = new(3)
        reading = asyncio.create_task(read(generation))
        await asyncio.sleep(0)
        generation.push([Output(sample=0, text="a")])
        generation.cancel()
        generation.cancel()
        generation.push([Output(sample=1, text="b")])
        assert await reading == []
        assert cancelled == [generation]

    asyncio.run(scene())
