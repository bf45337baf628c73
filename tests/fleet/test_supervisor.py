"""The supervisor with real processes: stand-in children that crash, refuse to die, and leave children of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.fleet

PATIENCE_S = 30.0
PAIR: dict[str, list[str]] = {"router": [], "worker-0": [], "worker-1": []}


def alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


class Fleet:
    """A supervisor in its own process, its events as JSON lines."""

    def __init__(self, folder: Path, children: dict[str, list[str]], before: Sequence[str] = ()) -> None:
        self.journal = folder / "journal"
        script = Path(__file__).with_name("standin_fleet.py")
        command = [*before, sys.executable, str(script), str(folder), json.dumps(children)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def events(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def until(self, kind: str, having: str = "") -> dict[str, Any]:
        for event in self.events():
            if event["kind"] == kind and having in json.dumps(event):
                return event
        raise AssertionError(f"the fleet ended without {kind} {having}")

    def starts(self, name: str) -> list[int]:
        lines = [line.split() for line in self.journal.read_text().splitlines()]
        return [int(pid) for what, who, pid in lines if what == "start" and who == name]

    def left(self) -> list[str]:
        return [line.split()[1] for line in self.journal.read_text().splitlines() if line.startswith("left")]

    def all_pids(self) -> list[int]:
        if not self.journal.exists():
            return []
        return [int(line.split()[2]) for line in self.journal.read_text().splitlines()]

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        rest = list(self.events())
        code = self.process.wait(PATIENCE_S)
        self.last = rest[-1] if rest else {}
        return code


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    started: list[Fleet] = []

    def start(children: dict[str, list[str]], before: Sequence[str] = ()) -> Fleet:
        started.append(Fleet(tmp_path, children, before))
        return started[-1]

    yield start
    for fleet in started:
        fleet.process.kill()
        fleet.process.wait()
        assert fleet.process.stdout is not None
        fleet.process.stdout.close()
        eventually(lambda fleet=fleet: not any(map(alive, fleet.all_pids())), "no process is left behind")


Launch = Callable[..., Fleet]


def test_ready_names_every_process_and_ctrl_c_leaves_none(launch: Launch) -> None:
    fleet = launch(PAIR)
    pids = fleet.until("ready")["pids"]
    assert list(pids) == ["router", "worker-0", "worker-1"]
    assert all(map(alive, pids.values()))
    assert fleet.stop() == 0
    assert fleet.left()[0] == "router", "the router drains before its workers leave"
    assert sorted(fleet.left()) == ["router", "worker-0", "worker-1"]
    assert not any(map(alive, pids.values()))


def test_children_are_in_process_groups_of_their_own(launch: Launch) -> None:
    fleet = launch(PAIR)
    pids = fleet.until("ready")["pids"]
    assert {os.getpgid(pid) for pid in pids.values()} == set(pids.values())
    assert fleet.stop(signal.SIGTERM) == 0


def test_a_closed_terminal_ends_the_fleet_unless_it_is_to_be_ignored(launch: Launch) -> None:
    # These tests may themselves run under nohup.
    code = "import os, sys; from signal import *; signal(SIGHUP, SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
    fleet = launch(PAIR, before=(sys.executable, "-c", code))
    fleet.until("ready")
    assert fleet.stop(signal.SIGHUP) == 0
    (fleet.journal).unlink()
    ignoring = launch(PAIR, before=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"))
    pids = ignoring.until("ready")["pids"]
    ignoring.process.send_signal(signal.SIGHUP)
    os.kill(pids["worker-1"], signal.SIGKILL)
    ignoring.until("say", "worker-1 ready")
    assert ignoring.stop() == 0


def test_a_killed_worker_comes_back_on_the_same_port(launch: Launch) -> None:
    fleet = launch(PAIR)
    port = fleet.until("log", "worker-1")["line"]
    pids = fleet.until("ready")["pids"]
    os.kill(pids["worker-1"], signal.SIGKILL)
    fleet.until("say", "worker-1 died (killed by SIGKILL)")
    assert fleet.until("log", "worker-1")["line"] == port
    fleet.until("say", "worker-1 ready")
    assert len(fleet.starts("worker-1")) == 2
    assert len(fleet.starts("worker-0")) == 1
    assert fleet.stop() == 0


def test_a_killed_router_comes_back(launch: Launch) -> None:
    fleet = launch(PAIR)
    os.kill(fleet.until("ready")["pids"]["router"], signal.SIGKILL)
    fleet.until("say", "router ready")
    assert len(fleet.starts("router")) == 2
    assert fleet.stop() == 0


def test_a_crash_loop_at_start_ends_with_one_reason(launch: Launch) -> None:
    fleet = launch({**PAIR, "worker-1": ["--die", "3"]})
    assert fleet.end() == 1
    assert fleet.last["failure"] == "worker-1 died 3 times in a row: exit code 3"
    assert len(fleet.starts("worker-1")) == 3


def test_a_child_that_says_why_is_not_tried_again(launch: Launch) -> None:
    fleet = launch({**PAIR, "worker-0": ["--die", "1", "--reason", "no model named 'nope'"]})
    assert fleet.end() == 1
    assert fleet.last["failure"] == "worker-0 cannot start: no model named 'nope'"
    assert len(fleet.starts("worker-0")) == 1


def test_a_child_deaf_to_sigterm_is_killed_after_its_drain(launch: Launch) -> None:
    fleet = launch({**PAIR, "worker-0": ["--deaf"], "router": ["--deaf"]})
    fleet.until("ready")
    assert fleet.stop() == 0
    assert fleet.left() == ["worker-1"]


def test_a_second_ctrl_c_waits_for_nothing(launch: Launch) -> None:
    fleet = launch({**PAIR, "router": ["--deaf"]})
    fleet.until("ready")
    fleet.process.send_signal(signal.SIGINT)
    fleet.until("say", "stopping")
    assert fleet.stop() == 0
    assert fleet.left() == []


def test_what_a_child_started_dies_with_it(launch: Launch) -> None:
    fleet = launch({**PAIR, "worker-0": ["--grandchild"]})
    pids = fleet.until("ready")["pids"]
    (grandchild,) = fleet.starts("worker-0-child")
    assert alive(grandchild)
    os.kill(pids["worker-0"], signal.SIGKILL)
    fleet.until("say", "worker-0 ready")
    assert not alive(grandchild)
    assert fleet.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_children_die_with_a_supervisor_that_is_killed(launch: Launch) -> None:
    fleet = launch(PAIR)
    pids = fleet.until("ready")["pids"]
    fleet.process.kill()
    eventually(lambda: not any(map(alive, pids.values())), "children of a killed supervisor die")


def test_a_command_that_cannot_be_run_is_one_reason(tmp_path: Path) -> None:
    from trieway.fleet.children import ChildProcess, ChildSpec
    from trieway.fleet.lifecycle import Role

    spec = ChildSpec(name="x", role=Role.WORKER, command=(str(tmp_path / "no"),), ready_url="http://127.0.0.1:9/")
    with pytest.raises(FileNotFoundError):
        ChildProcess(spec)
