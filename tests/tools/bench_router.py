"""`make bench-router`: CPU microseconds per request of a router's process, its planes and its peers interleaved.

Every router stands before two mock workers of its own (mock_worker.py), for their feeds tell every router what any
other one has brought there, and all get the same conversations in the same order. Each round goes through all routers
before the next one begins, so that a busy machine treats all alike. The figure is the process' time on a CPU (all its
threads, /proc/PID/task/*/schedstat), the feed and its timers included, over the requests of a round; the median of the
rounds is told. Nothing is judged here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tools.mock_worker import EVENTS, MODEL
from trieway.loadgen.client.wire import Connection

READY_S = 60.0


@dataclass(frozen=True)
class Shape:
    """One kind of request."""

    name: str
    size: int
    messages: int
    stream: bool
    requests: int
    """In one round."""


SHAPES = (
    Shape("chat 200 B", 200, 2, False, 600),
    Shape("16 KB", 16_384, 4, False, 400),
    Shape("128 KB", 131_072, 16, False, 120),
    Shape(f"{EVENTS}-event stream", 200, 2, True, 40),
)


def body(shape: Shape, number: int) -> bytes:
    """A conversation: a system prompt of half its size that all share, then turns that no other one has."""
    text = "The quick brown fox jumps over the lazy dog, again and again. " * (shape.size // 62 + 1)
    turn = shape.size // 2 // (shape.messages - 1)
    messages = [{"role": "system", "content": text[: shape.size // 2]}]
    for at in range(shape.messages - 1):
        own = f"conversation {number}, turn {at}: " + text
        messages.append({"role": "user" if at % 2 == 0 else "assistant", "content": own[:turn]})
    told = {"model": MODEL, "messages": messages, "max_tokens": 16, "stream": shape.stream}
    return json.dumps(told, separators=(",", ":")).encode()


def request(shape: Shape, number: int) -> bytes:
    content = body(shape, number)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    head += f"accept: */*\r\nuser-agent: bench\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


class Asker:
    """A wire.Listener: one connection that asks again as soon as it has its answer."""

    def __init__(self, connection: Connection, take: Callable[[], bytes | None], done: asyncio.Future[None]) -> None:
        self._connection = connection
        self._take = take
        self._done = done

    def next(self) -> None:
        """Asks; ends when there is nothing left to ask."""
        request = self._take()
        if request is None:
            self._done.set_result(None)
        else:
            self._connection.ask(request, self)

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        if status != 200 and not self._done.done():
            self._done.set_exception(RuntimeError(f"status {status}"))

    def body(self, data: bytes, now: float) -> None: ...

    def done(self, now: float) -> None:
        if not self._done.done():
            self.next()

    def broke(self, reason: str, now: float, *, heard: bool) -> None:
        if not self._done.done():
            self._done.set_exception(RuntimeError(reason))


async def drive(port: int, shape: Shape, connections: int, first: int, pool: int = 0) -> None:
    """One round: `shape.requests` requests over so many connections, all new ones or out of a pool."""
    loop = asyncio.get_running_loop()
    numbers = [at % pool if pool else first + at for at in range(shape.requests)]
    made_requests = {number: request(shape, number) for number in numbers}
    requests = iter([made_requests[number] for number in numbers])

    def take() -> bytes | None:
        return next(requests, None)

    made = [(await loop.create_connection(Connection, "127.0.0.1", port))[1] for _ in range(connections)]
    ends = [loop.create_future() for _ in made]
    for connection, end in zip(made, ends, strict=True):
        Asker(connection, take, end).next()
    try:
        await asyncio.gather(*ends)
    finally:
        for connection in made:
            connection.close()


def cpu_us(pid: int) -> float:
    """Time on a CPU of all threads of a process."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1e3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def process(*arguments: str, line: bool = False) -> AsyncIterator[tuple[int, str]]:
    """(pid, first line of its output if wanted); ended by its standard input or a signal, and waited for."""
    log = asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(
        *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE if line else log, stderr=log
    )
    try:
        first = ""
        if line:
            assert child.stdout is not None
            first = (await child.stdout.readline()).decode()
            assert first, f"{arguments} ended before it was ready"
        yield child.pid, first.strip()
    finally:
        assert child.stdin is not None
        child.stdin.close()
        if not line:
            child.terminate()
        try:
            await asyncio.wait_for(child.wait(), 10)
        except TimeoutError:
            child.kill()
            await child.wait()


