"""Router and worker as processes: told by the standard environment, JSON logs that name traces, ends that flush."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tracing.collector import collecting
from tests.worker.harness import running

pytestmark = pytest.mark.fleet
ROOT = Path(__file__).resolve().parents[2]
TEXT = "/v1/completions"


class Process:
    """A server that listens."""

    def __init__(self, child: subprocess.Popen[str], url: str) -> None:
        self.child = child
        self.url = url

    def end(self) -> tuple[float, str]:
        """SIGTERM; the seconds that it took to end, and all that it said on stderr."""
        began = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        _, said = self.child.communicate(timeout=60)
        assert self.child.returncode == 0, said
        return time.monotonic() - began, said


@contextmanager
def server(*command: str, **environment: str) -> Iterator[Process]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TRIEWAY_"))}
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**clean, "OMP_NUM_THREADS": "1", **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        try:
            assert child.stdout is not None
            yield Process(child, child.stdout.readline().split()[-1])
        finally:
            child.kill()


def router(worker: str, *flags: str, **environment: str) -> AbstractContextManager[Process]:
    return server("trieway", "router", "--port=0", "--ready-wait-s=20", f"--worker={worker}", *flags, **environment)


def dead_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def lines(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


def test_traces_and_json_logs_of_a_request() -> None:
    body = {"model": "tiny", "prompt": "say:prompt-hidden|", "user": "user-hidden", "max_tokens": 4}
    broken = b'{"model": "tiny", "prompt": "prompt-hidden", "max_tokens": -1}'
    logs = {"TRIEWAY_LOG_FORMAT": "json", "TRIEWAY_LOG_LEVEL": "debug"}
    with collecting() as collector:
        told = logs | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=key-hidden"}
        with server("tests.worker.tiny_process", "1", **told) as worker, router(worker.url, **told) as front:
            asked = [
                httpx.post(front.url + TEXT, json=body, headers={"x-request-id": "mine-1"}, timeout=30),
                httpx.post(front.url + TEXT, content=broken, headers={"x-request-id": "mine-2"}, timeout=30),
                httpx.post(worker.url + TEXT, json=body, headers={"x-request-id": "mine-3"}, timeout=30),
            ]
            _, of_router = front.end()
            _, of_worker = worker.end()
    assert [reply.status_code for reply in asked] == [200, 400, 200]
    assert {name for _, headers in collector.posts for name in [headers["x-key"]]} == {"key-hidden"}
    trace_id = asked[0].headers["x-trieway-trace-id"]
    assert sorted(span.name for span in collector.of(trace_id)) == sorted(
        [f"POST {TEXT}", "decide", "attempt", f"POST {TEXT}", "queue", "prefill", "decode"]
    )
    assert {span.service for span in collector.of(trace_id)} == {"trieway-router", "trieway-worker"}
    assert "hidden" not in of_router + of_worker
    assert b"hidden" not in collector.raw
    for said, process in ((of_router, "router"), (of_worker, "worker")):
        logged = lines(said)
        assert {line["process"] for line in logged} == {process}
        mine = [line for line in logged if line.get("request_id") == "mine-1"]
        assert mine
        assert {line["trace_id"] for line in mine} == {trace_id}
    assert [line["trace_id"] for line in lines(of_router) if line.get("request_id") == "mine-2"] == [
        asked[1].headers["x-trieway-trace-id"]
    ]
    assert not [line for line in lines(of_router) if "request_id" not in line and "trace_id" in line]


def test_a_collector_that_is_away_costs_one_line() -> None:
    flag = f"--otlp-endpoint=http://127.0.0.1:{dead_port()}"
    with running() as worker, router(worker.url, flag, OTEL_EXPORTER_OTLP_TIMEOUT="0.5") as front:
        with httpx.Client(base_url=front.url, timeout=30) as client:
            for number in range(40):
                assert client.post(TEXT, json={"model": "tiny", "prompt": f"say:{number}|"}).status_code == 200
        seconds, said = front.end()
    complaints = [line for line in said.splitlines() if "spans of traces were lost" in line]
    assert len(complaints) == 1
    assert "opentelemetry" not in said
    assert "Traceback" not in said
    assert seconds < 6.0
