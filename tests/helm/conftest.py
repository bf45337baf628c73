"""Tells at the end what the chart's checks could not check; skips where a tool cannot be had."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from . import tools

UNCHECKED: set[str] = set()
"""Lines that tests add to; printed at the end of the run."""


@pytest.fixture(scope="session", params=tools.HELM_WHEELS)
def helm(request: pytest.FixtureRequest) -> str:
    """Each Helm release."""
    return _or_skip(lambda: tools.helm(request.param)) and str(request.param)


@pytest.fixture(scope="session")
def helms() -> None:
    """All Helm releases are at hand."""
    for version in tools.HELM_WHEELS:
        _or_skip(lambda version=version: tools.helm(version))


@pytest.fixture(scope="session")
def promtool() -> Path:
    return _or_skip(lambda: tools.prometheus("promtool"))


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return _or_skip(tools.prometheus)


@pytest.fixture(scope="session")
def validators() -> None:
    """Makes kubernetes_validate and jsonschema importable, after everything that is installed."""
    folder = str(_or_skip(tools.validators))
    if folder not in sys.path:
        sys.path.append(folder)


def _or_skip(get: Callable[[], Path]) -> Path:
    try:
        return get()
    except tools.ToolMissing as error:
        pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if UNCHECKED:
        terminalreporter.section("the chart: what was checked otherwise, or not at all")
        for line in sorted(UNCHECKED):
            terminalreporter.line(line)
