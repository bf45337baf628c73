"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Worker, running


@pytest.fixture(scope="session")
def _shared() -> Iterator[Worker]:
    with running() as one:
        yield one


@pytest.fixture
def worker(_shared: Worker) -> Iterator[Worker]:
    """A tiny worker with an empty cache, shared by the tests (starting one takes 0.3 s). Its sums are proved after
    each."""
    flushed = _shared.client.post("/cache/flush")
    assert flushed.status_code == 200
    assert _shared.stats().kv_cached == 0
    yield _shared
    _shared.runner.gate.set()
    _shared.wait_idle()
    _shared.check()
