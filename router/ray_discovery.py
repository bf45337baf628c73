"""Workers found on a Ray cluster: the replicas that say on the fleet's board that they serve.

Keeps true: while the head is away the workers known last stay; the event loop never waits for Ray. A router that Ray
itself started does not use this: its replica reads the board and writes a file (ray_app.py), so that the router's
process has no Ray in it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

from trieway.serving.config import ConfigError
from trieway.serving.ray_entries import Entry, EntryTable

log = logging.getLogger(__name__)

POLL_S = 1.0


class RayBoard:
    """The discovery of `--discover ray`. `entries` reads the board, in a thread."""

    def __init__(
        self,
        entries: Callable[[], list[Entry]],
        *,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = entries
        self._poll_s = poll_s
        self._clock = clock

    async def watch(self) -> AsyncIterator[frozenset[str]]:
        """Whole sets, for ever."""
        table = EntryTable()
        told: frozenset[str] | None = None
        away = False
        while True:
            try:
                table.read(await asyncio.to_thread(self._entries), self._clock())
                away = False
                if table.serving() != told:
                    told = table.serving()
                    yield told
            except Exception as error:
                if not away:
                    log.warning("the Ray cluster's board cannot be read, the workers known stay: %s", error)
                away = True
            await asyncio.sleep(self._poll_s)


def attached(fleet: str) -> RayBoard:
    """Attaches to the cluster that RAY_ADDRESS names, or the one on this machine. Raises ConfigError."""
    try:
        from trieway.serving.ray_attach import attach
        from trieway.serving.ray_board import Board
    except ImportError:
        raise ConfigError("--discover ray needs Ray: pip install 'trieway[ray]'") from None
    try:
        attach(None)
    except ConnectionError as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"no Ray cluster is found; set RAY_ADDRESS=host:port ({text[:200]})") from None
    return RayBoard(Board(fleet).entries)
