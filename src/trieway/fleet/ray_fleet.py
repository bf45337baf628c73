"""`trieway ray up`, `status` and `down`: the fleet as an application of Ray Serve on a cluster that is there.

Keeps true: `up` again with the same settings changes nothing, with others only what they touch; the fleet goes on when
the command (or the job that ran it) ends; `down` ends this fleet alone. Does not know how replicas serve
(router/ray_app.py).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from trieway.fleet.console import Console
from trieway.fleet.errors import EXIT_DONE, EXIT_FAILED, CommandError
from trieway.serving.config import RayConfig

POLL_S = 0.5
DOWN_TIMEOUT_S = 180.0


def bring_up(config: RayConfig, *, roll: str = "", wait: bool = True) -> int:
    """Deploys, and waits until all serve. `roll`: any new word replaces every replica, in an upgrade's order."""
    _attach(config.address)
    from ray import serve

    from trieway.router.ray_app import build, serving_nodes

    if not serving_nodes():
        raise CommandError(
            "no node of the cluster offers CPUs: add a node, or start the only one with --num-cpus above 0"
        )
    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})
    serve.run(build(arguments(config, roll)), name=config.fleet, route_prefix=None, blocking=False)
    if wait:
        _wait_ready(config)
    return status(config.address, config.fleet)


def arguments(config: RayConfig, roll: str = "") -> dict[str, Any]:
    """What `build` (and serveConfigV2) takes for this configuration."""
    from trieway.router.ray_app import worker_settings

    host = {} if config.host is None else {"host": config.host}
    router = worker_settings(config.router) | {"port": config.port, "policy": config.policy} | host
    worker = worker_settings(config.worker) | host
    scale: dict[str, Any] = {"replicas": config.workers}
    if config.workers_max is not None:
        scale = {"min_replicas": config.workers_min or 1, "max_replicas": config.workers_max}
    models = [
        {
            "name": model,
            "worker": worker | {"model": model},
            "num_cpus": config.worker_cpus,
            "num_gpus": config.worker_gpus,
            "ready_timeout_s": config.ready_timeout_s,
            **scale,
        }
        for model in config.models
    ]
    return {
        "fleet": config.fleet,
        "router": router,
        "models": models,
        "router_cpus": config.router_cpus,
        "surge": config.surge,
        "roll": roll,
    }


def _wait_ready(config: RayConfig) -> None:
    from ray import serve

    console = Console()
    until = time.monotonic() + config.ready_timeout_s
    said = ""
    while True:
        app = serve.status().applications.get(config.fleet)
        state = "missing" if app is None else app.status.value
        routers, workers = _count(config.fleet)
        line = f"fleet {config.fleet}: {state.lower()}, {routers} routers and {workers} workers ready"
        if line != said:
            console.step(line)
            said = line
        if state == "RUNNING" and routers and workers:
            return
        if state == "DEPLOY_FAILED":
            raise CommandError(f"the fleet could not be deployed: {_why(app)}")
        if time.monotonic() > until:
            raise CommandError(
                f"not ready within {config.ready_timeout_s:g} s: {_why(app)}; `trieway ray status` tells"
            )
        time.sleep(POLL_S)


def _why(app: Any) -> str:
    if app is None:
        return "Serve does not know it"
    messages = [app.message, *(one.message for one in app.deployments.values())]
    return " ".join(" ".join(messages).split())[-600:] or "no reason given"


def _count(fleet: str) -> tuple[int, int]:
    ready = [entry for entry in _entries(fleet) if entry.state == "ready"]
    return sum(e.role == "router" for e in ready), sum(e.role == "worker" for e in ready)


def status(address: str | None, fleet: str, *, as_json: bool = False) -> int:
    """Prints what runs where. Exit code 1 where no router is ready."""
    _attach(address)
    from ray import serve

    app = serve.status().applications.get(fleet)
    entries = sorted(_entries(fleet), key=lambda entry: (entry.role, entry.born, entry.replica))
    routers = [entry.url for entry in entries if entry.role == "router" and entry.state == "ready"]
    told: dict[str, Any] = {
        "fleet": fleet,
        "status": None if app is None else app.status.value,
        "routers": routers,
        "replicas": [
            {
                name: getattr(entry, name)
                for name in ("role", "state", "url", "node", "model", "replica", "version", "pid")
            }
            for entry in entries
        ],
        "deployments": {}
        if app is None
        else {
            name: {"status": one.status.value, "replicas": one.replica_states, "message": one.message}
            for name, one in app.deployments.items()
        },
    }
    print(json.dumps(told, indent=2) if as_json else _text(told))
    return EXIT_DONE if routers else EXIT_FAILED


def _text(told: dict[str, Any]) -> str:
    if told["status"] is None:
        return f"no fleet {told['fleet']} runs on this cluster; `trieway ray up` starts one"
    lines = [f"fleet {told['fleet']}: {told['status'].lower()}"]
    lines += [
        f"  {one['role']:7} {one['state']:9} {one['url'] or '-':28} {one['model']} on {one['node']}"
        for one in told["replicas"]
    ]
    if told["routers"]:
        lines.append(f"trieway ready on {' '.join(dict.fromkeys(told['routers']))}")
    return "\n".join(lines)


def take_down(address: str | None, fleet: str) -> int:
    """Ends the fleet: requests end first, as far as the drain time lasts."""
    _attach(address)
    from ray import serve

    if fleet in serve.status().applications:
        serve.delete(fleet, _blocking=False)
        _until(lambda: fleet not in serve.status().applications, f"fleet {fleet} does not end")
    _board(fleet).clear()
    if not serve.status().applications:
        serve.shutdown()
    print(f"fleet {fleet} is down")
    return EXIT_DONE


def _until(holds: Callable[[], bool], complaint: str) -> None:
    until = time.monotonic() + DOWN_TIMEOUT_S
    while not holds():
        if time.monotonic() > until:
            raise CommandError(f"{complaint} within {DOWN_TIMEOUT_S:g} s")
        time.sleep(POLL_S)


def _entries(fleet: str) -> list[Any]:
    """What the board says of replicas that Ray still has."""
    from trieway.serving.ray_board import BoardAway

    known = _known_replicas()
    try:
        return [entry for entry in _board(fleet).entries() if entry.replica in known]
    except BoardAway as error:
        raise CommandError(f"the cluster's head does not answer: {error}") from None


def _known_replicas() -> set[str]:
    """Their names: an entry of a replica that died without a word is not shown."""
    from ray.util import list_named_actors

    return {actor["name"].split("#")[-1] for actor in list_named_actors(all_namespaces=True)}


def _board(fleet: str) -> Any:
    from trieway.serving.ray_board import Board

    return Board(fleet)


def _attach(address: str | None) -> None:
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    try:
        from trieway.serving.ray_board import attach
    except ImportError:
        raise CommandError("`trieway ray` needs Ray: pip install 'trieway[ray]'") from None
    try:
        attach(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())[:300]
        raise CommandError(f"no Ray cluster is reached; name it with --address host:port ({text})") from None
