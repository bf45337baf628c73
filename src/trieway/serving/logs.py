"""Logging set-up: one handler on stderr, plain or JSON lines.

Keeps true: a line carries time, level, process, logger, the running request's id, and what was said. Whoever logs
never passes prompts, keys or tokens. Does not know files: what rotates and keeps logs is outside.
"""

from __future__ import annotations

import contextvars
import logging
import sys
from datetime import UTC, datetime

import msgspec

from trieway.serving.config import LogFormat, LogLevel

current_request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)
"""Set by a server for the time of one request; lines logged meanwhile carry it."""

current_trace_id: contextvars.ContextVar[str] = contextvars.ContextVar("trace_id", default="")
"""The same of a request that is traced, as 32 hex digits; empty where it is not."""


class PlainFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info worker-1 trieway.engine [req-1] text`, a traceback on further lines."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        request_id = current_request_id.get()
        trace_id = current_trace_id.get()
        tag = f" [{request_id}{f' trace {trace_id}' if trace_id else ''}]" if request_id else ""
        line = f"{_time(record)} {record.levelname.lower()} {self.process} {record.name}{tag} {record.getMessage()}"
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, process, logger, message; request_id, trace_id, error where there is one."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "process": self.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = current_request_id.get()
        if request_id:
            fields["request_id"] = request_id
        trace_id = current_trace_id.get()
        if trace_id:
            fields["trace_id"] = trace_id
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_OWN_HANDLER = "trieway"


def setup_logging(level: LogLevel, log_format: LogFormat, *, process: str) -> None:
    """Log to stderr, and nowhere else. Called again it replaces what it set up before.

    Libraries speak from warning on, or from `level` where that is higher.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.name = _OWN_HANDLER
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else PlainFormatter(process))
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.name == _OWN_HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    severity = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(severity, logging.WARNING))
    logging.getLogger("trieway").setLevel(severity)
