"""What runs where on a Ray cluster: replicas from the fleet's board and from Serve's own books, as data and as text.

Keeps true: reading changes nothing; a replica that died without a word is not shown; one that waits for a node is, with
the reason. Does not know how replicas serve, nor how a fleet is started.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from trieway.fleet.errors import EXIT_DONE, EXIT_FAILED, CommandError
from trieway.fleet.ray_pending import Offer, why_waiting, wish

SHOWN = ("role", "state", "url", "node", "model", "replica", "version", "pid")
MESSAGE_CHARS_MAX = 600
SERVE_TIMEOUT_S = 30.0
SERVING = ("ready", "leaving")


def status(address: str | None, fleet: str, *, as_json: bool = False) -> int:
    """Prints what runs where. Exit code 1 where no router is ready, or no worker."""
    attach(address)
    told = tell(fleet)
    print(json.dumps(told, indent=2) if as_json else text(told))
    return EXIT_DONE if _serves(told) else EXIT_FAILED


def _serves(told: Mapping[str, Any]) -> bool:
    """A router is ready, and some worker."""
    return bool(told["routers"]) and any(
        one["role"] == "worker" and one["state"] in SERVING for one in told["replicas"]
    )


def tell(fleet: str) -> dict[str, Any]:
    """The fleet as data. CommandError: the head does not answer."""
    details = serve_details(fleet)
    entries = sorted(board_entries(fleet), key=lambda entry: (entry.role, entry.born, entry.replica))
    return {
        "fleet": fleet,
        "status": None if details is None else details["status"],
        "routers": [entry.url for entry in entries if entry.role == "router" and entry.state == "ready"],
        "replicas": [{name: getattr(entry, name) for name in SHOWN} for entry in entries],
        "waiting": list(_waiting(details)),
        "deployments": {} if details is None else {name: _deployment(one) for name, one in _deployments(details)},
    }


def text(told: Mapping[str, Any]) -> str:
    """For a person."""
    if told["status"] is None:
        return f"no fleet {told['fleet']} runs on this cluster; `trieway ray up` starts one"
    lines = [f"fleet {told['fleet']}: {told['status'].lower()}"]
    lines += [
        f"  {one['role']:7} {one['state']:9} {one['url'] or '-':28} {one['model']} on {one['node']}".rstrip()
        for one in told["replicas"]
    ]
    lines += [f"  {one['deployment']} waits for a node: {one['why']}" for one in told["waiting"]]
    if "FAILED" in told["status"]:
        lines += [f"  {name}: {cause(one['message'])}" for name, one in told["deployments"].items() if one["message"]]
    if _serves(told):
        lines.append(f"trieway ready on {' '.join(dict.fromkeys(told['routers']))}")
    return "\n".join(lines)


def cause(message: str) -> str:
    """What to tell of Serve's message, which holds a whole traceback: the last words of the server that failed."""
    flat = " ".join(message.split())
    if "No module named 'trieway'" in flat:
        return "the nodes do not have trieway: install it there, or submit this as a job that ships the wheel"
    _, found, said = flat.rpartition("ChildFailed: ")
    return said[:MESSAGE_CHARS_MAX] if found else flat[-MESSAGE_CHARS_MAX:]


def serve_details(fleet: str) -> Any:
    """Serve's own account of the fleet's application; None: there is none. CommandError: Serve does not answer."""
    return serve_applications().get(fleet)


def serve_applications() -> dict[str, Any]:
    """Serve's accounts of all applications by name; none where Serve does not run. CommandError: it does not answer."""
    import ray
    from ray.exceptions import RayActorError, RayError
    from ray.serve.context import _get_global_client

    try:
        client = _get_global_client(raise_if_no_controller_running=False)
        if client is None and replicas_of(""):
            raise CommandError("Serve's controller is gone, its replicas serve on: `trieway ray up` starts it again")
        if client is None:
            return {}
        asked = client._controller.get_serve_instance_details.remote()
        found: dict[str, Any] = ray.get(asked, timeout=SERVE_TIMEOUT_S).get("applications") or {}
    except RayActorError:
        if not replicas_of(""):
            return {}  # it was ended meanwhile
        raise CommandError("Serve's controller has just ended; ask again in a moment") from None
    except RayError as error:
        raise CommandError(f"Serve does not answer: {' '.join(str(error).split())[:200]}") from None
    return found


