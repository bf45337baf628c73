"""The fleet as an application of Ray Serve: `build` makes routers and workers of what serveConfigV2 or the CLI gives.

Keeps true: Serve owns life cycle, health and upgrades; no request passes Serve (each replica's server has its own
port, and routers find workers by the board); the version of a deployment follows from its settings, so that deploying
the same again restarts nothing. The head runs no replica as long as it offers no CPU. Does not know how replicas
serve.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
from ray import serve

from trieway import __version__
from trieway.serving.config import ConfigError, RouterConfig, WorkerConfig
from trieway.serving.config_flags import to_flags
from trieway.serving.config_ray import fleet_name
from trieway.serving.config_values import read_value, settings
from trieway.serving.ray_entries import EntryTable
from trieway.serving.ray_replica import Replica, node_address
from trieway.serving.ray_scratch import Scratch

READY_WAIT_S = 30.0
"""A router that takes over waits at most so long for the workers' indexes before it listens."""
START_TIMEOUT_S = 120.0
SHUTDOWN_SLACK_S = 20.0
HEALTH_PERIOD_S = 5.0
HEALTH_TIMEOUT_S = 15.0
ONGOING_MAX = 16
"""Calls that a replica takes through Serve at once; requests do not come this way."""

ROUTER_KEYS = frozenset({"num_cpus", "resources", "replicas"})
TOP_KEYS = frozenset(
    {"fleet", "router", "models", "router_resources", "router_replicas", "router_cpus", "surge", "roll"}
)
MODEL_KEYS = frozenset(
    {
        *("name", "worker", "replicas", "min_replicas", "max_replicas", "num_cpus", "num_gpus", "resources"),
        *("label_selector", "autoscaling", "ready_timeout_s"),
    }
)


class RouterReplica(Replica):
    """One router, on its node's fixed port."""

    def __init__(self, fleet: str, settings_: dict[str, Any], version: str) -> None:
        config: RouterConfig = _config(RouterConfig, settings_, "router")
        # Replaced as a whole at each change; the router looks at it a few times a second.
        self._scratch = Scratch("trieway-router-")
        self._file = self._scratch.folder / "workers"
        self._written: frozenset[str] | None = None
        super().__init__("router", fleet, "", version, config.drain_timeout_s, heard=self._hear)
        self.wait_read(START_TIMEOUT_S / 4)
        workers = self.table.serving()
        config = replace(
            config,
            host=config.host if settings_.get("host") else node_address(),
            discover="file",
            workers_file=self._file,
            reuse_port=True,
            own_port=True,
            ready_wait_s=READY_WAIT_S if workers else 0.0,
        )
        self.start(["router", *to_flags(config)], ready_timeout_s=START_TIMEOUT_S)

    def _hear(self, table: EntryTable) -> None:
        urls = table.serving()
        if urls != self._written:
            new = self._file.with_suffix(".new")
            new.write_text("".join(f"{url}\n" for url in sorted(urls)))
            os.replace(new, self._file)
            self._written = urls

    async def __del__(self) -> None:
        """Serve's word that the replica ends."""
        if self.child is not None and self.child.alive:
            await self.leave()
        self._scratch.remove()


def build(args: dict[str, Any]) -> serve.Application:
    """The application of these arguments:

    fleet: its name. router: keys of RouterConfig. models: for each `name`, `worker` (keys of WorkerConfig), `replicas`
    or `min_replicas` and `max_replicas` (then scaled by load, `autoscaling` refines), `num_cpus`, `num_gpus`,
    `resources`, `label_selector`. router_resources: what a router's node offers; then `router_replicas` of them are
    placed there, one for each. Without: one router on every node that offers CPUs. surge: see RayConfig.

    Raises:
        ConfigError: a key that nobody knows, or a value that does not fit.
    """
    _known(args, TOP_KEYS, "the application's arguments")
    fleet = fleet_name(str(args.get("fleet", "trieway")))
    surge = bool(args.get("surge", True))
    roll = str(args.get("roll", ""))
    models = [_model(fleet, model, surge, roll) for model in args.get("models") or [{"name": "smollm2-135m"}]]
    routers = _routers(fleet, args, surge, roll)
    # Serve wants one deployment in front of an application, and the others handed to it; nobody calls it.
    (front, arguments), *rest = models
    return front.bind(*arguments, [deployment.bind(*given) for deployment, given in (*rest, *routers)])


