"""Folders of replicas: gone with them, swept where they were killed, never taken from one that lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trieway.serving.ray_scratch import Scratch

KILLED = """
import os, signal, sys
from pathlib import Path
from trieway.serving.ray_scratch import Scratch
scratch = Scratch("r-", Path(sys.argv[1]))
(scratch.folder / "workers").write_text("x")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_goes_with_its_owner(tmp_path: Path) -> None:
    mine = Scratch("r-", tmp_path)
    (mine.folder / "workers").write_text("http://a\n")
    assert mine.folder.parent == tmp_path
    mine.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_next_one_sweeps_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    lives = Scratch("r-", tmp_path)
    other = tmp_path / "r-being-made"
    other.mkdir()
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60, check=False)
    left = set(tmp_path.iterdir()) - {lives.folder, other}
    assert len(left) == 1, "the second swept what the first left"
    mine = Scratch("r-", tmp_path)
    assert set(tmp_path.iterdir()) == {lives.folder, other, mine.folder}
    assert (lives.folder / "lock").exists()
    lives.remove()
    mine.remove()
