"""`trieway ray down`: nothing of the fleet is left, and again is no error."""

from __future__ import annotations

import pytest

from tests.ray.cluster import HEAD, Cluster, processes_of, until
from tests.ray.fleet import KEPT, Fleet, complete


def test_down_leaves_nothing(fleet: Fleet, cluster: Cluster) -> None:
    done = cluster.trieway("ray", "down")
    assert (done.returncode, done.stdout) == (0, "fleet trieway is down\n"), done.stderr
    until(lambda: not servers(cluster), 10, "routers and workers end")
    with pytest.raises(OSError):
        complete(fleet.routers[1])
    # What a node held that was killed as a whole goes with the next process there.
    left = [file for node in (HEAD, KEPT) for file in cluster.scratch(node).glob("trieway-*")]
    assert left == [], "no file is left"
    told = cluster.trieway("ray", "status")
    assert told.returncode == 1
    assert "`trieway ray up` starts one" in told.stdout


def servers(cluster: Cluster) -> list[int]:
    """Processes of routers, workers and their replicas."""
    return [
        pid for pid in processes_of(cluster.mark) if any(word in command(pid) for word in ("ServeReplica", "trieway"))
    ]


def command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def test_down_again_is_no_error(cluster: Cluster) -> None:
    done = cluster.trieway("ray", "down")
    assert (done.returncode, done.stdout) == (0, "no fleet trieway ran on this cluster\n"), done.stderr
