"""A worker is killed under load: nothing that a client sees is silent, nothing of the dead stays, the living return."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.verify.conftest import MODEL
from tests.verify.fleet import report, scaled, tree_of, up, within, workers_of
from tests.verify.texts import prose

pytestmark = [pytest.mark.model, pytest.mark.fleet, pytest.mark.timeout(600)]


@dataclass
class Ended:
    """How one request ended, as the client saw it."""

    streamed: bool
    how: str
    worker: str


async def one(client: httpx.AsyncClient, url: str, index: int, rng: random.Random) -> Ended:
    streamed = index % 2 == 0
    messages = [{"role": "system", "content": "Shared. " * 40}, {"role": "user", "content": prose(rng, 30)}]
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 12,
        "ignore_eos": True,
        "stream": streamed,
    }
    if not streamed:
        answer = await client.post(f"{url}/v1/chat/completions", json=body)
        good = answer.status_code == 200 and answer.json()["choices"][0]["finish_reason"] == "length"
        return Ended(
            streamed, "whole" if good else f"failed: {answer.text}", answer.headers.get("x-trieway-worker", "")
        )
    done = errors = finished = 0
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            return Ended(streamed, f"failed: {(await answer.aread()).decode()}", "")
        try:
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    done += 1
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    errors += "error" in event
                    finished += any(choice.get("finish_reason") for choice in event.get("choices", ()))
        except httpx.HTTPError as error:
            return Ended(streamed, f"silent: {error!r}", "")
        worker = answer.headers["x-trieway-worker"]
    if errors:
        return Ended(streamed, "error event", worker)
    return Ended(streamed, "whole" if done and finished else "silent: no finish and no error event", worker)


async def load(url: str, requests: int, kill_at: int, kill: Any) -> tuple[list[Ended], float]:
    rng = random.Random(17)
    gate = asyncio.Semaphore(16)
    ended: list[Ended] = []
    killed = asyncio.Event()

    async def run(index: int, client: httpx.AsyncClient) -> None:
        async with gate:
            if index == kill_at:
                kill()
                killed.set()
            ended.append(await one(client, url, index, rng))

    limits = httpx.Limits(max_connections=32)
    async with httpx.AsyncClient(timeout=300, limits=limits) as client:
        watch = asyncio.create_task(watch_tree(client, url, killed))
        await asyncio.gather(*(run(index, client) for index in range(requests)))
        gone_s = await watch
    return ended, gone_s


async def watch_tree(client: httpx.AsyncClient, url: str, killed: asyncio.Event) -> float:
    """Seconds from the kill until `/tree` shows a worker with no blocks."""
    await killed.wait()
    began = time.monotonic()
    while time.monotonic() - began < 30:
        tree = (await client.get(f"{url}/tree")).json()
        if any(row["blocks"] == 0 for row in tree["workers"].values()):
            return time.monotonic() - began
        await asyncio.sleep(0.02)
    raise AssertionError("the dead worker's prefixes stayed in /tree")


def test_a_worker_dies_under_load(folder: Path) -> None:
    requests = scaled(200, least=60)
    with up(folder) as fleet:
        for salt in range(8):  # Both workers hold something before the kill.
            warm = {"model": MODEL, "prompt": prose(random.Random(salt), 60), "max_tokens": 1}
            assert httpx.post(f"{fleet.url}/v1/completions", json=warm, timeout=60).status_code == 200
        before = workers_of(fleet.url)
        assert all(row["blocks"] > 0 for row in tree_of(fleet.url)["workers"].values())
        victim = before[0]
        pid = worker_pid(str(victim["url"]))
        ended, gone_s = asyncio.run(load(fleet.url, requests, requests // 3, lambda: os.kill(pid, signal.SIGKILL)))

        kinds = {
            kind: sum(e.how.startswith(kind) for e in ended) for kind in ("whole", "error event", "failed", "silent")
        }
        report(f"{requests} requests, one worker killed: {kinds}; its prefixes left /tree after {gone_s:.2f} s")
        assert [e.how for e in ended if e.how.startswith(("failed", "silent"))] == []
        assert all(e.how == "whole" for e in ended if not e.streamed)
        assert within(gone_s, 1.0)

        back_s = wait_for_traffic(fleet.url, str(victim["id"]), fleet.log)
        report(f"the restarted worker took traffic {back_s:.2f} s after it was ready")
        assert within(back_s, 5.0)
        rows = {str(row["id"]): row for row in workers_of(fleet.url)}
        assert all(row["booked"] == 0 for row in rows.values()), rows


def worker_pid(url: str) -> int:
    return int(httpx.get(f"{url}/cache/stats", timeout=10).json()["pid"])


def wait_for_traffic(url: str, worker: str, log: Path) -> float:
    """Seconds between the restarted worker's own readiness and the first request that it serves."""
    rng = random.Random(3)
    ready = 0.0
    began = time.monotonic()
    worker_url = next(str(row["url"]) for row in workers_of(url) if str(row["id"]) == worker)
    while time.monotonic() - began < 120:
        if not ready:
            try:
                if httpx.get(f"{worker_url}/readyz", timeout=2).status_code == 200:
                    ready = time.monotonic()
            except httpx.HTTPError:
                pass
        if not ready:
            time.sleep(0.05)
            continue
        body = {"model": MODEL, "prompt": prose(rng, 30), "max_tokens": 1}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        if answer.headers["x-trieway-worker"] == worker:
            return time.monotonic() - ready
    raise AssertionError(f"the worker never came back:\n{log.read_text()[-3000:]}")
