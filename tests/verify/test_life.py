"""`trieway up` starts in time, says so, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.verify.conftest import MODEL
from tests.verify.fleet import children, free_port, report, start, within

pytestmark = [pytest.mark.model, pytest.mark.fleet]


def alive(pids: set[int]) -> set[int]:
    return {
        pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()
    }


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_up_serves_and_stops_clean(folder: Path, how: signal.Signals) -> None:
    port = free_port()
    running = start(folder / "up.log", f"http://127.0.0.1:{port}", ["up", "--port", str(port)])
    running.wait_ready("trieway ready on")
    family = children(running.process.pid)
    assert len(family) >= 3, "a router and two workers"
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=60).status_code == 200
    began = time.monotonic()
    code = running.stop(how)
    stopped_s = time.monotonic() - began
    report(f"up: ready after {running.ready_s:.1f} s, stopped by {how.name} in {stopped_s:.1f} s, exit code {code}")
    assert alive(family) == set()
    assert code in (0, 130)
    assert within(running.ready_s, 25)


def test_killing_the_supervisor_takes_its_children_along(folder: Path) -> None:
    port = free_port()
    running = start(folder / "up.log", f"http://127.0.0.1:{port}", ["up", "--workers", "1", "--port", str(port)])
    running.wait_ready("trieway ready on")
    family = children(running.process.pid)
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    limit = time.monotonic() + 10
    while alive(family) and time.monotonic() < limit:
        time.sleep(0.05)
    assert alive(family) == set()


def test_a_port_in_use_is_one_clear_line(folder: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = start(folder / "up.log", "", ["up", "--port", str(port)])
        assert running.process.wait(60) == 1
    text = running.log.read_text()
    assert str(port) in text
    assert "Traceback" not in text
