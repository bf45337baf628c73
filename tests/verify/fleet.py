"""Real processes for the verification tests: started by `trieway ...`, watched by their output, stopped by pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

SCALE = float(os.environ.get("TRIEWAY_SCALE", "0.1"))
"""1 gives the full figures (`make verify`); `make test` runs a tenth."""


def within(measured_s: float, bound_s: float) -> bool:
    """Whether a wall time keeps its bound. On a crowded machine it says nothing, so only `make verify` judges it."""
    return SCALE < 1 or measured_s < bound_s


def scaled(count: int, least: int = 1) -> int:
    return max(least, round(count * SCALE))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


FIGURES: list[str] = []
"""What the tests measured; conftest.py prints it at the end of the run."""


def report(line: str) -> None:
    FIGURES.append(line)


@dataclass
class Running:
    """One `trieway` command that serves."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    started_s: float
    ready_s: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    def wait_ready(self, mark: str, limit_s: float = 180) -> None:
        while time.monotonic() - self.started_s < limit_s:
            text = self.log.read_text(errors="replace")
            if mark in text:
                self.ready_s = time.monotonic() - self.started_s
                return
            assert self.process.poll() is None, f"ended before it was ready:\n{text[-3000:]}"
            time.sleep(0.05)
        raise AssertionError(f"not ready in {limit_s} s:\n{self.log.read_text(errors='replace')[-3000:]}")

    def stop(self, how: int = signal.SIGINT, limit_s: float = 30) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop in {limit_s} s:\n{self.log.read_text()[-3000:]}") from None


def start(log: Path, url: str, arguments: Sequence[str]) -> Running:
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "trieway", *arguments],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    return Running(process=process, url=url, log=log, started_s=time.monotonic())


@contextmanager
def up(folder: Path, *arguments: str, workers: int = 2) -> Iterator[Running]:
    """`trieway up` on free ports with the packaged model."""
    port = free_port()
    running = start(
        folder / "up.log",
        f"http://127.0.0.1:{port}",
        ["up", "--workers", str(workers), "--port", str(port), *arguments],
    )
    try:
        running.wait_ready("trieway ready on")
        yield running
    finally:
        code = running.stop()
    assert code in (0, 130), f"exit code {code}:\n{running.log.read_text()[-3000:]}"


def workers_of(url: str) -> list[dict[str, Any]]:
    body = httpx.get(f"{url}/workers", timeout=10).raise_for_status().json()
    rows = body["workers"] if isinstance(body, dict) else body
    return list(rows)


def tree_of(url: str) -> dict[str, Any]:
    body: dict[str, Any] = httpx.get(f"{url}/tree", timeout=10).raise_for_status().json()
    return body


def children(pid: int) -> set[int]:
    """Every descendant of a process, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found
