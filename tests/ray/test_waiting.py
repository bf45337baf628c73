"""A fleet that cannot be placed says why, shares no port, and is ended at once; its neighbour does not notice."""

from __future__ import annotations

import time

from tests.ray.cluster import Cluster, free_port
from tests.ray.fleet import LABEL, Fleet


def test_a_fleet_that_finds_no_place_says_why_and_goes_at_once(cluster: Cluster, fleet: Fleet) -> None:
    before = fleet.everyone()
    port = free_port()
    spare = ("ray", "up", "--fleet", "spare", "--port", str(port), "--workers", "1")
    told = fleet.job(*spare, "--worker-gpus", "9", "--ready-timeout-s", "1", fails=True)
    assert "worker-smollm2-135m waits for a node: no node offers 9 GPU; the most is 4" in told

    fleet.job(*spare, "--worker-labels", "disk=slow", "--no-wait")
    done = cluster.trieway("ray", "status", "--fleet", "spare")
    assert "no node has the label disk=slow; disk is fast" in done.stdout, done.stderr
    assert done.returncode in (0, 1), "its routers may serve by now"

    began = time.monotonic()
    done = cluster.trieway("ray", "down", "--fleet", "spare")
    assert done.stdout == "fleet spare is down\n", done.stderr
    assert time.monotonic() - began < 60, "nothing waits for what never ran"
    assert cluster.trieway("ray", "status", "--fleet", "spare").returncode == 1
    assert fleet.everyone() == before


def test_two_fleets_share_no_port(cluster: Cluster, fleet: Fleet) -> None:
    done = cluster.trieway("ray", "up", "--fleet", "other", "--port", str(fleet.port), "--worker-labels", LABEL)
    assert done.returncode == 1
    assert done.stderr == f"trieway: error: port {fleet.port} is the fleet trieway's: choose another with --port\n"
