"""The hooks of a pod: who the neighbours are, what is asked of whom, how long it takes, and that nothing fails."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trieway.meta_tree.chain import FleetKey
from trieway.worker.core.legacy import GIVERS_MAX, SHARE_OF_NEWCOMER, SHARE_OF_TAKER
from trieway.worker.neighbours import arrive, leave, main, neighbours, order, wait_ready

SECRET = "a-secret-of-sixteen-bytes-or-more"
TOKEN = FleetKey.from_secret(SECRET.encode()).feed_token


@dataclass
class Standin:
    """A worker's HTTP side: what it was asked, and what it answers to an order."""

    url: str
    port: int
    orders: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    answer: bytes = json.dumps({"prefixes": 3, "given": {"x": 2}}).encode()
    status: int = 200
    ready: bool = True
    asked: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event = field(default_factory=threading.Event)
    """Orders are answered while it is set."""

    def __post_init__(self) -> None:
        self.hold.set()


@contextmanager
def standin(host: str = "127.0.0.1", port: int = 0) -> Iterator[Standin]:
    found: list[Standin] = []

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.reply(200 if found[0].ready else 503, b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found[0].orders.append(json.loads(body) | {"path": self.path})
            found[0].tokens.append(self.headers["authorization"])
            found[0].asked.set()
            assert found[0].hold.wait(10)
            self.reply(found[0].status, found[0].answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    found.append(Standin(f"http://{host}:{server.server_address[1]}", server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text(SECRET)
    return str(tmp_path / "secret")


def test_neighbours_are_all_addresses_behind_the_names_but_the_own_one() -> None:
    assert neighbours(["127.0.0.2", "127.0.0.1", "127.0.0.2"], 80, "127.0.0.1") == ["http://127.0.0.2:80"]
    assert neighbours(["::1"], 80, "127.0.0.1") == ["http://[::1]:80"]


def test_a_name_that_does_not_resolve_is_nobody() -> None:
    assert neighbours(["no-such-name.invalid"], 80, "127.0.0.1") == []


def test_a_leaving_worker_is_told_to_give_to_all_others_with_the_fleets_token() -> None:
    with standin() as own:
        told = leave(own.url, ["http://a:1", "http://b:1"], TOKEN, 7.0)
    order = {"to": ["http://a:1", "http://b:1"], "share": SHARE_OF_TAKER, "timeout_s": 7.0, "drain": False}
    assert own.orders == [order | {"path": "/cache/handover"}]
    assert own.tokens == [f"Bearer {TOKEN}"]
    assert told == [f"{own.url} gave 2 prefixes"]


def test_the_last_worker_asks_nobody() -> None:
    with standin() as own:
        assert leave(own.url, [], TOKEN, 7.0) == ["no other worker: prefixes go with this one"]
    assert own.orders == []


def test_a_newcomer_is_given_to_by_its_neighbours_at_once() -> None:
    with standin() as giver, standin() as other:
        told = arrive("http://me:1", [giver.url, other.url], TOKEN, 10.0)
    order = {"to": ["http://me:1"], "share": SHARE_OF_NEWCOMER, "timeout_s": 10.0, "drain": False}
    assert giver.orders == other.orders == [order | {"path": "/cache/handover"}]
    assert sorted(told) == sorted(f"{one.url} gave 2 prefixes" for one in (giver, other))


def test_a_slow_neighbour_keeps_nobody_else_waiting() -> None:
    with standin() as slow, standin() as quick:
        slow.hold.clear()
        done: list[list[str]] = []
        thread = threading.Thread(
            target=lambda: done.append(arrive("http://me:1", [slow.url, quick.url], TOKEN, 10.0)), daemon=True
        )
        thread.start()
        assert quick.asked.wait(10)
        assert not done
        slow.hold.set()
        thread.join(10)
    assert len(done[0]) == 2


def test_of_many_neighbours_some_give_and_not_the_same_to_everyone() -> None:
    hosts = [f"http://127.0.0.1:{9000 + index}" for index in range(GIVERS_MAX * 3)]
    asked: dict[str, list[str]] = {}
    for own in ("http://me:1", "http://you:2"):
        told = arrive(own, hosts, TOKEN, 0.01)
        asked[own] = [line.split()[0] for line in told]
    assert all(len(set(givers)) == GIVERS_MAX for givers in asked.values())
    assert set(asked["http://me:1"]) != set(asked["http://you:2"])


def test_the_first_worker_has_nobody_to_ask() -> None:
    assert arrive("http://me:1", [], TOKEN, 1.0) == ["no other worker: nothing to begin with"]


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"given": 3}', b"{", b'{"given": {"a": "b"}}'])
def test_an_answer_that_makes_no_sense_is_told_and_forgiven(answer: bytes) -> None:
    with standin() as giver:
        giver.answer = answer
        assert order(giver.url, ["http://a:1"], TOKEN, 1.0).startswith(f"{giver.url} gave nothing")


def test_a_refusal_and_a_dead_worker_are_told_and_forgiven() -> None:
    with standin() as giver:
        giver.status = 401
        assert "401" in order(giver.url, ["http://a:1"], TOKEN, 1.0)
    assert "gave nothing" in order(f"http://127.0.0.1:{closed_port()}", ["http://a:1"], TOKEN, 1.0)


def test_waiting_for_a_worker_that_is_not_ready_ends() -> None:
    with standin() as own:
        assert wait_ready(own.url, 5.0)
        own.ready = False
        assert not wait_ready(own.url, 0.2)


def test_the_hook_before_the_end_takes_at_least_its_pause(secret: str, capsys: pytest.CaptureFixture[str]) -> None:
    with standin() as own, standin("127.0.0.2", own.port):
        began = time.monotonic()
        code = main(
            [
                *("leave", "--peers", "127.0.0.1", "127.0.0.2", "--address", "127.0.0.1", "--port", str(own.port)),
                *("--fleet-secret-file", secret, "--timeout-s", "5", "--pause-s", "0.4"),
            ]
        )
        assert time.monotonic() - began >= 0.4
    assert code == 0
    assert own.orders[0]["to"] == [f"http://127.0.0.2:{own.port}"]
    assert own.orders[0]["drain"], "then it turns away what is new"
    assert "gave 2 prefixes" in capsys.readouterr().out


def test_the_hook_after_the_start_orders_from_the_neighbours(secret: str) -> None:
    with standin() as own, standin("127.0.0.2", own.port) as other:
        code = main(
            [
                *("arrive", "--peers", "127.0.0.1", "127.0.0.2", "--address", "127.0.0.1", "--port", str(own.port)),
                *("--fleet-secret-file", secret, "--timeout-s", "5"),
            ]
        )
    assert code == 0
    assert own.orders == []
    assert other.orders[0]["to"] == [own.url]


def test_a_secret_that_cannot_be_read_costs_the_warmth_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--peers", "127.0.0.1", "--address", "127.0.0.1", "--port", str(closed_port())]
    assert main(["leave", *base, "--fleet-secret-file", str(tmp_path / "none"), "--pause-s", "0.1"]) == 0
    assert "fleet_secret_file" in capsys.readouterr().err


def test_a_worker_that_never_serves_is_not_warmed_and_not_ended(
    secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--peers", "127.0.0.1", "--address", "127.0.0.1", "--port", str(closed_port())]
    assert main(["arrive", *base, "--fleet-secret-file", secret, "--ready-timeout-s", "0.2"]) == 0
    assert "not warmed" in capsys.readouterr().out


def test_in_a_pod_the_own_address_is_known(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with standin() as own:
        monkeypatch.setenv("POD_IP", "127.0.0.1")
        base = ["--peers", "127.0.0.1", "--port", str(own.port), "--fleet-secret-file", secret]
        assert main(["leave", *base]) == 0
        assert own.orders == []
        monkeypatch.delenv("POD_IP")
        with pytest.raises(SystemExit):
            main(["leave", *base])
