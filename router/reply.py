"""An answer to one client: started once, ended once, whatever happens in between.

Keeps true: `status` is what the client got (0: nothing yet); an error after the start never becomes a second start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import cast

from trieway.router.hot_path import DirectResponder, HeaderList, Responder
from trieway.serving import headers as names
from trieway.serving.errors import ApiError, error_body

LAST_WORDS_S = 1.0


async def last_words(said: Awaitable[None]) -> None:
    """What a cancelled request still says to its client: not for ever, for the client may have stopped reading."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await said


class Reply:
    """Wraps a responder and remembers how far the answer is. `extra`: headers of every answer, errors too."""

    __slots__ = ("_extra", "_out", "direct", "ended", "event_stream", "status")

    def __init__(self, out: Responder, extra: HeaderList | None = None) -> None:
        self._out = out
        self._extra = extra
        self.status = 0
        self.ended = False
        self.event_stream = False
        self.direct: DirectResponder | None = cast("DirectResponder", out) if hasattr(out, "put") else None
        """The responder, if it can be written to without awaiting; only between `start` and the last `write`."""

    @property
    def started(self) -> bool:
        return self.status != 0

    async def start(self, status: int, headers: HeaderList) -> None:
        assert not self.started, "an answer starts once"
        self.status = status
        self.event_stream = any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)
        await self._out.start(status, headers + self._extra if self._extra else headers)

    async def write(self, data: bytes, *, last: bool = False) -> None:
        self.ended = self.ended or last
        await self._out.write(data, last=last)

    async def cut(self, event: bytes) -> None:
        """Ends an answer that broke: with `event` where the client reads events; anything else is left without an end,
        for an orderly one would make it look whole."""
        if self.event_stream and not self.ended:
            await self.write(event, last=True)

    async def error(self, error: ApiError, request_id: str, attempts: int | None = None) -> None:
        """Answers with an error; the answer must not have started."""
        body = error_body(error)
        headers: HeaderList = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (names.REQUEST_ID.encode(), request_id.encode()),
        ]
        if attempts is not None:
            headers.append((names.ATTEMPTS.encode(), b"%d" % attempts))
        headers += [(n.encode(), v.encode()) for n, v in error.headers]
        await self.start(error.status, headers)
        await self.write(body, last=True)
