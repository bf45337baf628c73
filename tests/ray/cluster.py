"""A Ray cluster on loopback: a head without CPUs, nodes with fake GPUs, a Redis behind the head where wanted.

Everything it starts, it ends by process id: its own folder names its processes, and `ray stop` (which would end every
cluster of the machine) is never called.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HEAD, NODES = "127.0.0.2", ("127.0.0.3", "127.0.0.4")
STORE_BYTES = 80 * 1024 * 1024
START_TIMEOUT_S = 180.0

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_METRICS_COLLECTION": "0",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "120",
    "RAY_num_prestart_python_workers": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "PYTHONWARNINGS": "ignore",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], Any], limit_s: float, what: str, pause_s: float = 0.2) -> Any:
    """Waits for a state that other processes bring about; returns it."""
    end = time.monotonic() + limit_s
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(pause_s)


def processes_of(*marks: str) -> list[int]:
    """Processes whose command line, environment or open files name one of `marks`, but us and whoever started us.

    Files too: Ray's agents write their titles over their environment, and outlive the node that started them.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()):
            told = _told_of(entry)
            if any(mark.encode() in told for mark in marks):
                found.append(int(entry.name))
    return found


def _told_of(entry: Path) -> bytes:
    """What /proc tells of a process; nothing of one that has ended."""
    told = b""
    with contextlib.suppress(OSError):
        told += (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        told += os.readlink(os.fsencode(entry / "cwd")) + b"/\0"
        for file in os.listdir(entry / "fd"):
            with contextlib.suppress(OSError):
                told += os.readlink(os.fsencode(entry / "fd" / file)) + b"\0"
    return told


def end_all(*marks: str) -> None:
    """SIGKILL to every process of `marks`, until none is left."""

    def none_left() -> bool:
        left = processes_of(*marks)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return not left

    until(none_left, 60, f"processes of {marks} end")


class Redis:
    """A redis-server of our own."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TRIEWAY_TEST_MARK": mark},
        )

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Cluster:
    """`python`: the interpreter that Ray's processes use. `redis`: keep the head's state there."""

    def __init__(self, folder: Path, *, python: str = sys.executable, redis: Redis | None = None) -> None:
        self.folder = folder
        for node in (HEAD, *NODES):
            self.scratch(node).mkdir(parents=True)
        self.python = python
        self.redis = redis
        self.mark = f"trieway-test-{folder.name}"
        self.gcs_port = free_port()
        self.dashboard_port = free_port()
        self.address = f"{HEAD}:{self.gcs_port}"
        self.jobs = f"http://{HEAD}:{self.dashboard_port}"

    def environment(self, node: str | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TRIEWAY_"))}
        # `TRIEWAY_` names are settings, and unknown ones are refused: the mark has another beginning.
        found = {**kept, **ENVIRONMENT, "FLEET_TEST_MARK": self.mark, "RAY_ADDRESS": self.address}
        found["TMPDIR"] = str(self.scratch(node or HEAD))
        if cache := os.environ.get("TRIEWAY_CACHE_DIR"):
            found["TRIEWAY_CACHE_DIR"] = cache
        if node is not None:
            found["FLEET_TEST_NODE"] = f"{self.mark}-{node}-end"
        if self.redis is not None and node == HEAD:
            found["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{self.redis.port}"
        return found

    def start_head(self) -> None:
        self._start(
            HEAD,
            "--head",
            f"--port={self.gcs_port}",
            "--num-cpus=0",
            "--num-gpus=0",
            "--include-dashboard=true",
            f"--dashboard-host={HEAD}",
            f"--dashboard-port={self.dashboard_port}",
            f"--ray-client-server-port={free_port()}",
        )

    def start_node(self, node: str, *, cpus: int = 8, gpus: int = 4, labels: str = "") -> None:
        more = [f"--labels={labels}"] if labels else []
        self._start(node, f"--address={self.address}", f"--num-cpus={cpus}", f"--num-gpus={gpus}", *more)

    def _start(self, node: str, *flags: str) -> None:
        temp = self._temp(node)
        environment = self.environment(node)
        if node == HEAD:
            environment.pop("RAY_ADDRESS")
            # Ray takes the other nodes on this machine for a head that still runs.
            (temp / "ray_current_cluster").unlink(missing_ok=True)
        command = [
            *(self.python, "-m", "ray.scripts.scripts", "start", *flags),
            f"--node-ip-address={node}",
            f"--temp-dir={temp}",
            f"--object-store-memory={STORE_BYTES}",
            "--disable-usage-stats",
        ]
        done = subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=START_TIMEOUT_S
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def _temp(self, node: str) -> Path:
        return self.folder / ("h" if node == HEAD else "n" + node[-1])

    def scratch(self, node: str) -> Path:
        """Where the node's processes keep passing files."""
        return self.folder / "t" / node[-1]

    def kill_node(self, node: str) -> None:
        """SIGKILL to all that runs on the node."""
        end_all(f"{self.mark}-{node}-end", f"{self._temp(node)}/")

    def trieway(self, *arguments: str, timeout_s: float = 180.0) -> subprocess.CompletedProcess[str]:
        """Runs our command line against the cluster, from an environment that has it."""
        command = [sys.executable, "-m", "trieway", *arguments]
        return subprocess.run(
            command, env=self.environment(), cwd=self.folder, capture_output=True, text=True, timeout=timeout_s
        )

    def stop(self) -> None:
        end_all(self.mark, f"{self.folder}/")


@contextlib.contextmanager
def running(folder: Path, labels: Mapping[str, str], **options: Any) -> Iterator[Cluster]:
    """A cluster with a node at each of NODES, some with labels, ended whatever happens."""
    cluster = Cluster(folder, **options)
    try:
        cluster.start_head()
        with ThreadPoolExecutor() as both:
            started = [both.submit(cluster.start_node, node, labels=labels.get(node, "")) for node in NODES]
        for one in started:
            one.result()
        yield cluster
    finally:
        cluster.stop()
