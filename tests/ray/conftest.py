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

from tests.ray.cluster import NODES, Cluster, Redis, end_all, running
from tests.ray.fleet import LABEL, Fleet
from tests.test_packaging import build

ROOT = Path(__file__).parents[2]


ORDER = ("test_usage", "test_start", "test_scaling", "test_load", "test_waiting", "test_plane", "test_upgrade")
"""Then the rest: faults, and `down` at the end. Each leaves a fleet that serves to the next one."""
LAST = ("test_faults", "test_down")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is for `make test-ray`, on one cluster and in one order."""
    mine = [item for item in items if Path(item.fspath).parent == Path(__file__).parent]
    for item in mine:
        item.add_marker(pytest.mark.ray)
        item.add_marker(pytest.mark.timeout(300))
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # Ray's own, in this process

    def turn(item: pytest.Item) -> int:
        name = Path(item.fspath).stem
        return (*ORDER, *LAST).index(name)

    places = [number for number, item in enumerate(items) if item in mine]
    for place, item in zip(places, sorted(mine, key=turn), strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Short: sockets of Ray lie in it. FLEET_TEST_KEEP=1 leaves it, with every log, to be read."""
    path = Path(tempfile.mkdtemp(prefix="tw-"))
    yield path
    if not os.environ.get("FLEET_TEST_KEEP"):
        shutil.rmtree(path)


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
def redis(folder: Path) -> Iterator[Redis | None]:
    """Where the head's state outlives the head; None: it is not installed."""
    if shutil.which("redis-server") is None:
        yield None
        return
    mark = f"trieway-redis-{folder.name}"
    server = Redis(folder, mark)
    try:
        yield server
    finally:
        server.stop()
        end_all(mark, f"{folder}/")


@pytest.fixture(scope="session")
def cluster(folder: Path, bare_python: str, redis: Redis | None) -> Iterator[Cluster]:
    """A head, on Redis where there is one, and two nodes with four fake GPUs each."""
    pytest.importorskip("ray", reason="the tests of the fleet on Ray need Ray: pip install 'ray[serve]'")
    with running(folder, {NODES[0]: LABEL}, python=bare_python, redis=redis) as found:
        yield found


@pytest.fixture(scope="session")
def fleet(cluster: Cluster, wheel: Path) -> Fleet:
    """Not up yet: each test brings it where it needs it."""
    return Fleet(cluster, wheel)
