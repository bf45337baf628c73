"""What an embedded fleet consists of: ports, configurations, commands, threads, words."""

from __future__ import annotations

import dataclasses
import socket
import sys
from pathlib import Path

import httpx
import pytest

from trieway.fleet import up
from trieway.fleet.errors import UsageError
from trieway.fleet.lifecycle import Role
from trieway.fleet.ports import PortInUse, any_free
from trieway.serving.config import RouterConfig, UpConfig, WorkerConfig


def fleet(**keys: object) -> UpConfig:
    return dataclasses.replace(UpConfig(port=any_free("127.0.0.1")), **keys)  # type: ignore[arg-type]


def test_each_worker_has_its_port_and_the_router_knows_them() -> None:
    planned = up.plan(fleet(workers=3, model="m", policy="round_robin"))
    ports = [worker.port for worker in planned.workers]
    assert len({*ports, planned.router.port}) == 4
    assert planned.router.workers == tuple(f"http://127.0.0.1:{port}" for port in ports)
    assert planned.router.policy == "round_robin"
    assert {worker.model for worker in planned.workers} == {"m"}
    assert planned.url == f"http://127.0.0.1:{planned.router.port}"


def test_port_zero_takes_a_free_one() -> None:
    assert up.plan(UpConfig(port=0)).router.port > 0


def test_workers_stay_on_loopback_whatever_the_router_listens_on() -> None:
    planned = up.plan(fleet(host="0.0.0.0"))
    assert planned.router.host == "0.0.0.0"
    assert {worker.host for worker in planned.workers} == {"127.0.0.1"}
    assert planned.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("gpu-1", "http://gpu-1:80"),
    ],
)
def test_urls_that_reach_a_listener_from_here(host: str, url: str) -> None:
    assert up.local_url(host, 80) == url


def test_a_taken_router_port_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse, match="in use"):
            up.plan(UpConfig(port=taken.getsockname()[1]))


@pytest.mark.parametrize(("workers", "cores", "threads"), [(2, 2, 1), (2, 8, 4), (3, 8, 2), (4, 2, 1), (1, 2, 2)])
def test_cores_are_shared_evenly(workers: int, cores: int, threads: int) -> None:
    assert up.threads_each(workers, cores) == threads
    specs = up.child_specs(up.plan(fleet(workers=workers)), cores)
    assert [spec.environment.get("OMP_NUM_THREADS") for spec in specs] == [None, *[str(threads)] * workers]


def test_pinned_workers_have_a_core_and_a_thread_each_and_the_router_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up.os, "sched_getaffinity", lambda pid: {5, 3}, raising=False)
    assert up.own_cores(3) == [3, 5, 3]
    specs = up.child_specs(up.plan(fleet(workers=3)), 8, up.own_cores(3))
    assert [spec.core for spec in specs] == [None, 3, 5, 3]
    assert {spec.environment["OMP_NUM_THREADS"] for spec in specs[1:]} == {"1"}
    assert {spec.core for spec in up.child_specs(up.plan(fleet(workers=3)), 8)} == {None}


def test_pinning_where_the_system_cannot_is_a_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(up.os, "sched_setaffinity", raising=False)
    with pytest.raises(UsageError, match="leave --pin out"):
        up.own_cores(2)


def test_the_commands_carry_the_whole_configuration() -> None:
    secret = Path("secret.key")
    config = fleet(
        worker=WorkerConfig(kv_tokens=3000, prefix_cache=False, fleet_secret_file=secret),
        router=RouterConfig(retries_max=7, fleet_secret_file=secret),
    )
    router, *workers = up.child_specs(up.plan(config), 2)
    assert router.name == "router"
    assert router.role is Role.ROUTER
    assert [spec.name for spec in workers] == ["worker-0", "worker-1"]
    assert {spec.role for spec in workers} == {Role.WORKER}
    assert router.command[:5] == (sys.executable, "-P", "-m", "trieway", "router")
    assert "--retries-max=7" in router.command
    for spec in workers:
        assert {"worker", "--kv-tokens=3000", "--no-prefix-cache", "--fleet-secret-file=secret.key"} <= {*spec.command}
        assert spec.ready_url.endswith("/readyz")
    assert router.ready_url.endswith("/livez"), "a router without workers is alive: restarting it would help nobody"
    assert all(spec.environment["TRIEWAY_CONFIG"] is None for spec in (router, *workers))


def test_a_child_has_a_little_longer_than_its_own_drain() -> None:
    config = fleet(router=RouterConfig(drain_timeout_s=7), worker=WorkerConfig(drain_timeout_s=3))
    bounds = up.limits(dataclasses.replace(config, restart_backoff_max_s=0.1, ready_timeout_s=9))
    assert bounds.router_drain_max_s > 7
    assert bounds.worker_drain_max_s > 3
    assert bounds.start_max_s == 9
    assert bounds.backoff_s(1) == bounds.backoff_s(9) == 0.1


def test_the_ready_line() -> None:
    line = up.ready_line("http://127.0.0.1:8000", {"router": 11, "worker-0": 12, "worker-1": 13})
    assert line == "trieway ready on http://127.0.0.1:8000 (router pid 11, workers 12 13)"


@pytest.mark.parametrize(
    ("body", "workers"), [(b'{"up": 2}', 2), (b"{}", 0), (b"[]", 0), (b"no", 0), (b'{"up": null}', 0)]
)
def test_the_routers_count_of_workers_is_read_with_care(body: bytes, workers: int) -> None:
    assert up.workers_up(httpx.Response(200, content=body)) == workers
