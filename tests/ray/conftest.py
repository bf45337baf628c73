"""One cluster for all: starting it takes most of the time. Skips by name what is not at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.cluster import Cluster, Redis, end_all, running
from tests.test_packaging import build

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is for `make test-ray`, in the order it is written: each builds on the fleet before it."""
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Short: sockets of Ray lie in it."""
    path = Path(tempfile.mkdtemp(prefix="tw-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def wheel(folder: Path) -> Path:
    """What a user would ship: built without a compiler, since any node must take it."""
    return build(ROOT, folder / "wheel", pure=True, environment=dict(os.environ))


@pytest.fixture(scope="session")
def bare_python(folder: Path) -> str:
    """An interpreter with our dependencies and without us, as on a cluster that never heard of Trieway."""
    made = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=60)
    (packages,) = (made / "lib").glob("python*/site-packages")
    # Named as a plain path, so that an editable install's own hooks stay unread.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = made / "bin/python"
    probe = subprocess.run([str(python), "-c", "import trieway.cli"], cwd=folder, capture_output=True, text=True)
    if probe.returncode == 0:
        pytest.skip("trieway is installed in this environment other than as an editable one: a wheel would not be seen")
    return str(python)


@pytest.fixture(scope="session")
def cluster(folder: Path, bare_python: str) -> Iterator[Cluster]:
    """A head on Redis, two nodes with four fake GPUs each."""
    pytest.importorskip("ray", reason="the tests of the fleet on Ray need Ray: pip install 'ray[serve]'")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is needed for a head that is killed and comes back: apt-get install redis-server")
    mark = f"trieway-redis-{folder.name}"
    redis = Redis(folder, mark)
    try:
        with running(folder, python=bare_python, redis=redis) as found:
            yield found
    finally:
        redis.stop()
        end_all(mark)
