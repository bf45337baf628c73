"""The registry: which workers there are, each with its follower; adding, draining and removing them.

Keeps true: a link, a follower and (once it answered) a worker of the core come and go together; a drained worker leaves
when its last booking is released, or when its time is over. Does not know how workers are found (discovery.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from trieway.meta_tree.ids import WorkerId
from trieway.router.core import RouterCore
from trieway.router.feeds import Follower, Pace
from trieway.router.links import Group, Link, Links, LinkState
from trieway.router.upstream import UpstreamError
from trieway.router.worker_api import Unusable, WorkerApi
from trieway.serving.errors import BadRequest, Unavailable

log = logging.getLogger(__name__)

TICK_S = 0.25
URL_MAX_CHARS = 2048
VOCABULARY_WAIT_S = 3.0
"""Longest time that a request waits for a vocabulary; then it goes on without a prefix."""
VOCABULARY_PAUSE_S = 10.0


class Registry:
    """Create it inside the event loop; `close` ends all that it started. `left` hears of each removed worker."""

    def __init__(
        self,
        *,
        core: RouterCore,
        links: Links,
        api: WorkerApi,
        pace: Pace,
        workers_max: int,
        drain_timeout_s: float,
        left: Callable[[WorkerId], None] = lambda worker: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._links = links
        self._api = api
        self._pace = pace
        self._workers_max = workers_max
        self._drain_timeout_s = drain_timeout_s
        self._left = left
        self._clock = clock
        self._followers: dict[WorkerId, tuple[Follower, asyncio.Task[None]]] = {}
        self._drains: dict[WorkerId, asyncio.Task[None]] = {}
        self._named: set[WorkerId] = set()
        self._missing: dict[str, float] = {}
        """Vocabularies that were not to be had, by digest, and when to ask again."""
        self._fetching: dict[str, asyncio.Task[list[bytes]]] = {}
        self._ticker = asyncio.ensure_future(self._tick())

    def add(self, url: str) -> Link:
        """Starts to follow the worker at `url`; the same URL again gives the same link. Raises BadRequest."""
        base, worker = parse_url(url)
        known = self._links.find(worker)
        if known is not None:
            return known
        if len(self._links) >= self._workers_max:
            raise Unavailable(f"the registry is full: {self._workers_max} workers", code="registry_full")
        link = Link(worker=worker, url=base)
        self._links.add(link)
        follower = Follower(
            link=link, links=self._links, core=self._core, api=self._api, pace=self._pace, clock=self._clock
        )
        self._followers[worker] = (follower, asyncio.ensure_future(follower.run()))
        return link

    def sync(self, urls: Iterable[str]) -> None:
        """Follows discovery: new workers are added, those that it no longer names are drained. Others stay.

        A worker that is named again while it drains is followed anew: it may be another process at the same address.
        """
        named = {parse_url(url)[1]: url for url in urls}
        for worker in named.keys() - self._named:
            link = self._links.find(worker)
            if link is not None and link.draining:
                self.remove(worker)
            self.add(named[worker])
        for worker in self._named - set(named):
            if self._links.find(worker) is not None:
                self.drain(worker)
        self._named = set(named)

    def remove(self, worker: WorkerId) -> None:
        """Forgets a worker at once; requests that are with it end as they may. KeyError if unknown."""
        self._links.get(worker)
        _, task = self._followers.pop(worker)
        task.cancel()
        drain = self._drains.pop(worker, None)
        if drain is not None and drain is not asyncio.current_task():
            drain.cancel()
        self._links.remove(worker)
        if self._core.has_worker(worker):
            self._core.remove_worker(worker, self._clock())
        self._left(worker)

    def drain(self, worker: WorkerId) -> None:
        """Gives the worker nothing new and removes it when it is idle. KeyError if unknown."""
        link = self._links.get(worker)
        if link.draining:
            return
        link.draining = True
        if self._core.has_worker(worker):
            self._core.drain(worker, self._clock())
        self._drains[worker] = asyncio.ensure_future(self._finish_drain(link))

    async def _finish_drain(self, link: Link) -> None:
        try:
            async with asyncio.timeout(self._drain_timeout_s):
                await link.idle.wait()
            log.info("worker %s is drained and leaves", link.worker)
        except TimeoutError:
            log.warning("worker %s leaves with %d requests still there", link.worker, len(link.leases))
        self.remove(link.worker)

    async def vocabulary(self, group: Group) -> None:
        """Fetches the group's token -> bytes table into its source; without one the group's keys stay shorter."""
        digest = group.vocabulary_digest
        if digest is None or self._clock() < self._missing.get(digest, 0.0):
            return
        task = self._fetching.get(digest)
        if task is None:
            task = self._fetching[digest] = asyncio.ensure_future(self._fetch_vocabulary(group))
            task.add_done_callback(lambda _: self._fetching.pop(digest, None))
        try:
            async with asyncio.timeout(VOCABULARY_WAIT_S):
                table = await asyncio.shield(task)
        except TimeoutError:
            table = []
        if table:
            group.source = replace(group.source, vocabulary=table)
        else:
            self._missing[digest] = self._clock() + VOCABULARY_PAUSE_S

    async def _fetch_vocabulary(self, group: Group) -> list[bytes]:
        for link in group.links:
            if link.state is LinkState.UP and link.fleet:
                try:
                    return await self._api.vocabulary(link.url)
                except (UpstreamError, Unusable) as error:
                    log.warning("worker %s gave no vocabulary: %s", link.worker, error)
        return []

    async def _tick(self) -> None:
        """Lets the core notice that time passes."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                effects = self._core.tick(self._clock())
            except Exception:
                log.exception("the core's tick failed")
                continue
            for effect in effects:
                entry = self._followers.get(effect.worker)
                if entry is not None:
                    entry[0].perform([effect])

    async def close(self) -> None:
        """Ends every follower and drain."""
        tasks: list[asyncio.Task[Any]] = [self._ticker, *(task for _, task in self._followers.values())]
        tasks += [*self._drains.values(), *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._followers.clear()
        self._drains.clear()

    def check(self) -> None:
        """Links and followers are the same set, and every worker of the core has a link."""
        assert {link.worker for link in self._links} == set(self._followers)
        self._links.check()
        for row in self._core.workers(self._clock()):
            assert self._links.find(row.worker) is not None, f"the core knows {row.worker}, the registry does not"


def parse_url(url: str) -> tuple[str, WorkerId]:
    """The base URL without a trailing slash or /v1, and the worker's id: host:port and path. Raises BadRequest."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > URL_MAX_CHARS:
        raise BadRequest("a worker's URL is http://host:port or https://host:port", param="url")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadRequest("a worker's URL has no user, password, query or fragment", param="url")
    path = parts.path.rstrip("/").removesuffix("/v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{host}:{port}{path}", WorkerId(f"{host}:{port}{path}")
