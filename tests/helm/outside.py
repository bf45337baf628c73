"""The chart's own commands, started outside Kubernetes: what is rendered, less what only a pod has.

Keeps true: of a command's flags only address, port and paths of mounts change; processes are ended by their own pid.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

BIN = Path(sys.executable).parent
KEYS = "/etc/trieway/keys"


@dataclass
class Running:
    """One process of the chart."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    environ: Mapping[str, str] | None = None

    def wait_for(self, path: str, limit_s: float = 180.0) -> None:
        """Until GET `path` answers 200."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            assert self.process.poll() is None, self.text()[-3000:]
            try:
                if httpx.get(self.url + path, timeout=5.0).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"{path} is not ready in {limit_s} s: {self.text()[-3000:]}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def end(self, limit_s: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit_s)

    def restart(self) -> None:
        """Ended as a pod is, and started again at the same address."""
        assert self.end() == 0
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.process.args, stdout=out, stderr=subprocess.STDOUT, env=self.environ, cwd=self.log.parent
            )
        self.wait_for("/readyz")

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


def write_keys(secret: Mapping[str, Any], folder: Path) -> None:
    """The Secret's entries as the files of its mount."""
    folder.mkdir()
    for key, value in secret["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))


def moved(arguments: Sequence[str], *, host: str, port: int, paths: Mapping[str, str]) -> list[str]:
    """The arguments with another address, port, and places of mounts."""
    there = []
    for argument in arguments:
        flag, is_set, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if flag == "--host":
            value = host
        elif flag == "--port":
            value = str(port)
        for path, other in paths.items():
            value = other + value.removeprefix(path) if value.startswith(path) else value
        there.append(flag + is_set + value)
    return there


def start(container: Mapping[str, Any], arguments: Sequence[str], url: str, log: Path) -> Running:
    """The container's command with these arguments and its plain environment."""
    command, *flags = container["command"]
    environ = {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}
    environ |= {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [BIN / command, *flags, *arguments], stdout=out, stderr=subprocess.STDOUT, env=environ, cwd=log.parent
        )
    return Running(process, url, log, environ)


def model_cache() -> str:
    """Where converted models are kept on this machine, so that a test converts none again."""
    return os.environ.get("TRIEWAY_CACHE_DIR") or str(Path.home() / ".cache" / "trieway")
