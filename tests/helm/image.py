"""The install steps of the cpu image in a folder, by a process beside the other tests: they take a core some minutes.

Keeps true: the process yields to the tests (it is nice), and neither it nor its folder outlives the session. Does not
know what must be true of the environment it makes (test_dockerfile.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import tools
from .dockerfile import clean_environment, perform, read

LIMIT_S = 1500
NICE = 10


@dataclass
class Install:
    """A run of the steps; `root` stands for the image's `/`."""

    folder: Path
    process: subprocess.Popen[str]

    @classmethod
    def begin(cls) -> Install:
        """Starts it, in a process group of its own."""
        folder = Path(tempfile.mkdtemp(prefix="trieway-image-"))
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.helm.image", folder],
                cwd=tools.ROOT, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        return cls(folder, process)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def finished(self) -> str:
        """Waits for its end; what it said, empty if all went well."""
        code = self.process.wait(LIMIT_S)
        return (self.folder / "log").read_text() or f"exit code {code}" if code else ""

    def end(self) -> None:
        """Ends it if it still runs, and takes its folder away."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def install(folder: Path) -> None:
    """Performs the steps of the stages `wheel` and `cpu-environment`. Raises CalledProcessError."""
    # A venv stands in for the base image's Python.
    subprocess.run([sys.executable, "-m", "venv", folder / "base"], check=True, timeout=300)
    environ = clean_environment(f"{folder}/base/bin:/usr/local/bin:/usr/bin:/bin")
    # The packages come from where this machine takes its own.
    environ["PIP_EXTRA_INDEX_URL"] = environ.get("PIP_EXTRA_INDEX_URL", "")
    environ["TORCH_CPU_WHEELS"] = environ["PIP_EXTRA_INDEX_URL"]
    stages = read(tools.ROOT / "Dockerfile")
    for stage in ("wheel", "cpu-environment"):
        perform(stages, stage, tools.ROOT, folder / "root", environ)


if __name__ == "__main__":
    os.nice(NICE)
    try:
        install(Path(sys.argv[1]))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stdout}\n{error.stderr}")
