"""Workers named in a file, one URL a line, read again whenever it changes.

Keeps true: a file that cannot be read (or is half written: write a new one and rename it) changes nothing. Does not
know who writes it; on Ray it is the router's replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

log = logging.getLogger(__name__)

POLL_S = 0.2
FILE_BYTES_MAX = 4 << 20


class File:
    """The discovery of `--discover file`."""

    def __init__(self, path: Path, poll_s: float = POLL_S) -> None:
        self._path = path
        self._poll_s = poll_s

    async def watch(self) -> AsyncIterator[frozenset[str]]:
        """Whole sets, for ever."""
        seen: tuple[int, int, int] | None = None
        told: frozenset[str] | None = None
        while True:
            try:
                stat = self._path.stat()
                mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
                if mark != seen:
                    urls = self._read()
                    seen = mark
                    if urls != told:
                        told = urls
                        yield urls
            except (OSError, UnicodeDecodeError) as error:
                if seen is not None:
                    log.warning("%s cannot be read, the workers known stay: %s", self._path, error)
                seen = None
            await asyncio.sleep(self._poll_s)

    def _read(self) -> frozenset[str]:
        with self._path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX).decode()
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        return frozenset(line for line in lines if line)
