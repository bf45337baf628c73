"""Reports on disk.

Keeps true: a file is written whole or not at all; another version's report is refused by name. Does not know what is
in a report.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.schema import SCHEMA, Report


def write_report(report: Report, path: Path) -> None:
    """JSON, indented. LoadError: it cannot be written."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(report), indent=1))


def read_report(path: Path) -> Report:
    """LoadError: no such file, no report, or one of another version."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    try:
        named = msgspec.json.decode(data, type=_Named).schema
        if named != SCHEMA:
            raise LoadError(f"{path} is {named or 'no report'}; this version reads {SCHEMA}")
        return msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} is no report: {error}") from None


class _Named(msgspec.Struct):
    schema: str = ""


def write_bytes(path: Path, data: bytes) -> None:
    """Whole or not at all. LoadError: it cannot be written."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        raise LoadError(f"cannot write {path}: {error.strerror}") from None


def check_writable(paths: Iterable[Path | None]) -> None:
    """Before a long run: LoadError where a report could not be written after it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise LoadError(f"cannot write {path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise LoadError(f"cannot write {path}: it is a folder")
