"""Router and workers hold the same picture after thousands of mixed requests with evictions."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.verify.conftest import MODEL
from tests.verify.fleet import report, scaled, tree_of, up
from tests.verify.texts import prose, varied

pytestmark = [pytest.mark.model, pytest.mark.fleet, pytest.mark.timeout(1800)]


def mixed(rng: random.Random, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Chats over a few system prompts, completions, ids, salts, several answers, hints: what a busy day brings."""
    systems = [prose(rng, 60) for _ in range(4)]
    out: list[tuple[str, dict[str, Any]]] = []
    for index in range(count):
        kind = rng.random()
        more: dict[str, Any] = {"model": MODEL, "max_tokens": rng.randrange(1, 6), "seed": index}
        if rng.random() < 0.1:
            more["cache_salt"] = rng.choice(["a", "b"])
        if rng.random() < 0.05:
            more["n"] = 2
        if rng.random() < 0.3:
            more["stream"] = True
        if kind < 0.6:
            messages = [
                {"role": "system", "content": rng.choice(systems)},
                {"role": "user", "content": varied(rng, rng.randrange(5, 40))},
            ]
            out.append(("/v1/chat/completions", more | {"messages": messages}))
        elif kind < 0.9:
            out.append(("/v1/completions", more | {"prompt": varied(rng, rng.randrange(5, 60)) or "x"}))
        else:
            ids = [rng.randrange(20, 49_000) for _ in range(rng.randrange(5, 60))]
            out.append(("/v1/completions", more | {"prompt": ids}))
    return out


async def send_all(url: str, requests: list[tuple[str, dict[str, Any]]], hang_up: random.Random) -> dict[str, int]:
    gate = asyncio.Semaphore(8)
    ends: dict[str, int] = {}

    async def run(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
        async with gate:
            if hang_up.random() < 0.05:
                try:
                    await client.post(url + path, json=body, timeout=0.05)
                except httpx.TimeoutException:
                    pass
                how = "hung up"
            else:
                how = str((await client.post(url + path, json=body)).status_code)
        ends[how] = ends.get(how, 0) + 1

    async with httpx.AsyncClient(timeout=600) as client:
        await asyncio.gather(*(run(client, path, body) for path, body in requests))
    return ends


def test_digests_agree_after_mixed_requests_with_evictions(folder: Path) -> None:
    count = scaled(2000)
    requests = mixed(random.Random(23), count)
    with up(folder, "--kv-tokens", "3000") as fleet:
        ends = asyncio.run(send_all(fleet.url, requests, random.Random(5)))
        assert set(ends) <= {"200", "hung up"}, ends
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(1.1)  # One heartbeat: the digests are compared as it comes in.
            rows = tree_of(fleet.url)["workers"]
            if all(row["drift_blocks"] == 0 and row["lag_events"] == 0 for row in rows.values()):
                break
        evicted = 0
        for worker, row in rows.items():
            stats = httpx.get(f"{row['url']}/cache/stats", timeout=10).json()
            evicted += stats["evicted_tokens_total"]
            assert row["digest"] == stats["digest"], worker
            assert row["blocks"] == stats["announced_blocks"], worker
            assert row["drift_blocks"] == 0
            assert row["resyncs"] == 0, "no drift ever had to be mended"
            assert stats["kv_free"] + stats["kv_cached"] == stats["kv_total"], "nothing leaked"
        report(f"{count} mixed requests {ends}: {evicted} tokens evicted, digests equal, drift 0")
        assert evicted > 0
