"""Both data planes: what is marked with `both_planes` runs once on each."""

from __future__ import annotations

import pytest

from tests.router import harness


@pytest.fixture(params=["protocol", "asgi"])
def both_planes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plane of every router that the test starts."""
    monkeypatch.setitem(harness.QUICK, "data_plane", request.param)
    return str(request.param)