def commands(peers: Path | None, only: str) -> dict[str, Callable[[int, list[str]], list[str]]]:
    """How each router is started: (port, URLs of the workers) -> command line."""

    def ours(plane: str) -> Callable[[int, list[str]], list[str]]:
        return lambda port, urls: [
            *(sys.executable, "-m", "trieway", "router", "--port", str(port), "--data-plane", plane),
            *(word for url in urls for word in ("--worker", url)),
        ]

    def peer(program: str, policy: str) -> Callable[[int, list[str]], list[str]]:
        launch = ["launch"] if program == "sglang-router" else []
        return lambda port, urls: [
            *(str((peers or Path()) / program), *launch, "--host", "127.0.0.1", "--port", str(port)),
            *("--policy", policy, "--prometheus-port", str(free_port()), "--log-level", "error"),
            *("--worker-urls", *urls),
        ]

    known = {"trieway, protocol plane": ours("protocol"), "trieway, ASGI plane": ours("asgi")}
    for program in ("sglang-router", "vllm-router"):
        if peers is not None and (peers / program).exists():
            for policy in ("cache_aware", "round_robin"):
                known[f"{program} {policy}"] = peer(program, policy)
    return {name: command for name, command in known.items() if only in name}


async def until_ready(name: str, port: int) -> None:
    """Until the router answers a completion with 200."""
    ask = Shape("probe", 200, 2, False, 1)
    for _ in range(int(READY_S / 0.25)):
        try:
            await drive(port, ask, 1, 0)
            return
        except (OSError, RuntimeError):
            await asyncio.sleep(0.25)
    raise SystemExit(f"{name} did not become ready in {READY_S:g} s")


Figures = dict[str, dict[str, list[float]]]


async def measure(asked: argparse.Namespace) -> Figures:
    """CPU microseconds per request: router -> shape -> one figure per round."""
    found: Figures = {}
    shapes = [shape for shape in SHAPES if asked.shape in shape.name]
    async with started(asked) as routers:
        for number in range(-1, asked.rounds):  # the round before the first warms up
            for shape in shapes:
                for name, (pid, port) in routers.items():
                    began = cpu_us(pid)
                    await drive(port, shape, asked.connections, (number + 1) * shape.requests, asked.pool)
                    each = (cpu_us(pid) - began) / shape.requests
                    if number >= 0:
                        found.setdefault(name, {}).setdefault(shape.name, []).append(each)
    return found


@asynccontextmanager
async def started(asked: argparse.Namespace) -> AsyncIterator[dict[str, tuple[int, int]]]:
    """All routers with their workers, ready: name -> (pid, port)."""
    mock = (sys.executable, "-m", "tests.tools.mock_worker", "--gap-ms", str(asked.gap_ms))
    async with AsyncExitStack() as stack:
        routers: dict[str, tuple[int, int]] = {}
        for name, command in commands(asked.peers, asked.only).items():
            lines = [(await stack.enter_async_context(process(*mock, line=True)))[1] for _ in range(2)]
            port = free_port()
            urls = [line.split()[-1] for line in lines]
            pid, _ = await stack.enter_async_context(process(*command(port, urls)))
            await until_ready(name, port)
            routers[name] = (pid, port)
        yield routers


def table(found: Figures) -> str:
    """Median of the rounds, and in brackets the least."""
    shapes = [shape.name for shape in SHAPES if any(shape.name in row for row in found.values())]
    lines = [f"{'CPU us per request: median (least)':<36}" + "".join(f"{name:>18}" for name in shapes)]
    for name, row in found.items():
        cells = (f"{statistics.median(row[shape]):.0f} ({min(row[shape]):.0f})" for shape in shapes)
        lines.append(f"{name:<36}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--pool", type=int, default=0, help="so many conversations in turn; 0: every one is new")
    parser.add_argument("--gap-ms", type=float, default=1.0, help="between a stream's events")
    parser.add_argument("--peers", type=Path, help="folder of sglang-router and vllm-router")
    parser.add_argument("--only", default="", help="routers whose name has this in it")
    parser.add_argument("--shape", default="", help="shapes whose name has this in it")
    asked = parser.parse_args()
    which = f"{asked.pool} conversations in turn" if asked.pool else "every conversation new"
    print(f"load average {os.getloadavg()[0]:.1f}; {asked.connections} connections, {asked.rounds} rounds, {which}")
    print(table(asyncio.run(measure(asked))))


if __name__ == "__main__":
    main()
