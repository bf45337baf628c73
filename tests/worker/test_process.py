"""The worker as a process: its ready line, signals, exit codes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.frames import FrameReader, Heartbeat
from trieway.serving.config import ConfigError, WorkerConfig
from trieway.worker.main import run_worker
from trieway.worker.weights import SLICE_BYTES, weights_digest

from .harness import chunks, wait_until

pytestmark = pytest.mark.fleet
ROOT = Path(__file__).resolve().parents[2]
TEXT = "/v1/completions"


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A worker process that is ready, and a client to it."""
    command = [sys.executable, "-m", "tests.worker.tiny_process", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line.startswith("trieway worker ready on http://127.0.0.1:"), line
            with httpx.Client(base_url=line.split()[-1], timeout=60) as client:
                yield child, client
        finally:
            child.kill()


def ask(steps: int, **fields: object) -> dict[str, object]:
    """A completion of so many steps."""
    return {"model": "tiny", "prompt": "x", "max_tokens": steps, "temperature": 0, **fields}


def refused(client: httpx.Client) -> bool:
    """Whether new connections are refused."""
    try:
        with client.stream("GET", "/livez"):
            return False
    except httpx.ConnectError:
        return True


def test_a_signal_lets_streams_finish_and_exits_with_zero() -> None:
    with process("20") as (child, client):
        with client.stream("POST", TEXT, json=ask(30, stream=True)) as response:
            pieces = response.iter_bytes()
            body = next(pieces)
            child.send_signal(signal.SIGTERM)
            body += b"".join(pieces)
        assert len(chunks(body)) == 31
        assert child.wait(20) == 0
        assert refused(client)
        assert child.stderr is not None
        assert "Traceback" not in child.stderr.read()


def test_a_second_signal_ends_at_once() -> None:
    with process("200") as (child, client), client.stream("POST", TEXT, json=ask(1000, stream=True)) as response:
        pieces = response.iter_bytes()
        next(pieces)
        child.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(client))
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        rest = b""
        try:
            for piece in pieces:
                rest += piece
        except httpx.RemoteProtocolError:
            pass
        assert b"[DONE]" not in rest, "a cut answer must not look complete"
        assert b"event: error" in rest


def test_what_outlasts_the_drain_ends_with_an_error_event() -> None:
    with process("20", "drain=0.3") as (child, client):
        with client.stream("POST", TEXT, json=ask(3000, stream=True)) as response:
            pieces = response.iter_bytes()
            body = next(pieces)
            child.send_signal(signal.SIGTERM)
            body += b"".join(pieces)
        assert b"event: error" in body
        assert b'"code":"stopping"' in body
        assert b"[DONE]" not in body
        assert child.wait(20) == 0


def test_an_interrupt_is_told_to_routers_and_idle_connections_do_not_hold_it() -> None:
    token = FleetKey.from_secret(None).feed_token
    with process("1") as (child, client):
        headers = {"authorization": f"Bearer {token}"}
        assert client.get("/livez").status_code == 200
        with client.stream("GET", "/cache/feed", headers=headers) as response:
            pieces, reader = response.iter_raw(), FrameReader()
            frames = reader.feed(next(pieces))
            child.send_signal(signal.SIGINT)
            for piece in pieces:
                frames += reader.feed(piece)
        beats = [frame for frame in frames if isinstance(frame, Heartbeat)]
        assert beats[-1].load.draining
        assert child.wait(10) == 0


def test_a_broken_engine_ends_the_process_with_one_line() -> None:
    with process("1", "fail") as (child, client):
        statuses: list[int] = []

        def post() -> None:
            try:
                statuses.append(client.post(TEXT, json=ask(1)).status_code)
            except httpx.TransportError:
                child.wait(20)

        while child.poll() is None and len(statuses) < 50:
            post()
        assert child.wait(20) == 1
        assert set(statuses) <= {500, 503}
        assert child.stderr is not None
        errors = [line for line in child.stderr.read().splitlines() if line.startswith("trieway: error:")]
        assert len(errors) == 1
        assert "engine failed" in errors[0]


def test_a_taken_port_is_said_before_anything_is_loaded() -> None:
    def never(config: WorkerConfig) -> None:
        raise AssertionError("the model was loaded")

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}"):
            run_worker(WorkerConfig(port=port), never)  # type: ignore[arg-type]


def test_a_host_that_is_none() -> None:
    with pytest.raises(ConfigError):
        run_worker(WorkerConfig(port=0, host="no.such.host.invalid", allow_open=True))


def test_the_digest_of_weights_sees_every_part(tmp_path: Path) -> None:
    data = bytearray(os.urandom(100 * SLICE_BYTES))
    path = tmp_path / "weights"
    path.write_bytes(data)
    digests = {weights_digest([path])}
    for _ in range(2):
        assert {weights_digest([path])} == digests
    path.write_bytes(data + b"x")
    digests.add(weights_digest([path]))
    data[: len(data)] = bytes(byte ^ 1 for byte in data)
    path.write_bytes(data)
    digests.add(weights_digest([path]))
    digests.add(weights_digest([path, path]))
    path.write_bytes(b"")
    digests.add(weights_digest([path]))
    assert len(digests) == 5
