"""A folder of one replica's process, which goes with it, even where the process was killed.

Keeps true: a folder is removed by its owner, or by the next process that makes one once nobody holds its lock; a folder
that is in use is never touched. Does not know what lies in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

SWEPT_MAX = 64
"""At most so many leftovers are looked at."""


class Scratch:
    """`folder` exists until `remove`, or until the process is gone and another one makes its own."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent if parent is not None else Path(tempfile.gettempdir())
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Named once it is held: until then the folder looks to others as one that is being made.
        made = self.folder / "lock.new"
        self._lock = os.open(made, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        made.rename(self.folder / "lock")
        for left in sorted(parent.glob(f"{prefix}*"))[:SWEPT_MAX]:
            if left != self.folder:
                _sweep(left)

    def remove(self) -> None:
        """Removes the folder with what is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _sweep(folder: Path) -> None:
    """Removes it unless somebody holds its lock, or it has none yet."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # being made this moment, somebody else's, or gone
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # in use
    finally:
        os.close(lock)
