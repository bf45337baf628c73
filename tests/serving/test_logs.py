"""Log lines: plain and JSON, with the request's id, set up once."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from trieway.serving.logs import current_request_id, current_trace_id, setup_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("trieway")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = before


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", "plain", process="worker-1")
    log = logging.getLogger("trieway.engine")
    log.info("ready on port %d", 8100)
    token = current_request_id.set("req-1")
    log.warning("slow")
    current_request_id.reset(token)
    log.debug("not shown")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("Z info worker-1 trieway.engine ready on port 8100")
    assert second.endswith("warning worker-1 trieway.engine [req-1] slow")


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("debug", "json", process="router")
    token = current_request_id.set("req-2")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("trieway.x").exception("failed")
    current_request_id.reset(token)
    (line,) = capsys.readouterr().err.splitlines()
    fields = json.loads(line)
    assert {name: fields[name] for name in ("level", "process", "logger", "message", "request_id")} == {
        "level": "error",
        "process": "router",
        "logger": "trieway.x",
        "message": "failed",
        "request_id": "req-2",
    }
    assert "ValueError" in fields["error"]
    assert fields["time"].endswith("Z")


def test_a_traced_requests_lines_name_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    request, trace = current_request_id.set("req-3"), current_trace_id.set("ab" * 16)
    for log_format in ("json", "plain"):
        setup_logging("info", log_format, process="router")
        logging.getLogger("trieway.x").info("done")
    current_request_id.reset(request)
    current_trace_id.reset(trace)
    as_json, plain = capsys.readouterr().err.splitlines()
    assert (json.loads(as_json)["request_id"], json.loads(as_json)["trace_id"]) == ("req-3", "ab" * 16)
    assert plain.endswith(f"[req-3 trace {'ab' * 16}] done")


def test_libraries_speak_from_warning_on(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("debug", "plain", process="x")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble")
    logging.getLogger("trieway.a").debug("detail")
    assert [line.rsplit(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == ["trouble", "detail"]


def test_set_up_twice_speaks_once(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", "plain", process="x")
    setup_logging("error", "plain", process="y")
    logging.getLogger("trieway.a").warning("hidden")
    logging.getLogger("trieway.a").error("once")
    (line,) = capsys.readouterr().err.splitlines()
    assert " y " in line
