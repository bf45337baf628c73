"""Server-sent events on their way through: whole lines go on at once, a torn last line is held back.

Keeps true: every byte that came in is given out in order, unless the stream broke: then the torn line is dropped, so
that the error event which follows stands alone. Does not know what an event says.
"""

from __future__ import annotations

DONE = b"data: [DONE]"
HOLD_MAX_BYTES = 1 << 20
"""A longer line than this is no event that anyone waits for whole: it goes on as it comes."""
_TAIL_BYTES = 64


class LineHold:
    """Splits a stream at its last line end."""

    __slots__ = ("_held", "_tail")

    def __init__(self) -> None:
        self._held = b""
        self._tail = b"\n\n"

    def feed(self, chunk: bytes) -> bytes:
        """What may go on now: everything up to the last line end."""
        if not self._held and chunk.endswith(b"\n"):
            return self._give(chunk)
        data = self._held + chunk if self._held else chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > HOLD_MAX_BYTES:
            end = len(data)
        self._held = data[end:]
        return self._give(data[:end])

    def rest(self) -> bytes:
        """The held back line of a stream that ended well."""
        held, self._held = self._held, b""
        return self._give(held)

    def seam(self) -> bytes:
        """What must stand between the bytes given out so far and an event of our own. Drops the torn line."""
        self._held = b""
        if self._tail.endswith((b"\n\n", b"\n\r\n", b"\r\r")):
            return b""
        # After a lone CR one LF would only complete its line end.
        return b"\n" if self._tail.endswith(b"\n") else b"\n\n"

    @property
    def finished(self) -> bool:
        """Whether the stream said itself that the answer is complete."""
        return DONE in (self._tail + self._held)

    def _give(self, out: bytes) -> bytes:
        self._tail = out[-_TAIL_BYTES:] if len(out) >= _TAIL_BYTES else (self._tail + out)[-_TAIL_BYTES:]
        return out
