"""Workers found by Kubernetes: the ready endpoints of a Service, by list and watch.

Keeps true: what is yielded is what the API server said last; an event that was lost (a broken watch, 410 Gone, a server
that forgot it) is healed by listing again, at the latest after `RELIST_S`; while the API server is away the workers
known last stay; an address that passed to another pod leaves the set for one step. Never ends and never raises.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from trieway.router.endpoint_slices import SliceTable
from trieway.router.kubernetes_api import ApiError, ApiGone, Cluster, KubernetesApi

log = logging.getLogger(__name__)

SHORT_WATCH_S = 0.2
"""A watch that ends sooner without a word is a failure, or it would be opened again without a pause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchPace:
    """How long a watch lasts, how often all is listed again, how long to wait after a failure. Seconds."""

    watch_s: int = 120
    relist_s: float = 600.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0


class Kubernetes:
    """The discovery of `--discover kubernetes`. `rng` spreads the routers' requests. `leaving`: a pod that ends keeps
    its requests until it turns them away itself."""

    def __init__(
        self,
        cluster: Cluster,
        port_name: str,
        rng: random.Random,
        *,
        leaving: bool = False,
        pace: WatchPace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._pace = pace or WatchPace()
        self._rng = rng
        self._clock = clock
        self._table = SliceTable(port_name, leaving=leaving)
        self._told: frozenset[str] | None = None
        self._failures = 0
        self.lists = 0
        """How often all was listed; for tests and for the curious."""

    async def watch(self) -> AsyncIterator[frozenset[str]]:
        """Whole sets of URLs, for ever."""
        api = KubernetesApi(self._cluster)
        try:
            while True:
                try:
                    async for urls in self._follow(api):
                        yield urls
                except ApiGone:
                    log.info("Kubernetes no longer knows the watched version: listing again")
                except ApiError as error:
                    self._say(error)
                    await asyncio.sleep(self._pause_s())
        finally:
            await api.close()

    async def _follow(self, api: KubernetesApi) -> AsyncIterator[frozenset[str]]:
        """Lists once and watches until it is time to list again. Raises ApiGone, ApiError."""
        slices, version = await api.list()
        self.lists += 1
        self._table.replace(slices)
        for urls in self._news():
            yield urls
        until = self._clock() + self._pace.relist_s * self._rng.uniform(0.8, 1.2)
        while self._clock() < until:
            seconds = max(1, int(self._pace.watch_s * self._rng.uniform(0.8, 1.2)))
            began, quiet = self._clock(), True
            async for change in api.watch(version, seconds=seconds):
                self._failures, quiet = 0, False
                version = change.item.metadata.resourceVersion or version
                if change.kind in ("ADDED", "MODIFIED"):
                    self._table.put(change.item)
                elif change.kind == "DELETED":
                    self._table.drop(change.item.metadata.name)
                for urls in self._news():
                    yield urls
            if quiet and self._clock() - began < SHORT_WATCH_S:
                raise ApiError("a watch was ended as soon as it began")
        self._failures = 0

    def _news(self) -> list[frozenset[str]]:
        """What to tell: nothing where nothing changed; first without the URLs that lead to another pod now."""
        renewed, urls = self._table.renewed(), self._table.urls()
        told: list[frozenset[str]] = []
        if renewed and self._told is not None and renewed & self._told:
            told.append(urls - renewed)
        if told or urls != self._told:
            told.append(urls)
            self._told = urls
        return told

    def _say(self, error: ApiError) -> None:
        self._failures += 1
        known = "none yet" if self._told is None else f"{len(self._told)} known"
        level = logging.ERROR if self._failures in (1, 10) or self._failures % 100 == 0 else logging.DEBUG
        log.log(level, "discovery by Kubernetes (%s workers stay): %s", known, error)

    def _pause_s(self) -> float:
        longest = min(self._pace.backoff_max_s, self._pace.backoff_s * 2.0 ** min(self._failures - 1, 16))
        return longest * self._rng.uniform(0.5, 1.0)
