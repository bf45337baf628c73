"""`trieway ray up` and `down`: the fleet as an application of Ray Serve on a cluster that is there.

Keeps true: `up` again with the same settings changes nothing, with others only what they touch; the fleet goes on when
the command (or the job that ran it) ends; no two fleets share a port; `down` ends this fleet alone, once or again. Does
not know how replicas serve (router/ray_app.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container
from typing import Any

from trieway.fleet.console import Console
from trieway.fleet.errors import EXIT_DONE, CommandError
from trieway.fleet.ray_pending import PLACING
from trieway.fleet.ray_view import (
    attach,
    board_entries,
    cause,
    replicas_of,
    serve_applications,
    serve_details,
    start_serve,
    stopping,
    tell,
    text,
)
from trieway.serving.config import ConfigError, RayConfig
from trieway.serving.config_ray import amounts, labels

POLL_S = 0.5
DOWN_TIMEOUT_S = 180.0
CAUSE_TIMEOUT_S = 10.0


def bring_up(config: RayConfig, *, roll: str = "", wait: bool = True) -> int:
    """Deploys, and waits until all serve. `roll`: any new word replaces every replica, in an upgrade's order; without
    one the last word stands, and what runs with it stays."""
    _check_models(config)
    attach(config.address)
    from ray import serve

    from trieway.router.ray_app import build, serving_nodes
    from trieway.serving.ray_board import Board, BoardAway

    if not serving_nodes():
        raise CommandError(
            "no node of the cluster offers CPUs: add a node, or start the only one with --num-cpus above 0"
        )
    start_serve()
    _check_port(config)
    board = Board(config.fleet)
    try:
        roll = roll or board.roll()
        target = serve.RunTarget(target=build(arguments(config, roll)), name=config.fleet, route_prefix=None)
        board.set_roll(roll)
    except BoardAway as error:
        raise CommandError(f"the cluster's head does not answer: {error}") from None
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    if wait:
        _wait_ready(config)
    print(text(tell(config.fleet)))
    return EXIT_DONE


def _check_models(config: RayConfig) -> None:
    """ConfigError: a name that no node can know. Paths are the nodes' own."""
    from trieway.worker.models.catalog import CATALOG

    names = [entry.name for entry in CATALOG]
    for model in config.models:
        if not model.isprintable() or (model not in names and "/" not in model):
            known = ", ".join(names)
            raise ConfigError(f"models: no model {model!r}; give one of {known}, or a path that every node has")


def _check_port(config: RayConfig) -> None:
    """Routers share ports (an upgrade's two), so that two fleets on one would take each other's requests."""
    for name in serve_applications():
        if name == config.fleet:
            continue
        for entry in board_entries(name):
            if entry.role == "router" and entry.url.endswith(f":{config.port}"):
                raise CommandError(f"port {config.port} is the fleet {name}'s: choose another with --port")


