"""Reports on disk.

Keeps true: a file is written whole or not at all, and no device is ever replaced by one; another version's report is
refused by name. Does not know what is
in a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.reports.schema import SCHEMA, Report

PART = ".part"
TRIAL_BYTES = 1 << 16
"""A disk that takes less is full."""


def write_report(report: Report, path: Path) -> None:
    """JSON, indented. LoadError: it cannot be written."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(report), indent=1))


def read_report(path: Path) -> Report:
    """LoadError: no such file, no report, or one of another version."""
    return read_as(path, {SCHEMA: Report})


T = TypeVar("T")


def read_as(path: Path, types: Mapping[str, type[T]]) -> T:
    """A document of one of these schemas. LoadError: no such file, or none of them."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {path}: {_why(error)}") from None
    try:
        named = msgspec.json.decode(data, type=_Named).schema
        if named not in types:
            raise LoadError(f"{path} is {named or 'no report'}; this version reads {' and '.join(types)}")
        return msgspec.json.decode(data, type=types[named])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"{path} is no report: {error}") from None


class _Named(msgspec.Struct):
    schema: str = ""


def write_bytes(path: Path, data: bytes) -> None:
    """Whole or not at all. RunFailed: it cannot be written."""
    try:
        if _special(path):
            path.write_bytes(data)
            return
        beside = _beside(path)
        try:
            beside.write_bytes(data)
            beside.replace(beside.with_name(beside.name.removesuffix(PART)))
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise RunFailed(f"cannot write {path}: {_why(error)}") from None


def check_writable(paths: Iterable[Path | None]) -> None:
    """Before a long run: LoadError where a report could not be written after it, for the disk is full, say."""
    given = [path for path in paths if path is not None]
    for path in given:
        try:
            if not path.parent.is_dir():
                raise LoadError(f"cannot write {path}: there is no folder {path.parent}")
            if path.is_dir():
                raise LoadError(f"cannot write {path}: it is a folder")
            if not _special(path):
                _try(_beside(path))
        except (OSError, ValueError) as error:
            raise LoadError(f"cannot write {path}: {_why(error)}") from None
    real = [path.resolve() for path in given if not _special(path)]
    twice = next((path for path, one in zip(given, real, strict=False) if real.count(one) > 1), None)
    if twice is not None:
        raise LoadError(f"{twice} is named for two reports; give each its own")


def _special(path: Path) -> bool:
    """A device or pipe, such as /dev/stdout: it is written to, never replaced."""
    return path.exists() and not path.is_file()


def _beside(path: Path) -> Path:
    """Where it is written first. A link's target is replaced, not the link."""
    real = path.resolve()
    return real.with_name(real.name + PART)


def _try(beside: Path) -> None:
    try:
        beside.write_bytes(bytes(TRIAL_BYTES))
    finally:
        beside.unlink(missing_ok=True)


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
