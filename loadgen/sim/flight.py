"""A request at a router: what it asks, how far its attempts are, who hears of it.

Keeps true: nothing by itself; router.py changes it. Does not know the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trieway.loadgen.sim.values import Ask, Done, End
from trieway.meta_tree.ids import WorkerId
from trieway.router.core import Booking

if TYPE_CHECKING:
    from trieway.loadgen.sim.exchange import Exchange


class Client(Protocol):
    """Who hears of a flight."""

    def on_first(self, flight: Flight) -> None: ...

    def on_end(self, flight: Flight, end: End, done: Done | None) -> None: ...


class Flight:
    """One request at one router, from its arrival to its end there."""

    __slots__ = (
        "ask", "attempts", "booking", "cached_tokens", "client", "ended", "exchange", "failed", "predicted_tokens",
        "prompt_tokens", "said", "tried", "worker",
    )  # fmt: skip

    def __init__(self, ask: Ask, client: Client) -> None:
        self.ask = ask
        self.client = client
        self.attempts = 0
        self.tried: frozenset[WorkerId] = frozenset()
        self.booking: Booking | None = None
        self.exchange: Exchange | None = None
        self.failed: End | None = None
        self.said = False  # the client has seen a token
        self.ended = False
        self.worker: WorkerId | None = None
        self.predicted_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.prompt_tokens: int | None = None
