"""SIGKILL to a replica, to the head and to a node, each under load: no request fails, and the fleet is whole again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ray.cluster import HEAD, Cluster, Redis, until
from tests.ray.fleet import KEPT, LOST, Fleet, get
from tests.ray.load import Load, under_load
from tests.ray.plane import parent_of


def runs(load: Load) -> None:
    """From here on requests are on their way."""
    done = load.tally.done
    until(lambda: load.tally.done > done + 5, 60, "requests go on")


def test_a_replica_killed_under_load_fails_no_request(fleet: Fleet) -> None:
    fleet.bring_to(2)
    victim, other = fleet.replicas("worker").values()
    with under_load(fleet.routers) as load:
        runs(load)
        # The replica's own process, not only its server: the server dies with it.
        os.kill(parent_of(victim["pid"]), signal.SIGKILL)
        until(lambda: victim["url"] not in serving(fleet), 30, "routers turn away from it")
        assert not Path(f"/proc/{victim['pid']}/exe").exists(), "its server outlived it"
        runs(load)
        until(lambda: fleet.serves(2), 90, "another takes its place")
    after = fleet.replicas("worker")
    assert len(after) == 2
    assert victim["replica"] not in after
    assert other["replica"] in after


def serving(fleet: Fleet) -> list[str]:
    """Workers that the first router sends requests to."""
    return [one["url"] for one in get(fleet.routers[0] + "/workers")["workers"] if one["state"] == "up"]


def test_the_head_killed_for_eight_seconds_is_not_noticed(fleet: Fleet, cluster: Cluster, redis: Redis | None) -> None:
    if redis is None:
        pytest.skip("redis-server is needed for a head that comes back: apt-get install redis-server")
    fleet.bring_to(2)
    before = fleet.everyone()
    with under_load(fleet.routers) as load:
        runs(load)
        cluster.kill_node(HEAD)
        killed = time.monotonic()
        assert cluster.trieway("ray", "status").returncode == 1, "the head is away"
        runs(load)
        time.sleep(max(0.0, killed + 8 - time.monotonic()))
        cluster.start_head()
        until(fleet.running, 90, "Serve is back", pause_s=1)
        runs(load)
    assert fleet.serves(2)
    assert fleet.everyone() == before, "the same replicas, not new ones"


def test_a_controller_that_is_gone_is_started_again_by_up(fleet: Fleet, cluster: Cluster) -> None:
    """As when it could not begin anew after the head came back: Ray does not try again."""
    fleet.bring_to(2)
    before = fleet.everyone()
    code = "import ray; ray.init(); ray.kill(ray.get_actor('SERVE_CONTROLLER_ACTOR', namespace='serve'))"
    subprocess.run([sys.executable, "-c", code], env=cluster.environment(), capture_output=True, check=True, timeout=60)
    until(lambda: "controller is gone" in cluster.trieway("ray", "status").stderr, 30, "it is missed", pause_s=1)
    assert fleet.serves(2)
    fleet.up("--workers", "2")
    assert fleet.running()
    assert fleet.everyone() == before, "it knows the replicas that served on"


def test_a_node_killed_under_load_fails_no_request(fleet: Fleet, cluster: Cluster) -> None:
    workers = fleet.spread()
    with under_load(fleet.routers) as load:
        runs(load)
        cluster.kill_node(LOST)
        runs(load)

        def healed() -> bool:
            row = get(f"http://{KEPT}:{fleet.port}/readyz")
            return bool(row["up"] == row["workers"] == workers)

        until(healed, 150, "what was lost is started on the node that is left")
    assert {one["node"] for one in fleet.replicas("worker").values()} == {KEPT}
