"""What has been measured so far, on disk: so that a long measurement can be made in parts.

Keeps true: what was measured under other settings is refused; a file is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from tests.tools.honesty.cases import CASES, SEED, WORKER_FLAGS
from tests.tools.honesty.runs import Run
from trieway.fleet.fitting import fit
from trieway.fleet.mixes import Mix, Work
from trieway.loadgen.errors import LoadError


def fingerprint() -> str:
    """Of everything that decides a run."""
    told = [SEED, list(WORKER_FLAGS), [[case.name, case.arrivals_text, dict(case.settings)] for case in CASES]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


class State:
    """A folder. LoadError: it holds measurements of other settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / "settings"
        if not mark.exists():
            mark.write_text(fingerprint())
        elif mark.read_text() != fingerprint():
            raise LoadError(f"{folder} holds measurements of other settings: name another folder or remove it")

    def calibrations(self, workers: int) -> list[dict[str, Any]]:
        """In the order in which they were made."""
        return [json.loads(path.read_text()) for path in sorted(self._folder.glob(f"{workers}-calibration-*.json"))]

    def add_calibration(self, workers: int, report: dict[str, Any]) -> None:
        """One more."""
        number = len(self.calibrations(workers))
        self._write(f"{workers}-calibration-{number}.json", json.dumps(report, indent=1).encode())

    def runs(self, workers: int, case: str) -> list[Run]:
        """In the order in which they were made."""
        paths = sorted(self._folder.glob(f"{workers}-{case}-*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=Run) for path in paths]

    def add_run(self, workers: int, case: str, run: Run) -> None:
        """One more."""
        self._write(f"{workers}-{case}-{len(self.runs(workers, case))}.json", msgspec.json.encode(run))

    def _write(self, name: str, data: bytes) -> None:
        torn = self._folder / f".{name}"
        torn.write_bytes(data)
        torn.replace(self._folder / name)


def pooled(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several calibrations of one fleet as one: fitted to the points of all."""
    assert reports, "nothing to pool"
    found: dict[str, Any] = dict(reports[0])
    found["latency_ms"] = fmean(report["latency_ms"] for report in reports)
    for side in ("alone", "together"):
        if found[side] is not None:
            points = [_work(point) for report in reports for point in report[side]["points"]]
            found[side] = asdict(fit(points))
    return found


def _work(point: Mapping[str, Any]) -> Work:
    told = dict(point)
    del told["fitted_seconds"]
    mix = Mix(**{one.name: told.pop(one.name) for one in fields(Mix)})
    return Work(mix=mix, **told)