def _routers(fleet: str, args: Mapping[str, Any], surge: bool, roll: str) -> list[tuple[Any, tuple[Any, ...]]]:
    keys = dict(args.get("router") or {})
    config = _config(RouterConfig, keys, "router")
    version = _version(fleet, keys, roll)
    options = _options(drain_timeout_s=config.drain_timeout_s, surge=surge, version=version)
    cpus = float(args.get("router_cpus", 0.1))
    given = (fleet, keys, version)
    resources = args.get("router_resources")
    if resources:
        # The platform runs one node for each router, and upgrades by whole clusters.
        placed = options | {"max_surge_percent": 0, "num_replicas": int(args.get("router_replicas", 1))}
        actor = {"num_cpus": cpus, "resources": dict(resources)}
        return [(_deployment(RouterReplica, name="router", ray_actor_options=actor, **placed), given)]
    return [
        (
            _deployment(
                RouterReplica,
                name=f"router-{address}",
                num_replicas=1,
                ray_actor_options={"num_cpus": cpus, "resources": {f"node:{address}": 0.001}},
                **options,
            ),
            given,
        )
        for address in serving_nodes()
    ]


def serving_nodes() -> list[str]:
    """Addresses of the nodes that offer CPUs: where routers and workers run."""
    return sorted(
        {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
    )


def _model(fleet: str, model: Mapping[str, Any], surge: bool, roll: str) -> tuple[Any, tuple[Any, ...]]:
    _known(model, MODEL_KEYS, f"models: {model.get('name', '?')}")
    name = str(model.get("name") or "")
    if not name:
        raise ConfigError("models: each needs a name")
    keys = {"model": name, **(model.get("worker") or {})}
    config = _config(WorkerConfig, keys, f"models: {name}: worker")
    version = _version(fleet, keys, roll)
    actor: dict[str, Any] = {"num_cpus": float(model.get("num_cpus", 1.0)), "runtime_env": _worker_environment()}
    for key in ("num_gpus", "resources", "label_selector"):
        if model.get(key):
            actor[key] = model[key]
    options = _options(drain_timeout_s=config.drain_timeout_s, surge=surge, version=version, hand_over=True)
    most = model.get("max_replicas")
    if most is None:
        options["num_replicas"] = int(model.get("replicas", 1))
    else:
        options["autoscaling_config"] = _autoscaling(model, int(most))
    # Named by text: the two sides import each other in no other way.
    replica = importlib.import_module("trieway.worker.ray_worker").WorkerReplica
    deployment = _deployment(replica, name=f"worker-{_plain(name)}", ray_actor_options=actor, **options)
    return deployment, (fleet, name, keys, version, float(model.get("ready_timeout_s", 900.0)))


def _worker_environment() -> dict[str, Any]:
    """What the job gave, and a switch of Serve's: without it, only replicas that begin with scaling by load report, and
    a fleet that is given it later would not be scaled."""
    given: dict[str, Any] = dict(ray.get_runtime_context().runtime_env) if ray.is_initialized() else {}
    switch = {"RAY_SERVE_COLLECT_AUTOSCALING_METRICS_ON_HANDLE": "0"}
    return given | {"env_vars": {**(given.get("env_vars") or {}), **switch}}


def _autoscaling(model: Mapping[str, Any], most: int) -> dict[str, Any]:
    asked = dict(model.get("autoscaling") or {})
    return {
        "min_replicas": int(model.get("min_replicas") or 1),
        "max_replicas": most,
        # The policy damps by itself.
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "metrics_interval_s": float(asked.pop("metrics_interval_s", 5.0)),
        "look_back_period_s": float(asked.pop("look_back_period_s", 15.0)),
        "policy": {"policy_function": "trieway.router.ray_policy:Policy", "policy_kwargs": asked},
    }


def _options(*, drain_timeout_s: float, surge: bool, version: str, hand_over: bool = False) -> dict[str, Any]:
    return {
        "max_ongoing_requests": ONGOING_MAX,
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": drain_timeout_s + SHUTDOWN_SLACK_S + (30.0 if hand_over else 0.0),
        "max_surge_percent": 100 if surge else 0,
        "_version": version,
    }


def _deployment(replica: type, **options: Any) -> Any:
    version = options.pop("_version")
    if "max_surge_percent" not in inspect.signature(serve.deployment).parameters:
        options.pop("max_surge_percent", None)  # before Ray 2.60: the old one leaves first
    return serve.deployment(replica, **options).options(version=version, _internal=True)


def _config(kind: type[Any], keys: Mapping[str, Any], where: str) -> Any:
    known = settings(kind)
    _known(keys, frozenset(known), where)
    return kind(**{name: read_value(known[name], value, f"{where}: {name}") for name, value in keys.items()})


def worker_settings(config: WorkerConfig | RouterConfig) -> dict[str, Any]:
    """The keys of a configuration that differ from their defaults, as `build` takes them."""
    plain = asdict(type(config)())
    changed = {name: value for name, value in asdict(config).items() if value != plain[name]}
    return {name: str(value) if isinstance(value, Path) else value for name, value in changed.items()}


def _known(keys: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key in keys:
        if key not in known:
            raise ConfigError(f"{where}: {key}: no such key")


def _version(fleet: str, keys: Mapping[str, Any], roll: str) -> str:
    text = json.dumps([__version__, fleet, keys, roll], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
