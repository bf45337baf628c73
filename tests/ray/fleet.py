"""The fleet under test: brought to a state by jobs, looked at with `trieway ray status` and through its routers."""

from __future__ import annotations

import json
import shlex
import subprocess
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from tests.ray.cluster import NODES, Cluster, free_port, until
from tests.ray.load import MODEL

LABEL = "disk=fast"
"""Of the first node."""
LOST, KEPT = NODES
"""The first node is killed at the end."""
JOB_TIMEOUT_S = 200.0


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def complete(server: str, prompt: str = "Hello") -> dict[str, Any]:
    """A short completion; HTTPError where it is refused."""
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 4}).encode()
    request = urllib.request.Request(server + "/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def cached_tokens(answer: dict[str, Any]) -> int:
    """How many of the prompt's tokens were reused."""
    found = answer["usage"].get("prompt_tokens_details") or {}
    return int(found.get("cached_tokens") or 0)


class Fleet:
    """`wheel` is what jobs ship."""

    def __init__(self, cluster: Cluster, wheel: Path) -> None:
        self.cluster = cluster
        self.wheel = wheel
        self.port = free_port()
        self.routers = [f"http://{node}:{self.port}" for node in NODES]
        self.settings = [
            *("ray", "up", "--port", str(self.port), "--worker-gpus", "1", "--kv-tokens", "4096"),
            *("--ready-timeout-s", "150", "--drain-timeout-s", "90"),
        ]
        self._jobs: Any = None

    def submit(self, *arguments: str) -> str:
        """`ray job submit -- python -m trieway ...`, as a user types it. What it printed."""
        command = [
            *(self.cluster.python, "-m", "ray.scripts.scripts", "job", "submit", "--address", self.cluster.jobs),
            *("--runtime-env-json", json.dumps(self._environment())),
            *("--", self.cluster.python, "-m", "trieway", *arguments),
        ]
        done = subprocess.run(
            command,
            env=self.cluster.environment(),
            cwd=self.cluster.folder,
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout

    def job(self, *arguments: str, fails: bool = False) -> str:
        """The same by Ray's own client, which takes less time. What it printed."""
        if self._jobs is None:
            from ray.job_submission import JobSubmissionClient

            self._jobs = JobSubmissionClient(self.cluster.jobs)
        command = shlex.join([self.cluster.python, "-m", "trieway", *arguments])
        name = self._jobs.submit_job(entrypoint=command, runtime_env=self._environment())
        until(lambda: self._jobs.get_job_status(name).is_terminal(), JOB_TIMEOUT_S, f"the job ends: {command}")
        told: str = self._jobs.get_job_logs(name)
        assert (self._jobs.get_job_status(name) == "FAILED") is fails, told[-4000:]
        return told

    def _environment(self) -> dict[str, Any]:
        return {"py_modules": [str(self.wheel)]}

    def up(self, *more: str, labelled: bool = False) -> str:
        """`trieway ray up` with these settings; `labelled`: workers only where the label is."""
        return self.job(*self.settings, *(("--worker-labels", LABEL) if labelled else ()), *more)

    def told(self) -> dict[str, Any]:
        """`trieway ray status --json`."""
        done = self.cluster.trieway("ray", "status", "--json", timeout_s=60)
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def running(self) -> bool:
        """Whether Serve answers, and all it should run does."""
        done = self.cluster.trieway("ray", "status", "--json", timeout_s=60)
        return bool(done.stdout) and json.loads(done.stdout)["status"] == "RUNNING"

    def replicas(self, role: str) -> dict[str, dict[str, Any]]:
        """Those that are ready, by their names."""
        return {r["replica"]: r for r in self.told()["replicas"] if r["role"] == role and r["state"] == "ready"}

    def everyone(self) -> set[str]:
        """Names of all routers and workers that are ready."""
        return {r["replica"] for r in self.told()["replicas"] if r["state"] == "ready"}

    def serves(self, workers: int) -> bool:
        """Every router knows exactly so many workers, all up."""
        try:
            rows = [get(router + "/readyz") for router in self.routers]
        except OSError:
            return False
        return all(row["up"] == row["workers"] == workers for row in rows)

    def workers(self) -> list[str]:
        """URLs of the workers, as a router names them."""
        return sorted(one["url"] for one in get(self.routers[0] + "/workers")["workers"])

    def spread(self) -> int:
        """Two workers, or more until each node has one: where one comes up is Ray's choice. How many there are."""
        self.bring_to(2)
        count = 2
        while {one["node"] for one in self.replicas("worker").values()} != set(NODES):
            count += 1
            self.up("--workers", str(count))
            until(partial(self.serves, count), 60, f"{count} workers serve")
        return count

    def bring_to(self, workers: int) -> None:
        """Two routers and so many workers, on any node, unless it is so."""
        if not self.serves(workers) or self.told()["deployments"][f"worker-{MODEL}"]["labels"]:
            self.up("--workers", str(workers))
            until(lambda: self.serves(workers), 60, f"{workers} workers serve")
