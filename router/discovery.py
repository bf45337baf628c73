"""How workers are found: anything that yields the whole set of URLs whenever it changes.

Keeps true: a source yields complete sets, never differences, so that a missed change heals with the next one. Does not
know what is done with them (registry.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol


class Discovery(Protocol):
    """A source of worker URLs."""

    def watch(self) -> AsyncIterator[frozenset[str]]:
        """Yields the set of worker URLs, first as it is, then after each change."""
        ...


class Static:
    """The workers named in the configuration."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = frozenset(urls)

    async def watch(self) -> AsyncIterator[frozenset[str]]:
        """Yields the set once."""
        yield self._urls
