"""Fixtures that every suite shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Two cores are shared by everything: how long one example takes says nothing.
settings.register_profile("trieway", deadline=None)
settings.load_profile("trieway")


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The packaged SmolLM2-135M-Instruct as a model directory, converted once and kept in TRIEWAY_CACHE_DIR."""
    from trieway.worker.models.catalog import resolve

    return resolve("smollm2-135m")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what the verification tests measured."""
    from tests.verify.fleet import FIGURES

    if FIGURES:
        terminalreporter.section("figures")
        for line in FIGURES:
            terminalreporter.line(line)
