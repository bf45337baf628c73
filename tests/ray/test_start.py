"""A fleet comes up by a job, where its labels and GPUs say, and the same settings again change nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ray.cluster import HEAD, NODES, Cluster
from tests.ray.fleet import LABEL, Fleet, complete
from tests.ray.load import MODEL


def test_a_job_brings_the_fleet_up_and_a_completion_is_served(fleet: Fleet) -> None:
    told = fleet.submit(*fleet.settings, "--workers", "1", "--worker-labels", LABEL)
    for router in fleet.routers:
        assert router in told
        assert complete(router)["usage"]["completion_tokens"] == 4
    (worker,) = fleet.replicas("worker").values()
    assert worker["node"] == NODES[0], "the label is that node's"
    environment = Path(f"/proc/{worker['pid']}/environ").read_bytes().decode().split("\0")
    gpus = next(line for line in environment if line.startswith("CUDA_VISIBLE_DEVICES="))
    assert gpus.removeprefix("CUDA_VISIBLE_DEVICES=") in {"0", "1", "2", "3"}, "a fake GPU was placed"
    path = next(line for line in environment if line.startswith("PYTHONPATH="))
    assert "py_modules" in path, "the code is the wheel's"
    assert {one["node"] for one in fleet.replicas("router").values()} == set(NODES), f"{HEAD} runs no replica"
    asks = fleet.told()["deployments"][f"worker-{MODEL}"]
    assert asks["asks"] == {"CPU": 1, "GPU": 1}
    assert asks["labels"] == {"disk": "fast"}


def test_the_same_again_changes_nothing(fleet: Fleet) -> None:
    before = fleet.everyone()
    fleet.up("--workers", "1", labelled=True)
    assert fleet.everyone() == before


def test_status_tells_a_person_and_a_program_the_same(cluster: Cluster, fleet: Fleet) -> None:
    done = cluster.trieway("ray", "status")
    assert done.returncode == 0, done.stderr
    assert all(router in done.stdout.splitlines()[-1] for router in fleet.routers)
    told = json.loads(cluster.trieway("ray", "status", "--json").stdout)
    assert [one["url"] for one in told["replicas"] if one["role"] == "worker"] == fleet.workers()
