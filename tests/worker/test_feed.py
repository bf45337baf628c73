"""The feed's shell: merging, waiting for what is written, slow and stuck routers, heartbeats, the end."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from trieway.meta_tree.events import Stored
from trieway.meta_tree.frames import Delta, Frame, FrameReader, Heartbeat, Hello, SnapshotBegin, WorkerLoad
from trieway.meta_tree.publisher import Publisher
from trieway.serving.errors import Unavailable
from trieway.worker.feed import SETTLE_MAX_S, SUBSCRIBERS_MAX, Feed

LOAD = WorkerLoad(
    running=1,
    waiting=2,
    waiting_tokens=3,
    running_tokens=4,
    prefill_tokens_per_s=5.0,
    decode_step_ms=6.0,
    kv_free_tokens=7,
    kv_cached_tokens=8,
    kv_total_tokens=15,
)


def new_feed(heartbeat_s: float = 60.0, ring_events_max: int = 100) -> Feed:
    publisher = Publisher(epoch=5, seed_id="0" * 16, group="g", ring_events_max=ring_events_max)
    return Feed(publisher, lambda: LOAD, heartbeat_s=heartbeat_s)


def stored(block: int) -> Stored:
    return Stored(namespace_id=1, parent=1, hashes=(block,), usable=(9,))


def frames(data: bytes) -> list[Frame]:
    return FrameReader().feed(data)


def test_what_comes_while_a_router_writes_is_one_write() -> None:
    async def scene() -> None:
        feed = new_feed()
        async with aclosing(feed.stream(None, None)) as stream:
            first = frames(await anext(stream))
            assert [type(frame) for frame in first][:2] == [Hello, SnapshotBegin]
            assert isinstance(first[-1], Heartbeat)
            for block in range(1, 4):
                feed.publish([stored(block)])
            told = frames(await anext(stream))
        assert [frame.number for frame in told if isinstance(frame, Delta)] == [1, 2, 3]
        assert feed.subscribers == 0
        feed.check()

    asyncio.run(scene())


def test_a_heartbeat_comes_after_the_deltas_it_counts() -> None:
    async def scene() -> None:
        feed = new_feed()
        async with aclosing(feed.stream(None, None)) as stream:
            await anext(stream)
            feed.beat()
            feed.publish([stored(1)])
            told = frames(await anext(stream))
        assert [type(frame) for frame in told] == [Delta, Heartbeat]
        assert told[1].number == told[0].number == 1  # type: ignore[union-attr]

    asyncio.run(scene())


def test_heartbeats_come_by_themselves_until_the_end() -> None:
    async def scene() -> None:
        feed = new_feed(heartbeat_s=0.01)
        feed.start()
        async with aclosing(feed.stream(None, None)) as stream:
            for _ in range(3):
                assert isinstance(frames(await anext(stream))[-1], Heartbeat)
            feed.publish([stored(1)])
            feed.close()
            rest = b"".join([data async for data in stream])
        assert any(isinstance(frame, Delta) for frame in frames(rest)), "what is published is written before the end"

    asyncio.run(scene())


def test_settling_waits_for_the_slowest() -> None:
    async def scene() -> None:
        feed = new_feed()
        await feed.settle()
        streams = [feed.stream(None, None) for _ in range(2)]
        for stream in streams:
            await anext(stream)

        async def read(stream: object) -> None:
            async for _ in stream:  # type: ignore[attr-defined]
                pass

        fast = asyncio.create_task(read(streams[0]))
        await asyncio.sleep(0)
        feed.publish([stored(1)])
        settled = asyncio.create_task(feed.settle())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not settled.done(), "the second has not been written it"
        slow = asyncio.create_task(read(streams[1]))
        await settled
        assert min(one.sent for one in feed._subscribers) == 1
        feed.close()
        await asyncio.gather(fast, slow)

    asyncio.run(scene())


def test_a_stuck_router_is_waited_for_once() -> None:
    async def scene() -> None:
        feed = new_feed()
        stream = feed.stream(None, None)
        await anext(stream)
        feed.publish([stored(1)])
        began = time.monotonic()
        await feed.settle()
        assert time.monotonic() - began >= SETTLE_MAX_S * 0.9
        feed.publish([stored(2)])
        began = time.monotonic()
        await feed.settle()
        assert time.monotonic() - began < SETTLE_MAX_S / 2
        assert len(frames(await anext(stream))) == 2
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        feed.publish([stored(3)])
        await feed.settle()
        assert len(frames(await reading)) == 1
        await stream.aclose()

    asyncio.run(scene())


def test_one_slower_than_the_ring_gets_a_snapshot() -> None:
    async def scene() -> None:
        feed = new_feed(ring_events_max=3)
        async with aclosing(feed.stream(None, None)) as stream:
            await anext(stream)
            for block in range(1, 9):
                feed.publish([stored(block)])
            told = frames(await anext(stream))
        assert isinstance(told[0], SnapshotBegin)
        feed.check()

    asyncio.run(scene())


def test_routers_are_bounded() -> None:
    async def scene() -> None:
        feed = new_feed()
        streams = [feed.stream(None, None) for _ in range(SUBSCRIBERS_MAX)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(Unavailable):
            await anext(feed.stream(None, None))
        await streams[0].aclose()
        extra = feed.stream(None, None)
        await anext(extra)
        for stream in (*streams[1:], extra):
            await stream.aclose()
        assert feed.subscribers == 0

    asyncio.run(scene())


def test_buckets_are_one_frame() -> None:
    feed = new_feed()
    feed.publish([stored(3 << 56), stored(4 << 56)])
    (frame,) = frames(feed.buckets([3]))
    assert frame.indices == (3,)  # type: ignore[union-attr]
