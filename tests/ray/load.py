"""Clients of the fleet: a steady load that knows every router, and streams that are watched to their ends."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

MODEL = "smollm2-135m"
TRIES_S = 60.0
"""So long a client goes from router to router before it counts a request as failed."""


@dataclass
class Tally:
    """What a load met. `failovers`: connections that broke before the whole answer; the next router was asked."""

    done: int = 0
    failovers: int = 0
    failures: list[str] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    longest_s: float = 0.0


class Load:
    """`clients` loops, each of one short completion after the other, until `stop`."""

    def __init__(self, routers: Sequence[str], *, clients: int, pause_s: float = 0.05, max_tokens: int = 4) -> None:
        self.routers = list(routers)
        self.tally = Tally()
        self._clients = clients
        self._pause_s = pause_s
        self._max_tokens = max_tokens
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Tally:
        self._ended.set()
        self._thread.join(TRIES_S + 30)
        assert not self._thread.is_alive(), "a request never ended"
        return self.tally

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TRIES_S, sock_connect=2)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await asyncio.gather(*(self._client(http, number) for number in range(self._clients)))

    async def _client(self, http: aiohttp.ClientSession, number: int) -> None:
        count = 0
        while not self._ended.is_set():
            count += 1
            prompt = f"Client {number} of a load asks once more, for the {count}th time, how are you?"
            began = time.monotonic()
            failure = await self._complete(
                http, {"model": MODEL, "prompt": prompt, "max_tokens": self._max_tokens}, number
            )
            self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - began)
            if failure is None:
                self.tally.done += 1
            else:
                self.tally.failures.append(failure)
            await asyncio.sleep(self._pause_s)

    async def _complete(self, http: aiohttp.ClientSession, body: dict[str, Any], first: int) -> str | None:
        """None, or why it failed. Where a connection breaks before the whole answer, the next router is asked."""
        until = time.monotonic() + TRIES_S
        turn = first
        while True:
            url = self.routers[turn % len(self.routers)]
            try:
                async with http.post(url + "/v1/completions", json=body) as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        return f"{answer.status} from {url}: {text[:300]}"
                    self.tally.workers.add(answer.headers["x-trieway-worker"])
                    return None
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                if time.monotonic() > until:
                    return f"no router answers: {type(error).__name__} {error}"
                self.tally.failovers += 1
                turn += 1
                await asyncio.sleep(0.1)


@contextmanager
def under_load(routers: Sequence[str], *, clients: int = 3, **options: Any) -> Iterator[Load]:
    """A load around the block; afterwards no request may have failed."""
    load = Load(routers, clients=clients, **options)
    load.start()
    try:
        yield load
    finally:
        tally = load.stop()
    assert tally.failures == []
    assert tally.done > 0


class Streams:
    """Streams of one length each, one after the other through the given routers, all at once."""

    def __init__(self, routers: Sequence[str], *, count: int, max_tokens: int) -> None:
        self.begun = 0
        self.ended: list[str] = []
        """How each ended: `whole`, or what was wrong."""
        self._routers = routers
        self._count = count
        self._max_tokens = max_tokens
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def join(self, limit_s: float) -> list[str]:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "a stream never ended"
        return self.ended

    async def _run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
            await asyncio.gather(*(self._stream(http, number) for number in range(self._count)))

    async def _stream(self, http: aiohttp.ClientSession, number: int) -> None:
        url = self._routers[number % len(self._routers)]
        body = {
            "model": MODEL,
            "prompt": f"Stream number {number} tells a long story:",
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        events = 0
        last = b""
        try:
            async with http.post(url + "/v1/completions", json=body) as answer:
                if answer.status != 200:
                    self.ended.append(f"{answer.status}: {(await answer.text())[:200]}")
                    return
                self.begun += 1
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        last = line.strip()
                        if last != b"data: [DONE]":
                            found = json.loads(last.removeprefix(b"data: "))
                            if "error" in found:
                                self.ended.append(f"broken after {events} events: {found['error']}")
                                return
                            events += 1
        except aiohttp.ClientError as error:
            self.ended.append(f"{type(error).__name__} after {events} events: {error}")
            return
        self.ended.append("whole" if last == b"data: [DONE]" else f"ends after {events} events without [DONE]")
