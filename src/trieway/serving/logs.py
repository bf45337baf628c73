"""Logging set-up. (Signatures first.)"""

from __future__ import annotations

from trieway.serving.config import LogFormat, LogLevel


def setup_logging(level: LogLevel, format: LogFormat, *, process: str) -> None:
    """Log to stderr: plain lines or JSON lines, each with the process's name and the request's id."""
    raise NotImplementedError
