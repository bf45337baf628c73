"""The seam of the hot path: request bytes in, a decision, answer bytes out.

Keeps true: nothing here knows ASGI, a socket or a web framework, so the ASGI form (asgi.py) and a later one at the
asyncio Protocol level drive the same code and pass the same behaviour suite. Does not know how a worker is chosen or
reached: dispatch.py does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

Kind: TypeAlias = Literal["chat", "completion"]
HeaderList: TypeAlias = list[tuple[bytes, bytes]]

HOT_PATHS: dict[str, Kind | None] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/cache/prefix": None,
}
"""Paths whose POST belongs to the hot path, with their bodies' kind (None: either); the rest is the control plane's."""


@dataclass(kw_only=True, slots=True)
class HotRequest:
    """One completions request as it came in. `headers` have lower-case names; `target` is the raw path and query.

    `kind` None: the body tells.
    """

    kind: Kind | None
    target: str
    headers: HeaderList
    body: bytes

    @property
    def path(self) -> str:
        """The target without its query: one of `HOT_PATHS` on the hot path."""
        return self.target.partition("?")[0]


class Responder(Protocol):
    """Where the answer goes. `start` once, then `write` until `last`; both wait while the client reads slowly."""

    async def start(self, status: int, headers: HeaderList) -> None: ...

    async def write(self, data: bytes, *, last: bool = False) -> None: ...


class DirectResponder(Responder, Protocol):
    """A responder that may also be written to without awaiting, once started: a stream's events cost no task then."""

    def put(self, data: bytes) -> bool:
        """Writes at once. False: the client is behind; await `room` before the next one."""
        ...

    async def room(self) -> None:
        """Until the client has caught up."""
        ...


class HotPath(Protocol):
    """Serves completions requests.

    `serve` answers everything, errors too, through the responder; if it returns before the last write, the answer
    broke and the connection must be closed. Its caller cancels it when the client goes away; whatever was booked is
    released by then.
    """

    async def serve(self, request: HotRequest, out: Responder) -> None: ...
