"""Short turns on the processor: asked of the kernel for one process alone, and no trouble where there are none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trieway.loadgen.client import turns

ASK = (
    "from trieway.loadgen.client.turns import take_short_turns, turn_ns, TURN_NS\n"
    "before = turn_ns(); took = take_short_turns(); print(took, turn_ns() in (TURN_NS, 0, before))"
)


def test_a_process_asks_for_short_turns_and_goes_on_either_way() -> None:
    """What the kernel makes of it depends on its version; it is the process' own alone."""
    before = turns.turn_ns()
    told = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout.split()
    assert told[1] == "True"
    if sys.platform == "linux" and before is not None:
        assert told[0] == "True"
    assert turns.turn_ns() == before


@pytest.mark.parametrize(("system", "machine"), [("darwin", "x86_64"), ("linux", "unknown")])
def test_elsewhere_nothing_is_asked(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.sys, "platform", system)
    monkeypatch.setattr(turns.platform, "machine", lambda: machine)
    assert not turns.take_short_turns()
    assert turns.turn_ns() is None
