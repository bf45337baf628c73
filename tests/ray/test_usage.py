"""What a user gets wrong before a cluster is reached: one line that says what to do, and the exit code. No cluster."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'trieway[ray]'", exc_type=ImportError)

from tests.ray.cluster import free_port
from trieway import cli

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def complaint(arguments: list[str], capsys: Output) -> tuple[int, str]:
    """The exit code, and the one line."""
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trieway: error: ")
    assert err.count("\n") == 1, f"not one line: {err!r}"
    return code, err


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("garbage", 2, "no address of a cluster"),
        ("host:port", 2, "no address of a cluster"),
        ("10.0.0.1:0", 2, "no address of a cluster"),
        ("10.0.0.1:99999", 2, "no address of a cluster"),
        (":6379", 2, "no address of a cluster"),
        ("ray://10.0.0.1:10001", 2, "that is Ray Client"),
        ("http://10.0.0.1:8265", 2, "that is the dashboard"),
        ("local", 2, "`ray start --head` starts one"),
        ("nowhere.invalid:6379", 1, "nothing answers at nowhere.invalid:6379"),
    ],
)
@pytest.mark.parametrize("action", ["status", "up", "down", "reports"])
def test_a_wrong_address(address: str, code: int, says: str, action: str, capsys: Output) -> None:
    found, said = complaint(["ray", action, "--address", address], capsys)
    assert found == code
    assert says in said


@pytest.mark.timeout(20)
def test_an_address_where_nothing_listens_is_told_at_once(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    found, said = complaint(["ray", "status"], capsys)
    assert found == 1
    assert f":{port}" in said
    assert "Connection refused" in said


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n", b"", None])
@pytest.mark.timeout(20)
def test_a_server_that_is_no_head(answer: bytes | None, capsys: Output) -> None:
    """A dashboard, a Redis, one that hangs up, one that says nothing."""
    with server(answer) as port:
        found, said = complaint(["ray", "status", "--address", f"{own_address()}:{port}"], capsys)
    assert found == 1
    assert ("nothing answers" if answer is None else "is no Ray head") in said


def own_address() -> str:
    """What Ray makes of loopback, so that the server is where Ray looks."""
    from ray._private import services

    return str(services.canonicalize_bootstrap_address_or_die("127.0.0.1:1")).rpartition(":")[0]


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """Answers every connection with this, and hangs up; None: says nothing."""
    with socket.create_server((own_address(), 0)) as listener:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.recv(4096)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in kept:
            connection.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["load"], "takes run, sweep, replay"),
        (["load", "compare", "a", "b"], "takes run, sweep, replay"),
        (["load", "run", "--json", "x.json"], "--json: reports are kept by `--keep DIR`"),
        (["load", "run", "--report", "x.html"], "--report: reports are kept by `--keep DIR`"),
        (["load", "replay"], "the file comes first"),
        (["load", "replay", "--seed", "1"], "the file comes first"),
        (["load", "run", "--nothing"], "unrecognized arguments: --nothing"),
        (["load", "--keep", "/no/such/folder", "run"], "there is no such folder"),
        (["load", "--name", "a/b", "run"], "letters, digits, dots"),
        (["load", "--fleet", "a b", "run"], "--fleet: up to 63 letters"),
        (["reports", "--to", "."], "--to needs the name of a report"),
        (["reports", "a", "--to", "/no/such/folder"], "there is no such folder"),
        (["status", "--fleet", "a/b"], "--fleet: up to 63 letters"),
        (["down", "--fleet", ""], "--fleet: up to 63 letters"),
        (["sideways"], "invalid choice: 'sideways'"),
    ],
)
def test_flags_that_make_no_sense(arguments: list[str], says: str, capsys: Output) -> None:
    found, said = complaint(["ray", *arguments], capsys)
    assert found == 2
    assert says in said


@pytest.mark.timeout(20)
def test_a_router_that_finds_no_cluster(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"{own_address()}:{free_port()}")
    found, said = complaint(["router", "--discover", "ray", "--port", "0"], capsys)
    assert found == 2
    assert "no Ray cluster is found; set RAY_ADDRESS=host:port" in said


def test_the_help_of_a_load_test_is_the_load_generators(capsys: Output) -> None:
    assert cli.main(["ray", "load", "run", "--help"]) == 0
    assert "--arrivals" in capsys.readouterr().out


def test_a_load_test_without_a_cluster_leaves_no_folder(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found, _ = complaint(["ray", "load", "--address", "nowhere.invalid:1", "run"], capsys)
    assert found == 1
    assert list(tmp_path.iterdir()) == []
