"""One router takes over another's port while requests run, as upgrades on Ray do; and the child that serves there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from tests.router.fakes import FakeWorker
from tests.router.harness import in_loop, until
from trieway.serving.ray_child import READY, Child, ChildFailed

pytestmark = pytest.mark.fleet
ROUTER = ("router", "--reuse-port", "--own-port", "--ready-wait-s", "20", "--drain-timeout-s", "10")


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def ready(child: Child) -> None:
    await asyncio.to_thread(child.wait_ready, 60.0)


async def gone(child: Child) -> None:
    assert await asyncio.to_thread(child.wait_gone, 30.0)


@in_loop
async def test_the_newcomer_knows_the_workers_before_it_listens_and_no_request_fails() -> None:
    worker = await FakeWorker().start()
    command = [*ROUTER, "--port", str(free_port()), "--worker", worker.url]
    old = Child(command)
    new = None
    answers: list[int] = []
    breaks = 0
    running = True

    async def client(http: aiohttp.ClientSession) -> None:
        nonlocal breaks
        while running:
            try:
                async with http.post(
                    old.url + "/v1/completions", json={"model": worker.model, "prompt": "hi"}
                ) as answer:
                    await answer.read()
                    answers.append(answer.status)
            except aiohttp.ClientConnectionError:
                breaks += 1
            await asyncio.sleep(0.01)

    try:
        await ready(old)
        assert old.own_url != old.url
        async with aiohttp.ClientSession() as http:
            clients = [asyncio.ensure_future(client(http)) for _ in range(4)]
            await until(lambda: len(answers) > 20)
            new = Child(command)
            await ready(new)
            assert new.url == old.url
            assert new.own_url != old.own_url
            async with http.get(new.own_url + "/readyz") as answer:
                assert (await answer.json())["up"] == 1, "it listens only when it knows its workers"
            old.ask_to_leave()
            await gone(old)
            seen = len(answers)
            await until(lambda: len(answers) > seen + 20)
            running = False
            await asyncio.gather(*clients)
        assert set(answers) == {200}
        assert breaks <= 4, "at most the idle connections of the old one"
    finally:
        running = False
        for child in (old, new):
            if child is not None:
                child.kill()
                await gone(child)
        await worker.kill()


def test_a_child_that_cannot_serve_says_why() -> None:
    ended: list[int] = []
    child = Child(["router", "--no-such-flag"], ended=ended.append)
    with pytest.raises(ChildFailed, match="no-such-flag"):
        child.wait_ready(30)
    assert child.wait_gone(10)
    assert ended == [2]
    child.ask_to_leave()
    child.kill()


def test_a_child_dies_with_the_process_that_started_it() -> None:
    program = (
        "import sys, time; from trieway.serving.ray_child import Child\n"
        "child = Child(['router', '--port', '0', '--worker', 'http://127.0.0.1:9'])\n"
        "child.wait_ready(60); print('child', child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as lines:
        pid = int(next(line for line in lines if line.startswith("child ")).split()[1])
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/exe").exists():
        assert time.monotonic() < end, "it lives on"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("line", "url", "own"),
    [
        ("trieway worker ready on http://127.0.0.1:8100", "http://127.0.0.1:8100", None),
        ("trieway router ready on http://[::1]:8000 (own port http://[::1]:4)", "http://[::1]:8000", "http://[::1]:4"),
    ],
)
def test_the_ready_line_is_read(line: str, url: str, own: str | None) -> None:
    found = READY.match(line)
    assert found is not None
    assert (found["url"], found["own"]) == (url, own)
