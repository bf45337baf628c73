"""Clients of the fleet: a steady load that knows every router, and streams that are watched to their ends."""

from __future__ import annotations

import asyncio
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
    first_cached: dict[str, int] = field(default_factory=dict)
    """For each worker, how many tokens its first answer reused."""


class Load:
    """`clients` loops, each of one short completion after the other, until `stop`.

    All prompts begin with `prefix`; `varied`: no two are the same, else each client repeats its own.
    """

    def __init__(
        self,
        routers: Sequence[str],
        *,
        clients: int,
        pause_s: float = 0.05,
        prefix: str = "",
        varied: bool = True,
    ) -> None:
        self.routers = list(routers)
        self.tally = Tally()
        self._clients = clients
        self._pause_s = pause_s
        self._prefix = prefix
        self._varied = varied
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
            turn = f"for the {count}th time" if self._varied else "as ever"
            prompt = f"{self._prefix}Client {number} of a load asks once more, {turn}, how are you?"
            failure = await self._complete(http, {"model": MODEL, "prompt": prompt, "max_tokens": 4}, number)
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
                    worker, cached = answer.headers["x-trieway-worker"], answer.headers["x-trieway-cached-tokens"]
                    self.tally.first_cached.setdefault(worker, int(cached))
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
    assert not tally.failures, f"{len(tally.failures)} of {tally.done}: {tally.failures[:3]}"
    assert tally.done > 0


@dataclass(frozen=True)
class Stream:
    """One that ended. `how`: `whole`, or what was wrong."""

    worker: str
    began: float
    ended: float
    how: str


class Streams:
    """`count` clients, each with one stream after the other through its router, until `stop`."""

    def __init__(self, routers: Sequence[str], *, count: int, max_tokens: int) -> None:
        self.in_flight = 0
        self.ended: list[Stream] = []
        self._routers = routers
        self._count = count
        self._max_tokens = max_tokens
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> list[Stream]:
        """Lets those in flight end, and begins none."""
        self._stopping.set()
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), "a stream never ended"
        return self.ended

    async def _run(self) -> None:
        timeout, connector = aiohttp.ClientTimeout(total=300), aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            await asyncio.gather(*(self._client(http, number) for number in range(self._count)))

    async def _client(self, http: aiohttp.ClientSession, number: int) -> None:
        turn = number
        while not self._stopping.is_set():
            url = self._routers[turn % len(self._routers)]
            prompt = f"Stream {len(self.ended)} of client {number} tells a long story:"
            ended = await self._stream(http, url, prompt)
            if ended is None:
                turn += 1  # no router answered there: the next one, as any client that knows two
                continue
            self.ended.append(ended)
            if ended.how != "whole":
                return

    async def _stream(self, http: aiohttp.ClientSession, url: str, prompt: str) -> Stream | None:
        """None: the connection broke before an answer began."""
        body = {
            "model": MODEL, "prompt": prompt, "max_tokens": self._max_tokens, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        began = time.monotonic()
        try:
            answer = await http.post(url + "/v1/completions", json=body)
        except aiohttp.ClientConnectionError:
            return None
        async with answer:
            if answer.status != 200:
                return Stream("", began, time.monotonic(), f"{answer.status}: {(await answer.text())[:200]}")
            self.in_flight += 1
            how = await _end(answer)
            self.in_flight -= 1
            return Stream(answer.headers["x-trieway-worker"], began, time.monotonic(), how)


async def _end(answer: aiohttp.ClientResponse) -> str:
    events = 0
    last = b""
    try:
        async for line in answer.content:
            if line.startswith(b"data: "):
                last = line.strip()
                if b'"error"' in last:
                    return f"broken after {events} events: {last!r}"
                events += 1
    except aiohttp.ClientError as error:
        return f"{type(error).__name__} after {events} events: {error}"
    return "whole" if last == b"data: [DONE]" else f"ends after {events} events without [DONE]"
