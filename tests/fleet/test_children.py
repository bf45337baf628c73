"""One child process: what it says is passed on, its reason is kept, its end is seen."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator

import pytest

from trieway.fleet.children import LINE_MAX_BYTES, ChildProcess, ChildSpec
from trieway.fleet.lifecycle import Role

pytestmark = pytest.mark.fleet


@pytest.fixture
def spawn() -> Iterator[object]:
    started: list[ChildProcess] = []

    def start(code: str, **environment: str) -> ChildProcess:
        command = (sys.executable, "-c", code)
        spec = ChildSpec(name="c", role=Role.WORKER, command=command, ready_url="", environment=environment)
        started.append(ChildProcess(spec))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.close_output()
        child.wait()


def all_lines(child: ChildProcess) -> list[str]:
    lines: list[str] = []
    while True:
        assert child.output_fd is not None
        ready, _, _ = select.select([child.output_fd], [], [], 20)
        assert ready, "the child says nothing"
        more = child.read_lines()
        if more is None:
            return lines + child.close_output()
        lines += more


def test_both_outputs_come_as_lines(spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn("import sys; print('one', flush=True); print('two', file=sys.stderr); print('three', end='')")
    assert all_lines(child) == ["one", "two", "three"]
    assert child.output_fd is None


def test_what_the_child_calls_an_error_is_its_reason(spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn("print('trieway: error: no such model; see `trieway models`'); print('bye')")
    all_lines(child)
    assert child.reason == "no such model; see `trieway models`"


def test_a_long_line_is_cut_and_the_next_is_whole(spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn(f"print('x' * {3 * LINE_MAX_BYTES}); print('next')")
    lines = all_lines(child)
    assert all(len(line) <= LINE_MAX_BYTES for line in lines)
    assert lines[-1] == "next"


def test_bytes_that_are_no_text_do_no_harm(spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn(r"import sys; sys.stdout.buffer.write(b'\xff\xfe ok\r\n')")
    assert all_lines(child) == ["\ufffd\ufffd ok"]


def test_the_environment_is_added_to_ours(spawn, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("FLEET_TEST_OURS", "1")
    child = spawn("import os; print(os.environ['FLEET_TEST_OURS'], os.environ['OMP_NUM_THREADS'])", OMP_NUM_THREADS="3")
    assert all_lines(child) == ["1 3"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system keeps no process on a core")
def test_a_pinned_child_keeps_to_its_core() -> None:
    last = max(os.sched_getaffinity(0))
    command = (sys.executable, "-c", "import os; print(os.sched_getaffinity(0))")
    child = ChildProcess(ChildSpec(name="c", role=Role.WORKER, command=command, ready_url="", core=last))
    assert all_lines(child) == [str({last})]
    assert child.wait() == 0


def test_the_end_is_seen_once_and_signals_stop_there(spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn("raise SystemExit(7)")
    all_lines(child)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.reap() == 7
    assert child.reap() == 7
    child.ask_to_leave()  # the id is no longer ours: nothing is signalled
    child.kill()


def test_a_live_child_is_not_reaped(spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn("import time; print('up', flush=True); time.sleep(600)")
    select.select([child.output_fd], [], [], 20)
    assert child.reap() is None
    child.ask_to_leave()
    assert child.wait() == -signal.SIGTERM
