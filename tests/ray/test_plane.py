"""What Ray Serve adds to a request: the router's CPU and its replica's, against the same router started by hand."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ray.cluster import NODES, free_port, until
from tests.ray.fleet import Fleet, get
from tests.ray.plane import MODEL, cost_us, drive, engine, idle_share, parent_of

TURNS, TURN_S, IDLE_S = 30, 1.2, 5.0
"""Many short turns: what else the machine does changes within seconds, and both of a pair meet the same."""
RATE_LEAST = 200.0
RATIO_MOST = 1.10


@pytest.mark.verify
def test_a_router_costs_no_more_under_serve(fleet: Fleet) -> None:
    """Pairs of turns in one run, idle CPU subtracted."""
    fleet.bring_to(1)
    (one,) = [each for each in fleet.replicas("router").values() if each["node"] == NODES[0]]
    with (
        engine() as url,
        plain_router([url, *fleet.workers()], fleet.cluster.python, modules_of(one["pid"])) as plain,
        joined(fleet.routers[0], url),
    ):
        routers = {"plain": plain[0], "serve": fleet.routers[0]}
        pids = {"plain": [plain[1]], "serve": [one["pid"], parent_of(one["pid"])]}
        for router in routers.values():
            until(functools.partial(knows, router), 30, "the stand-in is known")
            drive(router, 1.0)
        idle = {name: idle_share(pids[name], IDLE_S) for name in routers}
        found: dict[str, list[float]] = {"plain": [], "serve": []}
        rates: list[float] = []
        for turn in range(TURNS):
            for name in sorted(routers, reverse=bool(turn % 2)):
                micros, rate = cost_us(routers[name], pids[name], idle[name], TURN_S)
                found[name].append(micros)
                rates.append(rate)
    pairs = [serve / plain for serve, plain in zip(found["serve"], found["plain"], strict=True)]
    ratio = statistics.median(pairs)
    told = {name: f"{statistics.median(values):.0f} (least {min(values):.0f})" for name, values in found.items()}
    print(
        f"\n[figure] router CPU us per request {told}, idle {idle['plain']:.1%} and {idle['serve']:.1%} of a core,"
        f" at {min(rates):.0f}/s or more; under Serve x{ratio:.3f}, the median of {TURNS} pairs"
        f" (quartiles {', '.join(f'{one:.2f}' for one in statistics.quantiles(pairs, n=4))})"
    )
    assert min(rates) >= RATE_LEAST
    assert ratio <= RATIO_MOST


def modules_of(pid: int) -> str:
    """PYTHONPATH of a process: where its wheel was unpacked. The wheel has no native part, which the checkout may."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next(line for line in environment if line.startswith("PYTHONPATH=")).removeprefix("PYTHONPATH=")


@contextmanager
def plain_router(workers: list[str], python: str, modules: str) -> Iterator[tuple[str, int]]:
    """URL and process id of a router without Ray: the same interpreter and the same code."""
    port = free_port()
    command = [python, "-m", "trieway", "router", "--port", str(port)]
    process = subprocess.Popen(
        [*command, *(word for worker in workers for word in ("--worker", worker))],
        cwd="/", env={**os.environ, "PYTHONPATH": modules}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def joined(router: str, worker: str) -> Iterator[None]:
    """The worker is one of this router's."""
    call(f"{router}/workers", "POST", {"url": worker})
    try:
        yield
    finally:
        call(f"{router}/workers/{worker.removeprefix('http://')}", "DELETE")


def call(url: str, method: str, body: dict[str, Any] | None = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=10):
        pass


def knows(router: str) -> bool:
    try:
        return any(each["id"] == MODEL for each in get(router + "/v1/models")["data"])
    except OSError:
        return False
