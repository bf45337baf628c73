"""Attaching this process to a Ray cluster that runs, or one line that says why it cannot be.

Keeps true: a wrong address is told within seconds, where Ray by itself would knock for two minutes; nothing here starts
a cluster. Does not know what the cluster is used for.
"""

from __future__ import annotations

import os
import socket

import ray
from ray._private import services

from trieway.serving.config import ConfigError

KNOCK_TIMEOUT_S = 3.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How a client of HTTP/2, and so of gRPC, begins: the preface and empty settings."""
_SETTINGS = 4
_FRAME_HEAD_BYTES = 9


def attach(address: str | None) -> None:
    """Attaches to the cluster at `address` (default: RAY_ADDRESS, or the one on this machine), unless it is done.

    Raises:
        ConfigError: `address` is none.
        ConnectionError: no cluster is there, or one of another version of Ray.
    """
    if ray.is_initialized():
        return
    named = address or os.environ.get("RAY_ADDRESS") or "auto"
    found = _head(named)
    _knock(*_parts(found), named)
    try:
        ray.init(address=found, log_to_driver=False, logging_level="ERROR", namespace="trieway")
    except (RuntimeError, ValueError) as error:
        raise ConnectionError(str(error)) from None


def _head(address: str) -> str:
    """host:port of the head."""
    if "://" in address:
        what = "Ray Client" if address.startswith("ray://") else "the dashboard"
        raise ConfigError(
            f"{address}: that is {what}; give host:port of the head (6379 where `ray start` was not told otherwise), "
            "or submit a job"
        )
    if address == "local":
        raise ConfigError("local: a cluster that runs is needed; `ray start --head` starts one")
    if address != "auto":
        _parts(address)
    return str(services.canonicalize_bootstrap_address_or_die(address))


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= 65535:
        raise ConfigError(f"{address}: no address of a cluster; give one like 10.0.0.1:6379")
    return host.strip("[]"), int(port)


def _knock(host: str, port: int, named: str) -> None:
    """ConnectionError where no gRPC server answers."""
    # Ray takes loopback for this node's own address.
    at = f"{host}:{port}" + ("" if named in ("auto", f"{host}:{port}") else f", which Ray makes of {named}")
    try:
        with socket.create_connection((host, port), timeout=KNOCK_TIMEOUT_S) as probe:
            if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
                return
            probe.sendall(_PREFACE)
            head = b""
            while len(head) < _FRAME_HEAD_BYTES and (more := probe.recv(_FRAME_HEAD_BYTES - len(head))):
                head += more
    except OSError as error:
        raise ConnectionError(f"nothing answers at {at}: {error.strerror or error}") from None
    if len(head) < _FRAME_HEAD_BYTES or head[3] != _SETTINGS:
        raise ConnectionError(f"what listens at {at} is no Ray head; its port is 6379 where not told otherwise")