def replicas_of(fleet: str) -> list[dict[str, str]]:
    """Names and namespaces of the actors that are replicas of a fleet; of all where it is empty."""
    from ray.util import list_named_actors

    prefix = f"SERVE_REPLICA::{fleet}#" if fleet else "SERVE_REPLICA::"
    return [actor for actor in list_named_actors(all_namespaces=True) if actor["name"].startswith(prefix)]


def start_serve() -> None:
    """Starts Serve, or its controller where that is gone: it takes up what it kept."""
    from ray import serve

    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})


def _deployments(details: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(details["deployments"].items())


def _deployment(one: Mapping[str, Any]) -> dict[str, Any]:
    states: dict[str, int] = {}
    for replica in one["replicas"]:
        states[replica["state"]] = states.get(replica["state"], 0) + 1
    return {
        "status": one["status"],
        "replicas": states,
        "target": one["target_num_replicas"],
        "asks": wish(_options(one)).amounts,
        "labels": wish(_options(one)).labels,
        "message": one["message"],
    }


def _options(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = deployment["deployment_config"]["ray_actor_options"]
    return found


def unplaced(details: Mapping[str, Any] | None, state: str) -> Iterator[tuple[str, Any]]:
    """(deployment, replica) of those in this state of Serve's that have no node."""
    for name, one in _deployments(details) if details is not None else ():
        for replica in one["replicas"]:
            if replica["state"] == state and replica.get("node_id") is None:
                yield name, replica


def stopping(fleet: str) -> list[Any]:
    """Replicas that Serve ends and that have no node."""
    return [replica for _, replica in unplaced(serve_details(fleet), "STOPPING")]


def _waiting(details: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    seen = [name for name, _ in unplaced(details, "STARTING")]
    for name in dict.fromkeys(seen):
        assert details is not None, "replicas are of an application"
        why = why_waiting(wish(_options(details["deployments"][name])), offers())
        yield {"deployment": name, "replicas": seen.count(name), "why": why}


def offers() -> list[Offer]:
    """The nodes that live."""
    import ray
    from ray._private import state

    free = state.available_resources_per_node()
    return [
        Offer(
            address=node["NodeManagerAddress"],
            amounts=node["Resources"],
            free=free.get(node["NodeID"], {}),
            labels=node.get("Labels") or {},
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def board_entries(fleet: str) -> list[Any]:
    """What the board says of replicas that Ray still has."""
    from trieway.serving.ray_board import Board, BoardAway

    known = {actor["name"].split("#")[-1] for actor in replicas_of(fleet)}
    try:
        return [entry for entry in Board(fleet).entries() if entry.replica in known]
    except BoardAway as error:
        raise CommandError(f"the cluster's head does not answer: {error}") from None


def attach(address: str | None) -> None:
    """Attaches this process. CommandError: Ray is missing or no cluster is there. ConfigError: no address."""
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    try:
        import ray.serve  # noqa: F401 - it sets up its logger, whose lines are not for the user of this command

        from trieway.serving.ray_attach import attach as to_cluster
    except ImportError:
        raise CommandError("`trieway ray` needs Ray: pip install 'trieway[ray]'") from None
    try:
        to_cluster(address)
    except ConnectionError as error:
        said = " ".join(str(error).split())[:300]
        raise CommandError(f"no Ray cluster is reached; name it with --address host:port ({said})") from None
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)  # Ray's own way is a dump of its stack


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
