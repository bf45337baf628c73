"""Simulations in several processes: in order, ended by an interrupt, and never outliving who asked for them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trieway.loadgen.errors import RunFailed
from trieway.loadgen.simulations.playing import Stop
from trieway.loadgen.simulations.pools import each


def slow_square(number: int) -> int:
    time.sleep(0.02 * (5 - number))
    return number * number


def forever(number: int) -> int:
    if number:
        time.sleep(600)
    return number


def dies(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_results_come_in_the_order_of_their_tasks() -> None:
    assert list(each(slow_square, range(5), 3, Stop())) == [0, 1, 4, 9, 16]
    assert list(each(slow_square, [], 3, Stop())) == []


def test_an_interrupt_ends_the_processes() -> None:
    stop, found = Stop(), []
    for result in each(forever, [0, 1, 2], 2, stop):
        found.append(result)
        stop.asked = True
    assert found == [0]
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_one_line() -> None:
    with pytest.raises(RunFailed, match="a simulating process died"):
        list(each(dies, [0], 1, Stop()))


@pytest.mark.parametrize(("number", "whole_group"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_an_interrupt_of_seeds_is_one_line_whoever_gets_it(number: signal.Signals, whole_group: bool) -> None:
    """A terminal and a supervisor signal all processes, `kill` only one."""
    process = subprocess.Popen(
        [sys.executable, "-c",
         "import sys; from trieway.loadgen.simulations import seeds; seeds.TELL_S = 0.0; "
         "from trieway.cli import main; sys.exit(main(['sim', 'seeds', '--seeds', '100000']))"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "of 100000 seeds, 0 failed" in process.stderr.readline()
    (os.killpg if whole_group else os.kill)(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith("trieway: error: interrupted after ")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel to end children")
def test_none_outlives_a_parent_that_is_killed() -> None:
    script = (
        "import multiprocessing; from tests.sim.test_pools import forever\n"
        "from trieway.loadgen.simulations.pools import each\n"
        "from trieway.loadgen.simulations.playing import Stop\n"
        "if __name__ == '__main__':\n"
        "    for _ in each(forever, [0, 1], 1, Stop()):\n"
        "        print(multiprocessing.active_children()[0].pid, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    until = time.monotonic() + 30
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < until, "it lives on"
        time.sleep(0.02)