def arguments(config: RayConfig, roll: str = "") -> dict[str, Any]:
    """What `build` (and serveConfigV2) takes for this configuration."""
    from trieway.router.ray_app import worker_settings

    host = {} if config.host is None else {"host": config.host}
    router = worker_settings(config.router) | {"port": config.port, "policy": config.policy} | host
    worker = worker_settings(config.worker) | host
    models = [
        {
            "name": model,
            "worker": worker | {"model": model},
            "num_cpus": config.worker_cpus,
            "num_gpus": config.worker_gpus,
            "resources": amounts(config.worker_resources, "worker_resources"),
            "label_selector": labels(config.worker_labels, "worker_labels"),
            "ready_timeout_s": config.ready_timeout_s,
            **_scale(config),
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


def _scale(config: RayConfig) -> dict[str, Any]:
    if config.workers_max is None:
        return {"replicas": config.workers}
    return {
        "min_replicas": config.workers_min or 1,
        "max_replicas": config.workers_max,
        "autoscaling": {
            "ttft_target_ms": config.scale_ttft_ms,
            "queue_target_ms": config.scale_queue_ms,
            "pressure_target": config.scale_pool,
            "calm_s": config.scale_calm_s,
            "start_s": config.scale_start_s,
            "up_pause_s": 3 * config.scale_interval_s,
            "metrics_interval_s": config.scale_interval_s,
            "look_back_period_s": 3 * config.scale_interval_s,
        },
    }


def _wait_ready(config: RayConfig) -> None:
    console = Console()
    until = time.monotonic() + config.ready_timeout_s
    said = ""
    while True:
        _drop_unplaced(config.fleet, {replica["actor_name"] for replica in stopping(config.fleet)})
        told = tell(config.fleet)
        if told["status"] is None and said:
            raise CommandError("the fleet was taken down meanwhile")
        state = told["status"] or "MISSING"
        ready = [one["role"] for one in told["replicas"] if one["state"] == "ready"]
        routers, workers = ready.count("router"), ready.count("worker")
        short = [one for one in told["waiting"] if one["why"] != PLACING]
        waits = "".join(f"; {one['deployment']} waits for a node: {one['why']}" for one in short)
        line = f"fleet {config.fleet}: {state.lower()}, {routers} routers and {workers} workers ready"
        if line + waits != said:
            console.step(line + waits)
            said = line + waits
        if state == "RUNNING" and routers and workers:
            console.clear()
            return
        if state == "DEPLOY_FAILED":
            why = _failure(config.fleet, told)
            raise CommandError(f"the fleet could not be deployed: {why}; `up` with other settings, or `down`")
        if time.monotonic() > until:
            raise CommandError(f"not ready within {config.ready_timeout_s:g} s: {_why(told)}")
        time.sleep(POLL_S)


def _failure(fleet: str, told: dict[str, Any]) -> str:
    """Why it failed to be deployed. Serve names the cause a moment after the state, or begins another try before it
    does: until then there is only what waits for a node."""
    until = time.monotonic() + CAUSE_TIMEOUT_S
    while time.monotonic() < until:
        said = [f"{name}: {cause(one['message'])}" for name, one in told["deployments"].items() if one["message"]]
        ended = [line for line in said if "it ended" in line or "not ready within" in line]
        if ended:
            return "; ".join(ended)
        time.sleep(POLL_S)
        told = tell(fleet)
    return _why(told)


def _why(told: dict[str, Any]) -> str:
    if told["status"] is None:
        return "Serve does not know it"
    if told["waiting"]:
        return "; ".join(f"{one['deployment']} waits for a node: {one['why']}" for one in told["waiting"])
    said = [f"{name}: {cause(one['message'])}" for name, one in told["deployments"].items() if one["message"]]
    return "; ".join(said) or "no reason is known"


def take_down(address: str | None, fleet: str) -> int:
    """Ends the fleet: requests end first, as far as the drain time lasts."""
    attach(address)
    from ray import serve

    from trieway.serving.ray_board import Board

    if replicas_of(fleet):
        start_serve()  # a controller that is gone ends nothing
    details = serve_details(fleet)
    if details is not None:
        serve.delete(fleet, _blocking=False)
        _wait_gone(fleet)
    Board(fleet).clear()
    if not serve_applications():
        serve.shutdown()
    print(f"fleet {fleet} is down" if details is not None else f"no fleet {fleet} ran on this cluster")
    return EXIT_DONE


def _wait_gone(fleet: str) -> None:
    until = time.monotonic() + DOWN_TIMEOUT_S
    while serve_details(fleet) is not None:
        _drop_unplaced(fleet)
        if time.monotonic() > until:
            raise CommandError(f"fleet {fleet} does not end within {DOWN_TIMEOUT_S:g} s; `trieway ray status` tells")
        time.sleep(POLL_S)


def _drop_unplaced(fleet: str, among: Container[str] | None = None) -> None:
    """Ends replicas that are to end and never had a node: Serve would give them their whole grace.

    `among`: names of actors; None where the whole fleet is to end.
    """
    import ray
    from ray._private import state

    for one in replicas_of(fleet):
        if among is not None and one["name"] not in among:
            continue
        with contextlib.suppress(ValueError):  # it is gone by now
            actor = ray.get_actor(one["name"], namespace=one["namespace"])
            if state.actors(actor._actor_id.hex()).get("State") == "PENDING_CREATION":
                ray.kill(actor)
