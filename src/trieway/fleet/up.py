"""`trieway up`: what an embedded fleet consists of, and how a person sees it start, live and end.

It keeps true that every child gets a complete configuration by flags, a port that stays its own over restarts, and its
share of the cores. It does not know how children are kept alive (supervision.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence

import httpx

from trieway.fleet.children import ERROR_PREFIX, ChildSpec
from trieway.fleet.console import Console
from trieway.fleet.errors import EXIT_FAILED, CommandError, UsageError
from trieway.fleet.lifecycle import Limits, Phase, Role
from trieway.fleet.ports import any_free, check_free, following_free
from trieway.fleet.supervisor import Outlets, Supervisor, Whole
from trieway.serving.config import RouterConfig, UpConfig, WorkerConfig
from trieway.serving.config_load import to_flags

WORKER_HOST = "127.0.0.1"
ROUTER = "router"
DRAIN_MARGIN_S = 5.0  # beyond the child's own drain, before it is killed


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def own_cores(workers: int) -> list[int]:
    """A core for each worker, in turn. Raises UsageError where the system cannot keep a process on one."""
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("this system cannot keep a process on a core: leave --pin out")
    usable = sorted(os.sched_getaffinity(0))
    return [usable[number % len(usable)] for number in range(workers)]


def threads_each(workers: int, cores_in_all: int) -> int:
    """Compute threads of each worker: an even share, or they fight for cores."""
    return max(1, cores_in_all // max(1, workers))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The fleet before it runs: one configuration for each process."""

    router: RouterConfig
    workers: tuple[WorkerConfig, ...]

    @property
    def url(self) -> str:
        """Where clients send to."""
        return local_url(self.router.host, self.router.port)


def local_url(host: str, port: int) -> str:
    """A URL that reaches, from this machine, a server that listens on `host`."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def complete(config: UpConfig) -> UpConfig:
    """The fleet's own keys handed down to the processes behind it, as far as they are known before ports are."""
    return dataclasses.replace(
        config,
        worker=dataclasses.replace(config.worker, model=config.model, host=WORKER_HOST),
        router=dataclasses.replace(config.router, host=config.host, port=config.port, policy=config.policy),
    )


def plan(config: UpConfig) -> Plan:
    """Choose the ports and complete the configurations. Raises PortInUse."""
    check_free(config.host, config.port)
    config = complete(config)
    port = config.port or any_free(config.host)
    workers = tuple(
        dataclasses.replace(config.worker, port=each) for each in following_free(WORKER_HOST, port, config.workers)
    )
    urls = tuple(local_url(worker.host, worker.port) for worker in workers)
    return Plan(router=dataclasses.replace(config.router, port=port, workers=urls), workers=workers)


def child_specs(planned: Plan, cores_in_all: int, pinned: Sequence[int] = ()) -> list[ChildSpec]:
    """The processes of the fleet, the router first. Their flags say all: a configuration file is not read again.
    `pinned`: each worker's core; empty: all of them anywhere."""
    python = (sys.executable, "-P", "-m", "trieway")  # -P: a file beside the user does not shadow a module
    shared: dict[str, str | None] = {"PYTHONUNBUFFERED": "1", "TRIEWAY_CONFIG": None}
    threads = "1" if pinned else str(threads_each(len(planned.workers), cores_in_all))
    specs = [
        ChildSpec(
            name=ROUTER,
            role=Role.ROUTER,
            command=(*python, "router", *to_flags(planned.router)),
            ready_url=planned.url + "/livez",
            environment=shared,
        )
    ]
    for number, worker in enumerate(planned.workers):
        specs.append(
            ChildSpec(
                name=f"worker-{number}",
                role=Role.WORKER,
                command=(*python, "worker", *to_flags(worker)),
                ready_url=local_url(worker.host, worker.port) + "/readyz",
                environment={**shared, "OMP_NUM_THREADS": threads},
                core=pinned[number] if pinned else None,
            )
        )
    return specs


def limits(config: UpConfig) -> Limits:
    """The bounds of supervision out of the configuration."""
    return Limits(
        backoff_max_s=config.restart_backoff_max_s,
        backoff_first_s=min(0.25, config.restart_backoff_max_s),
        start_max_s=config.ready_timeout_s,
        router_drain_max_s=config.router.drain_timeout_s + DRAIN_MARGIN_S,
        worker_drain_max_s=config.worker.drain_timeout_s + DRAIN_MARGIN_S,
    )


def router_sees(planned: Plan) -> Whole:
    """A check that the router is ready and counts every worker as up."""

    async def whole(client: httpx.AsyncClient) -> bool:
        answer = await client.get(planned.url + "/readyz")
        if answer.status_code != httpx.codes.OK:
            return False
        return workers_up(answer) >= len(planned.workers)

    return whole


def workers_up(answer: httpx.Response) -> int:
    """The count of workers in a router's /readyz."""
    try:
        return int(answer.json()["up"])
    except (ValueError, KeyError, TypeError):
        return 0


class _View:
    """The words of a fleet: its own lines and its children's on stderr, the ready line on stdout."""

    def __init__(self, url: str, console: Console) -> None:
        self._url = url
        self._console = console
        self._began = time.monotonic()

    def outlets(self) -> Outlets:
        return Outlets(say=self._say, pass_on=self._pass_on, show=self._show, ready=self._ready)

    def _say(self, text: str) -> None:
        self._console.line(f"trieway: {text}")

    def _pass_on(self, name: str, line: str) -> None:
        if not line.startswith(ERROR_PREFIX):  # such a line comes with the exit, once
            self._console.line(f"[{name}] {line}")

    def _show(self, phases: dict[str, Phase]) -> None:
        states = ", ".join(f"{name} {phase.value}" for name, phase in phases.items())
        self._console.show(f"starting {time.monotonic() - self._began:.0f} s: {states}")

    def _ready(self, pids: dict[str, int]) -> None:
        self._console.clear()
        print(ready_line(self._url, pids), flush=True)


def ready_line(url: str, pids: Mapping[str, int]) -> str:
    """The line that says the fleet serves, and as which processes."""
    workers = " ".join(str(pid) for name, pid in pids.items() if name != ROUTER)
    return f"trieway ready on {url} (router pid {pids[ROUTER]}, workers {workers})"


def run_up(config: UpConfig) -> int:
    """Run an embedded fleet until it is stopped; returns the exit code. Raises PortInUse, CommandError."""
    planned = plan(config)
    specs = child_specs(planned, cores(), own_cores(config.workers) if config.pin else ())
    console = Console()
    where = " ".join(str(worker.port) for worker in planned.workers)
    console.line(f"trieway: starting {config.model} on {config.workers} workers (ports {where}); Ctrl-C ends the fleet")
    return asyncio.run(_run(specs, limits(config), planned, console))


async def _run(specs: Sequence[ChildSpec], bounds: Limits, planned: Plan, console: Console) -> int:
    supervisor = Supervisor(specs, bounds, router_sees(planned), _View(planned.url, console).outlets())
    code = await supervisor.run()
    console.clear()
    if supervisor.failure is not None:
        raise CommandError(supervisor.failure)
    assert code != EXIT_FAILED
    return code
