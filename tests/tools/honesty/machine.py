"""How much of this machine others used while we measured: Linux's /proc, counted before and after.

Keeps true: whatever this process and its descendants use is ours, ended ones included; everything else, and time that a
hypervisor took away, is foreign. Elsewhere than on Linux nothing is known, and said to be 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


class Watch:
    """Since it was made."""

    def __init__(self, proc: Path = PROC, pid: int | None = None) -> None:
        self._proc = proc
        self._pid = os.getpid() if pid is None else pid
        self._before = self._now()

    def foreign(self) -> float:
        """Share of all cores together, 0 to 1."""
        now = self._now()
        if now is None or self._before is None:
            return 0.0
        whole, busy, ours = (after - before for after, before in zip(now, self._before, strict=True))
        return min(max((busy - ours) / whole, 0.0), 1.0) if whole else 0.0

    def _now(self) -> tuple[int, int, int] | None:
        """Ticks of all cores, of those busy, of ours."""
        try:
            fields = (self._proc / "stat").read_text().splitlines()[0].split()[1:9]
        except OSError:
            return None
        user, nice, system, idle, waiting, irq, softirq, steal = map(int, fields)
        busy = user + nice + system + irq + softirq + steal
        return busy + idle + waiting, busy, self._ours()

    def _ours(self) -> int:
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for pid, parent, used in self._processes():
            parents[pid], ticks[pid] = parent, used
        return sum(used for pid, used in ticks.items() if self._descends(pid, parents))

    def _descends(self, pid: int, parents: dict[int, int]) -> bool:
        while pid > 1:
            if pid == self._pid:
                return True
            pid = parents.get(pid, 0)
        return False

    def _processes(self) -> Iterable[tuple[int, int, int]]:
        """(pid, parent, ticks of it and of its ended children)."""
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                # The name, in brackets, may hold anything.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15]))
