"""What a person sees: aligned tables, progress that overwrites itself on a terminal and is plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns padded to their widest cell, two spaces apart; the first `left` columns flush left, the rest right."""
    every = [header, *rows]
    assert all(len(row) == len(header) for row in every), "ragged table"
    widths = [max(len(row[column]) for row in every) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def count(value: int | None) -> str:
    """A number with thousands set off, or a dash where it is unknown."""
    return "-" if value is None else f"{value:,}"


def milliseconds(seconds: float) -> str:
    """A time to read, in milliseconds."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"


class Console:
    """Lines on one stream. `show` is a state that the next line replaces on a terminal, and nothing elsewhere."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._live = self._out.isatty()
        self._shown = False

    @property
    def live(self) -> bool:
        """True on a terminal."""
        return self._live

    def line(self, text: str) -> None:
        """A line that stays."""
        self._wipe()
        self._write(text + "\n")

    def show(self, text: str) -> None:
        """A state for now; only on a terminal."""
        if self._live:
            self._wipe()
            self._write(text[: shutil.get_terminal_size().columns - 1])
            self._shown = True

    def step(self, text: str) -> None:
        """Progress of long work: a state on a terminal, a line elsewhere."""
        if self._live:
            self.show(text)
        else:
            self.line(text)

    def clear(self) -> None:
        """Take the state away."""
        self._wipe()
        self._write("")

    def _wipe(self) -> None:
        if self._shown:
            self._out.write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (BrokenPipeError, ValueError):  # nobody reads any more: work goes on without words
            pass
