"""How workers are found: anything that yields the whole set of URLs whenever it changes.

Keeps true: a source yields complete sets, never differences, so that a missed change heals with the next one. Does not
know what is done with them (registry.py).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from trieway.serving.config import ConfigError, RouterConfig


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


def discovery_of(config: RouterConfig) -> Discovery:
    """The source that the configuration names. Raises ConfigError for what it lacks; imports only what it needs."""
    if config.discover == "kubernetes":
        from trieway.router.kubernetes_api import Cluster
        from trieway.router.kubernetes_discovery import Kubernetes

        rng, leaving = random.Random(config.seed), config.kubernetes_leaving
        return Kubernetes(Cluster.of(config), config.kubernetes_port_name, rng, leaving=leaving)
    if config.discover == "file":
        if config.workers_file is None:
            raise ConfigError("--discover file needs --workers-file FILE, one worker's URL a line")
        from trieway.router.file_discovery import File

        return File(config.workers_file)
    if config.discover == "ray":
        from trieway.router.ray_discovery import attached

        return attached(config.fleet)
    return Static(config.workers)
