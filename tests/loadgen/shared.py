"""Where the shared trace files lie, if they do: TRIEWAY_TRACES, or a `shared/traces` folder beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def traces_dir() -> Path:
    """The folder. Skips the test where there is none."""
    folder = Path(os.environ.get("TRIEWAY_TRACES") or BESIDE)
    if not (folder / "REFERENCE.md").is_file():
        pytest.skip("no shared traces here: set TRIEWAY_TRACES")
    return folder
