"""One real fleet for the tests that do not hurt it: two workers with SmolLM2 behind a router."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.verify.fleet import Running, up, workers_of

MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with up(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture
def router(fleet: Running) -> str:
    return fleet.url


@pytest.fixture
def worker(fleet: Running) -> str:
    return str(workers_of(fleet.url)[0]["url"])


@pytest.fixture(params=["router", "worker"])
def server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=120) as client:
        yield client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
