"""The router as a process: what it loads, how it starts and ends, what a user's mistake costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trieway.router.main import run_router
from trieway.serving.config import ConfigError, RouterConfig

RUN = """
import json, sys, threading, urllib.request
from pathlib import Path
from trieway.router import main
from trieway.serving.config import RouterConfig

def ready(line):
    print(line, flush=True)
    url = line.rsplit(" ", 1)[1]
    def ask():
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
        for path, data in (("/metrics", None), ("/v1/chat/completions", body), ("/explain", body)):
            try:
                urllib.request.urlopen(url + path, data).read()
            except urllib.error.HTTPError as error:
                error.close()
        loaded = sorted({name.partition(".")[0] for name in sys.modules})
        print(json.dumps(loaded), flush=True)
    threading.Thread(target=ask).start()

serve = main.serve
main.serve = lambda *args: serve(*args, ready=ready)
sys.exit(main.run_router(RouterConfig(port=0, workers=("http://127.0.0.1:9",))))
"""


@contextmanager
def router() -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A router process: (process, URL, names of the packages it has loaded after some requests)."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("trieway router ready on http://127.0.0.1:")
        yield process, line.split()[-1], json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def test_a_router_loads_nothing_heavy_and_ends_with_code_zero() -> None:
    with router() as (process, url, loaded):
        heavy = {"torch", "tokenizers", "transformers", "numpy", "gguf", "safetensors", "ray", "pandas", "scipy"}
        assert not heavy & set(loaded)
        assert "requests" not in loaded, "the exporter of traces is loaded by need"
        with urllib.request.urlopen(url + "/livez") as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_ctrl_c_ends_a_router_that_has_requests() -> None:
    with router() as (process, url, _):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 10\r\n\r\n")
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        assert time.monotonic() - started < 5.0, "a second signal does not wait for anybody"


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            run_router(RouterConfig(port=port))


def test_mistakes_in_the_configuration_are_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("")
    for config, word in (
        (RouterConfig(workers=("nonsense",)), "--worker nonsense"),
        (RouterConfig(host="0.0.0.0"), "allow-open"),
        (RouterConfig(host="0.0.0.0", allow_open=True), "fleet_secret_file"),
        (RouterConfig(api_keys_file=empty), "empty"),
        (RouterConfig(fleet_secret_file=tmp_path / "none"), "fleet_secret_file"),
    ):
        with pytest.raises(ConfigError, match=word) as mistake:
            run_router(config)
        assert "\n" not in str(mistake.value)
