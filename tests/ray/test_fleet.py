"""The life of a fleet on Ray, told in one go: submitted, scaled, upgraded, hit by SIGKILL, and taken down.

Each test begins with the fleet as the one before left it: two workers, a router on each node.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.ray.cluster import HEAD, NODES, Cluster, free_port, until
from tests.ray.load import MODEL, Streams, under_load
from tests.ray.plane import MODEL as STAND_IN
from tests.ray.plane import cost_us, engine

PORT = free_port()
ROUTERS = [f"http://{node}:{PORT}" for node in NODES]
UP = (
    *("ray", "up", "--port", str(PORT), "--worker-gpus", "1", "--worker-cpus", "1", "--kv-tokens", "4096"),
    *("--ready-timeout-s", "150"),
)


def submit(cluster: Cluster, wheel: Path, *arguments: str, timeout_s: float = 180) -> str:
    """`ray job submit -- trieway ...`, which ships the wheel. Returns what the job printed."""
    command = [
        *(cluster.python, "-m", "ray.scripts.scripts", "job", "submit", "--address", cluster.jobs),
        *("--runtime-env-json", json.dumps({"py_modules": [str(wheel)]})),
        *("--", cluster.python, "-m", "trieway", *arguments),
    ]
    done = subprocess.run(
        command, env=cluster.environment(), cwd=cluster.folder, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def complete(router: str, prompt: str = "Hello") -> dict[str, Any]:
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 4}).encode()
    request = urllib.request.Request(router + "/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def replicas(cluster: Cluster, role: str) -> dict[str, dict[str, Any]]:
    """The replicas that are ready, by their names."""
    return {r["replica"]: r for r in cluster.fleet()["replicas"] if r["role"] == role and r["state"] == "ready"}


def seen_by_routers(count: int) -> bool:
    """Every router that answers knows exactly so many workers, all up."""
    rows = [get(router + "/readyz") for router in ROUTERS]
    return all(row["up"] == row["workers"] == count for row in rows)


def test_a_job_brings_the_fleet_up_and_a_completion_is_served(cluster: Cluster, wheel: Path) -> None:
    told = submit(cluster, wheel, *UP, "--workers", "2")
    for router in ROUTERS:
        assert router in told
        assert complete(router)["usage"]["completion_tokens"] == 4
    workers = replicas(cluster, "worker")
    assert len(workers) == 2
    for one in workers.values():
        environment = Path(f"/proc/{one['pid']}/environ").read_bytes().decode().split("\0")
        gpus = next(line for line in environment if line.startswith("CUDA_VISIBLE_DEVICES="))
        assert gpus.removeprefix("CUDA_VISIBLE_DEVICES=") in {"0", "1", "2", "3"}, "a fake GPU was placed"
        path = next(line for line in environment if line.startswith("PYTHONPATH="))
        assert "py_modules" in path, "the code is the wheel's"
    assert {one["node"] for one in replicas(cluster, "router").values()} == set(NODES), "the head runs no replica"
    assert all(one["node"] != HEAD for one in workers.values())


def test_the_same_again_changes_nothing(cluster: Cluster, wheel: Path) -> None:
    before = set(replicas(cluster, "worker")) | set(replicas(cluster, "router"))
    submit(cluster, wheel, *UP, "--workers", "2")
    assert set(replicas(cluster, "worker")) | set(replicas(cluster, "router")) == before


def test_scaling_under_load_fails_no_request(cluster: Cluster, wheel: Path) -> None:
    submit(cluster, wheel, *UP, "--workers", "1")
    until(lambda: seen_by_routers(1), 60, "one worker is left")
    with under_load(ROUTERS) as load:
        submit(cluster, wheel, *UP, "--workers", "3")
        until(lambda: seen_by_routers(3), 60, "three workers serve")
        until(lambda: len(load.tally.workers) >= 3, 60, "the newcomers take requests")
        submit(cluster, wheel, *UP, "--workers", "1")
        until(lambda: seen_by_routers(1), 60, "one worker is left")
        done = load.tally.done
        until(lambda: load.tally.done > done + 5, 60, "it serves on")
    submit(cluster, wheel, *UP, "--workers", "2")
    until(lambda: seen_by_routers(2), 60, "two workers serve")


def test_a_rolling_upgrade_ends_no_stream(cluster: Cluster, wheel: Path) -> None:
    before = set(replicas(cluster, "worker")) | set(replicas(cluster, "router"))
    streams = Streams(ROUTERS, count=6, max_tokens=400)
    until(lambda: streams.begun == 6, 60, "six streams are in flight")
    with under_load(ROUTERS, clients=1):
        submit(cluster, wheel, *UP, "--workers", "2", "--roll", "b")

        def replaced() -> bool:
            now = set(replicas(cluster, "worker")) | set(replicas(cluster, "router"))
            return len(now) == 4 and not now & before

        until(replaced, 120, "every replica is new", pause_s=1)
    assert streams.join(120) == ["whole"] * 6


@pytest.mark.verify
def test_a_router_costs_no_more_under_serve(cluster: Cluster) -> None:
    """Its own process and its replica's, against the same router started by hand, turn by turn in one run."""
    (one,) = [each for each in replicas(cluster, "router").values() if each["node"] == NODES[0]]
    under_serve = [one["pid"], parent_of(one["pid"])]
    port = free_port()
    with engine() as url:
        workers = [url, *(each["url"] for each in replicas(cluster, "worker").values())]
        command = [sys.executable, "-m", "trieway", "router", "--port", str(port)]
        plain = subprocess.Popen(
            [*command, *(word for worker in workers for word in ("--worker", worker))],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            call(f"{ROUTERS[0]}/workers", {"url": url})
            routers = {"plain": f"http://127.0.0.1:{port}", "serve": ROUTERS[0]}
            for router in routers.values():
                until(lambda router=router: knows(router, STAND_IN), 30, "the stand-in is known")
            pids = {"plain": [plain.pid], "serve": under_serve}
            found: dict[str, list[float]] = {"plain": [], "serve": []}
            rates: list[float] = []
            for turn in range(5):
                for name in routers if turn % 2 else reversed(routers):
                    micros, rate = cost_us(routers[name], pids[name])
                    found[name].append(micros)
                    rates.append(rate)
        finally:
            plain.terminate()
            plain.wait()
            with urllib.request.urlopen(
                urllib.request.Request(f"{ROUTERS[0]}/workers/{url.removeprefix('http://')}", method="DELETE"),
                timeout=10,
            ):
                pass
    ratio = statistics.median(found["serve"]) / statistics.median(found["plain"])
    told = {name: [round(value) for value in values] for name, values in found.items()}
    print(f"[figure] router CPU us per request {told}, at {min(rates):.0f}/s or more, under Serve x{ratio:.3f}")
    assert min(rates) >= 200
    assert ratio <= 1.10


def knows(router: str, model: str) -> bool:
    try:
        return any(each["id"] == model for each in get(router + "/v1/models")["data"])
    except OSError:
        return False


def call(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_a_replica_killed_under_load_fails_no_request(cluster: Cluster) -> None:
    before = replicas(cluster, "worker")
    victim = next(iter(before.values()))
    with under_load(ROUTERS) as load:
        until(lambda: load.tally.done > 5, 30, "the load runs")
        # The replica's own process, not only its server: the server dies with it.
        os.kill(parent_of(victim["pid"]), signal.SIGKILL)
        until(lambda: victim["replica"] not in replicas(cluster, "worker"), 30, "its end is seen", pause_s=1)
        assert not Path(f"/proc/{victim['pid']}/exe").exists(), "its server outlived it"
        until(lambda: seen_by_routers(2), 90, "another takes its place")
    assert len(replicas(cluster, "worker")) == 2


def test_the_head_killed_for_eight_seconds_is_not_noticed(cluster: Cluster) -> None:
    with under_load(ROUTERS) as load:
        until(lambda: load.tally.done > 5, 30, "the load runs")
        cluster.kill_node(HEAD)
        done = load.tally.done
        time.sleep(8)
        assert load.tally.done > done, "requests go on without a head"
        cluster.start_head()
        done = load.tally.done
        until(lambda: cluster.fleet()["status"] == "RUNNING", 90, "Serve is back", pause_s=1)
        until(lambda: load.tally.done > done + 5, 30, "requests go on")
    assert seen_by_routers(2)


def test_a_node_killed_under_load_fails_no_request(cluster: Cluster) -> None:
    lost, kept = NODES
    with under_load(ROUTERS) as load:
        until(lambda: load.tally.done > 5, 30, "the load runs")
        cluster.kill_node(lost)
        done = load.tally.done
        until(lambda: load.tally.done > done + 5, 60, "the other node serves on")

        def healed() -> bool:
            row = get(f"http://{kept}:{PORT}/readyz")
            return bool(row["up"] == 2)

        until(healed, 150, "the lost worker is started on the node that is left")
    assert all(one["node"] == kept for one in replicas(cluster, "worker").values())


def test_down_leaves_nothing(cluster: Cluster) -> None:
    done = cluster.trieway("ray", "down")
    assert "is down" in done.stdout, done.stderr[-2000:]
    with pytest.raises(OSError):
        complete(f"http://{NODES[1]}:{PORT}")
