"""Tells at the end what the chart's checks could not check; skips where a tool cannot be had."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import tools
from .chart import HELMS, of_kind, rendered, value_set
from .fake_api import fake_api
from .fleet import Fleet, start_fleet
from .image import Install
from .outside import Running, write_keys

INSTALL = pytest.StashKey[Install | None]()
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
def kubectl() -> Path:
    return _or_skip(tools.kubectl)


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
    from kubernetes_validate import utils

    # It reads a release's whole API, megabytes of it, anew for each object.
    utils.schema_contents = functools.cache(utils.schema_contents)


@pytest.fixture(scope="session")
def fleet(helms: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The release of the value set `minimal`, started once."""
    folder = tmp_path_factory.mktemp("release")
    manifests = rendered(HELMS[-1], value_set("minimal"))
    (secret,) = of_kind(manifests, "Secret")
    write_keys(secret, folder / "keys")
    started: list[Running] = []
    with fake_api() as api:
        try:
            yield start_fleet(manifests, folder, api, started)
        finally:
            for one in started:
                one.close()


def _or_skip(get: Callable[[], Path]) -> Path:
    try:
        return get()
    except tools.ToolMissing as error:
        pytest.skip(str(error))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for the image's install comes last: until then the install has run beside the others."""
    items.sort(key=_waits_for_the_image)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begins the install if something of this run needs it."""
    if any(map(_waits_for_the_image, session.items)) and not session.config.option.collectonly:
        missing = [name for name in ("c++", "g++", "clang++") if shutil.which(name)] == []
        session.config.stash[INSTALL] = None if missing else Install.begin()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing of it outlives the tests."""
    install = session.config.stash.get(INSTALL, None)
    if install is not None:
        install.end()


@pytest.fixture(scope="session")
def image_install(pytestconfig: pytest.Config) -> Install:
    """The install of the cpu image, begun when the tests began."""
    install = pytestconfig.stash.get(INSTALL, None)
    if install is None:
        UNCHECKED.add("images: the install steps were not run: no C++ compiler, which the Dockerfile's build base has")
        pytest.skip("the image's wheel needs a C++ compiler: apt-get install g++")
    return install


def _waits_for_the_image(item: pytest.Item) -> bool:
    return "image_install" in getattr(item, "fixturenames", ())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was not checked, and why."""
    for report in terminalreporter.stats.get("skipped", ()):
        # a module that skips itself as a whole reports without keywords
        if "helm" in getattr(report, "keywords", ()) and isinstance(report.longrepr, tuple):
            UNCHECKED.add(f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}")
    if UNCHECKED:
        terminalreporter.section("the chart: what was checked otherwise, or not at all")
        for line in sorted(UNCHECKED):
            terminalreporter.line(line)
