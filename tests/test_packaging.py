"""What a user installs: wheels built with and without a compiler, and a source archive that builds again."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
import trieway
from trieway.kernels import block_hash
from trieway.meta_tree import chain
import trieway.router, trieway.worker.core, trieway.serving
assert trieway.__file__.startswith(sys.argv[1]), trieway.__file__
print("native" if block_hash.NATIVE else "pure", block_hash.hash_chain(b"a" * 128, 1, 2))
"""


def build(source: Path, out: Path, *, pure: bool, environment: dict[str, str]) -> Path:
    env = environment | ({"TRIEWAY_PURE": "1"} if pure else {})
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out)),
            *("-C", f"build-dir={out}/build", str(source)),
        ],
        env=env, check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    return wheel


def probe(wheel: Path, into: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(into)
    assert "trieway/py.typed" in names
    assert not [name for name in names if "/tests/" in name or name.startswith(("router/", "worker/", "kernels/"))]
    # -S and -I keep the editable install of this checkout out of the way; the dependencies come by path.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    code = f"import sys; sys.path.append({site!r})\n" + PROBE
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(into)], capture_output=True, text=True, check=True, timeout=60
    )
    return run.stdout


@pytest.mark.timeout(600)
def test_wheels_with_and_without_a_compiler_hash_alike(tmp_path: Path) -> None:
    import os

    environment = dict(os.environ)
    native = probe(build(ROOT, tmp_path / "native", pure=False, environment=environment), tmp_path / "a")
    pure_wheel = build(ROOT, tmp_path / "pure", pure=True, environment=environment)
    assert pure_wheel.name.endswith("-none-any.whl")
    pure = probe(pure_wheel, tmp_path / "b")
    assert native.startswith("native")
    assert pure.startswith("pure")
    assert native.split(maxsplit=1)[1] == pure.split(maxsplit=1)[1]


@pytest.mark.timeout(600)
def test_the_source_archive_builds_again(tmp_path: Path) -> None:
    import os

    script = "from scikit_build_core.build import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=120
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    wheel = build(source, tmp_path / "out", pure=True, environment=dict(os.environ))
    assert probe(wheel, tmp_path / "c").startswith("pure")
