"""Lines of a file, plain or gzip, with their numbers.

Keeps true: lines are bounded; blank ones are passed over but counted. Does not know what the lines say.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import BinaryIO

from trieway.loadgen.errors import TraceError

LINE_BYTES_MAX = 64 * 1024 * 1024
TOKENS_MAX = 1 << 24
"""Of one prompt or answer in a file: no model reads or writes more."""
TIME_MAX_S = 10.0 * 365 * 86_400
"""A time in a file beyond this is a mistake of units, and none that could be waited for."""
_GZIP = b"\x1f\x8b"


def plain_name(path: str) -> str:
    """The file's name without folder and endings."""
    return path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gz").removesuffix(".jsonl")


def numbered_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, with its number from 1. TraceError: no such file, broken gzip, a line too long."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else nullcontext(raw) as source:
                yield from _lines(source, path)
    except OSError as error:
        raise TraceError(path, error.strerror or str(error)) from None
    except (EOFError, zlib.error) as error:
        raise TraceError(path, f"broken gzip: {error}") from None


def _lines(source: BinaryIO | gzip.GzipFile, path: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise TraceError(path, f"a line is over {LINE_BYTES_MAX} bytes", number)
        if not line.isspace():
            yield number, line
