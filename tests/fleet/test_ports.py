"""Ports are checked before anything starts; a clash is one line."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from trieway.fleet import ports
from trieway.fleet.ports import PortInUse, any_free, check_free, following_free

HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_a_port_in_use_is_named_with_what_to_do(taken: int) -> None:
    with pytest.raises(PortInUse, match=f"port {taken} on 127.0.0.1 is in use by another process; choose another with"):
        check_free(HOST, taken)


def test_a_free_port_stays_free_after_the_check() -> None:
    port = any_free(HOST)
    check_free(HOST, port)
    check_free(HOST, port)
    check_free(HOST, 0)


def test_a_port_left_in_time_wait_is_free() -> None:
    """A fleet that was just stopped can be started again at once."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        listener.bind((HOST, 0))
        listener.listen()
        port = int(listener.getsockname()[1])
        with socket.create_connection((HOST, port)) as client:
            server, _ = listener.accept()
            server.close()  # the side that closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    check_free(HOST, port)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(PortInUse, match=r"cannot listen on 192\.0\.2\.1:0"):
        check_free("192.0.2.1", 0)
    with pytest.raises(PortInUse, match="is not an address"):
        check_free("no such host", 8000)


def test_workers_get_the_next_free_ports(taken: int) -> None:
    found = following_free(HOST, taken - 1, 3)
    assert len(set(found)) == 3
    assert taken not in found
    assert all(taken - 1 < port <= taken + ports.TRIES_MAX for port in found)


def test_too_few_ports_above() -> None:
    with pytest.raises(PortInUse, match="choose another --port"):
        following_free(HOST, 65535, 1)
