"""Which ports a fleet listens on: checked before anything starts, so that a clash is one clear line."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from trieway.fleet.errors import CommandError

PORT_MAX = 65535
TRIES_MAX = 500


class PortInUse(CommandError):
    """Where we were asked to listen, we cannot: most often another process does."""


def check_free(host: str, port: int) -> None:
    """Return if (host, port) can be listened on now (port 0 always can). Raises `PortInUse` with what to do."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise PortInUse(f"host {host!r} is not an address of this machine: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise PortInUse(_explain(host, port, error)) from None


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use by another process; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights; choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror}"


def any_free(host: str) -> int:
    """A port that the system calls free now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def following_free(host: str, port: int, count: int) -> tuple[int, ...]:
    """`count` free ports, the first ones above `port`: neighbours are easy to remember, and below the system's own
    range no outgoing connection takes them between two starts of a worker. Raises `PortInUse` if there are too few."""
    found = tuple(_take(_free_above(host, port), count))
    if len(found) < count:
        raise PortInUse(f"found {len(found)} of {count} free ports for workers above {port}; choose another --port")
    return found


def _free_above(host: str, port: int) -> Iterator[int]:
    for candidate in range(port + 1, min(port + 1 + TRIES_MAX, PORT_MAX + 1)):
        try:
            check_free(host, candidate)
        except PortInUse:
            continue
        yield candidate


def _take(ports: Iterator[int], count: int) -> Iterator[int]:
    for _, port in zip(range(count), ports, strict=False):
        yield port
