"""What the hot path needs of a client that carries requests to workers: two forms, aiohttp's and our own wire.

Keeps true: an `Answer` is read through `chunks` and closed on every path; a closed one never returns a half-read
connection to a pool. Does not know workers, bookings or retries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from trieway.router.hot_path import HeaderList


class Answer(Protocol):
    """One answer under way, its head read."""

    status: int
    headers: HeaderList
    """As they came, names in lower case."""

    @property
    def content_type(self) -> bytes:
        """The media type, lower case, without parameters."""

    @property
    def delimited(self) -> bool:
        """Whether the answer says where it ends; without that, a cut looks like an end."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes: each item is all that has arrived. Raises `UpstreamError` where it is cut."""

    def close(self) -> None:
        """Ends the exchange."""


class PumpedAnswer(Answer, Protocol):
    """An answer that can call a sink as bytes come, without waking a task for each arrival."""

    async def pump(self, put: Callable[[bytes], bool], room: Callable[[], Awaitable[None]]) -> None:
        """The rest of the body goes to `put`, all that has arrived at once; where that gives False, `room` is awaited
        before more is read. Raises `UpstreamError` where the body is cut."""


class Carrier(Protocol):
    """A pool of connections to workers."""

    async def open(
        self, base_url: str, target: str, headers: HeaderList, body: bytes | None, *, silence_max_s: float | None = None
    ) -> Answer:
        """Posts `body` (None: gets) and returns once the answer's headers are here. The caller bounds the time.

        `silence_max_s`: longest wait for the next bytes, here and in `chunks`.

        Raises:
            UpstreamError: no answer; the exact kind says whether it was the connection, a cut or a silence.
        """
        ...

    async def close(self) -> None:
        """Closes every connection."""
