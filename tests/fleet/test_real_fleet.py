"""`trieway up` with the real model: two workers, the commands that look at them, a death and a clean end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from trieway.fleet.ports import any_free

pytestmark = [pytest.mark.fleet, pytest.mark.model, pytest.mark.timeout(240)]

READY = re.compile(r"^trieway ready on (http://127\.0\.0\.1:\d+) \(router pid (\d+), workers (\d+) (\d+)\)$", re.M)
PATIENCE_S = 120.0


class Fleet:
    """A running `trieway up`, its output in a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as out:
            command = [sys.executable, "-m", "trieway", "up", "--port", str(any_free("127.0.0.1")), *arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, pattern: re.Pattern[str] | str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.text())) is None:
            assert time.monotonic() < deadline, f"no {pattern} in:\n{self.text()[-3000:]}"
            assert self.process.poll() is None, f"ended:\n{self.text()[-3000:]}"
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def running(log: Path, *arguments: str) -> Iterator[Fleet]:
    fleet = Fleet(log, *arguments)
    try:
        yield fleet
    finally:
        fleet.process.kill()
        fleet.process.wait()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def trieway(*arguments: str) -> str:
    command = [sys.executable, "-m", "trieway", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_fleet_serves_heals_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "log", "--kv-tokens", "8192") as fleet:
        url, *numbers = fleet.until(READY).groups()
        pids = [int(number) for number in numbers]

        demo = trieway("demo", url, "--prefix-tokens", "300").splitlines()
        cold, warm = (re.split(r" {2,}", line) for line in demo[2:4])
        assert int(cold[2]) < 64, "a new prefix is cold"
        assert int(warm[2]) >= 284, "the second client reuses the first one's prefix"
        assert cold[5] == warm[5], "and so goes to the same worker"
        assert demo[-1].endswith("The chat stayed on one worker.")

        assert warm[5] in trieway("tree", url, "--depth", "3")
        assert "goes to" in trieway("explain", url, "What is a trie?")

        os.kill(pids[1], signal.SIGKILL)
        fleet.until(r"worker-0 died \(killed by SIGKILL\); restarting")
        body = {"model": "smollm2-135m", "prompt": "Hello", "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
        fleet.until(r"(?s)worker-0 died.*worker-0 ready after")

        fleet.process.send_signal(signal.SIGINT)
        assert fleet.process.wait(60) == 0
        assert not any(map(is_running, pids))
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/livez")


def test_a_child_that_cannot_be_configured_ends_the_fleet_with_one_line(tmp_path: Path) -> None:
    with running(tmp_path / "log", "--host", "0.0.0.0", "--workers", "1") as fleet:
        assert fleet.process.wait(PATIENCE_S) == 1
        last = fleet.text().splitlines()[-1]
        assert last.startswith("trieway: error: router cannot start: host 0.0.0.0 is beyond loopback")
        assert "Traceback" not in fleet.text()
