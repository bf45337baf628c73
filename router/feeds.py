"""Keeps one worker known: probe, handshake, feed, over and over, for as long as the worker is in the registry.

Keeps true: the core hears at once when a worker's process dies (refused, not silent) and when it is back; a worker that
speaks another wire, block size or seed gets no traffic and a loud line in the log; a foreign worker is never sent the
fleet's token. Does not know what the frames say (meta_tree) nor what follows for routing (router/core).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trieway.meta_tree.frames import WireError
from trieway.meta_tree.ids import GroupId
from trieway.router.core import AskBuckets, CoreEffect, Resubscribe, RouterCore
from trieway.router.links import Link, Links, LinkState, source_of
from trieway.router.upstream import ConnectFailed, UpstreamError
from trieway.router.worker_api import Unusable, WorkerApi
from trieway.serving.chat_template import TemplateInvalid
from trieway.serving.handshake import ModelCard
from trieway.serving.prompt_key import KeySource

log = logging.getLogger(__name__)

SILENT_PROBES_MAX = 3
"""So many unanswered probes in a row make a worker dead, refused or not."""
REFUSED_PROBES = 4
"""A refused worker is looked at this many times less often than one that is away."""
SHORT_FEED_S = 0.5
"""Least time between two openings of a feed."""
MODELS_EVERY_S = 15.0
TURN_S = 0.002
"""A feed lets requests pass after so much work: a snapshot must not hold up everybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How often to look, how long to wait."""

    probe_interval_s: float = 0.5
    heartbeat_timeout_s: float = 5.0


class Follower:
    """Follows one link. `run` ends only by being cancelled."""

    def __init__(
        self,
        *,
        link: Link,
        links: Links,
        core: RouterCore,
        api: WorkerApi,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._links = links
        self._core = core
        self._api = api
        self._pace = pace
        self._clock = clock
        self._silent_probes = 0
        self._models_at = self._feed_at = float("-inf")
        self._feed: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Looks, follows, waits; then again."""
        try:
            while True:
                self._link.wake.clear()
                pause_s = await self._look()
                try:
                    async with asyncio.timeout(pause_s):
                        await self._link.wake.wait()
                except TimeoutError:
                    pass
        finally:
            for task in (self._asking, self._feed):
                if task is not None:
                    task.cancel()

    def perform(self, effects: Iterable[CoreEffect]) -> None:
        """Does what the core wants done about this worker's feed."""
        for effect in effects:
            match effect:
                case AskBuckets(indices=indices):
                    if self._asking is None or self._asking.done():
                        self._asking = asyncio.ensure_future(self._ask(indices))
                case Resubscribe(reason=reason):
                    log.info("worker %s: feed is opened again: %s", self._link.worker, reason)
                    if self._feed is not None:
                        self._feed.cancel()

    async def _look(self) -> float:
        """One probe and all that follows from it. Returns the pause until the next one in seconds."""
        link = self._link
        try:
            probed = await self._api.probe(link.url)
            self._silent_probes = 0
            if not probed.ready:
                self._away("it says that it is not ready", lose=False)
                return self._pace.probe_interval_s
            if probed.fleet:
                return await self._follow()
            await self._see_foreign()
            return max(1.0, self._pace.probe_interval_s)
        except (Unusable, WireError, TemplateInvalid) as error:
            self._refuse(str(error))
            return self._pace.probe_interval_s * REFUSED_PROBES
        except UpstreamError as error:
            self._unanswered(error)
            return self._pace.probe_interval_s
        except Exception as error:
            log.exception("worker %s: following it failed", link.worker)
            self._refuse(f"following it failed: {type(error).__name__}")
            return self._pace.probe_interval_s * REFUSED_PROBES

    def _unanswered(self, error: UpstreamError) -> None:
        self._silent_probes += 1
        refused = isinstance(error, ConnectFailed) and error.refused
        if refused or self._silent_probes >= SILENT_PROBES_MAX:
            self._away("nobody listens there" if refused else f"it does not answer: {error}", lose=True)

    # A worker of ours.

    async def _follow(self) -> float:
        link = self._link
        card = await self._api.card(link.url)
        self._enrol(card)
        # A feed that ended at once is not opened again at once.
        await asyncio.sleep(max(0.0, self._feed_at + SHORT_FEED_S - self._clock()))
        self._feed_at = self._clock()
        # A task of its own, so that `perform` can end this feed alone.
        self._feed = asyncio.ensure_future(self._read_feed())
        try:
            await self._feed
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        except UpstreamError as error:
            log.info("worker %s: feed ended: %s", link.worker, error)
        except WireError as error:
            self._core.feed_lost(link.worker, self._clock(), gone=False)
            raise WireError(f"its feed cannot be read: {error}") from error
        finally:
            self._feed.cancel()
        self._core.feed_lost(link.worker, self._clock(), gone=False)
        return 0.0

    async def _read_feed(self) -> None:
        link, core = self._link, self._core
        since, epoch = core.resume(link.worker)
        silence_max_s = self._pace.heartbeat_timeout_s
        async with self._api.feed(link.url, since, epoch, silence_max_s=silence_max_s) as batches:
            async for frames in batches:
                turn_ends = self._clock() + TURN_S
                for frame in frames:
                    now = self._clock()
                    self.perform(core.feed_frame(link.worker, frame, now))
                    if now > turn_ends:
                        await asyncio.sleep(0)
                        turn_ends = self._clock() + TURN_S

    def _enrol(self, card: ModelCard) -> None:
        """Tells the core of a worker that is new, back, or no longer what it was."""
        link = self._link
        if link.state is LinkState.UP and link.card == card:
            return  # only its feed was away
        if link.card is None or link.card.group != card.group:
            link.source = source_of(card)
        link.card, link.fleet_token = card, self._api.fleet_token
        link.model, link.aliases, link.group = card.model, tuple(card.aliases), GroupId(card.group)
        self._announce(context_tokens=card.context_tokens, kv_tokens=card.kv_tokens, page_size=card.page_size)
        self._up(f"serves {card.model}")

    def _announce(self, *, context_tokens: int | None = None, kv_tokens: int | None = None, page_size: int = 1) -> None:
        link = self._link
        assert link.group is not None
        self._links.regroup()
        self._core.add_worker(
            link.worker,
            link.url,
            self._clock(),
            model=link.model,
            aliases=link.aliases,
            group=link.group,
            has_feed=link.fleet,
            context_tokens=context_tokens,
            kv_tokens=kv_tokens,
            page_size=page_size,
        )
        if link.draining:
            self._core.drain(link.worker, self._clock())

    async def _ask(self, indices: tuple[int, ...]) -> None:
        try:
            for frame in await self._api.buckets(self._link.url, indices):
                self.perform(self._core.feed_frame(self._link.worker, frame, self._clock()))
        except (UpstreamError, Unusable, WireError) as error:
            log.info("worker %s: %d buckets were asked for in vain: %s", self._link.worker, len(indices), error)

    # A foreign worker.

    async def _see_foreign(self) -> None:
        link, now = self._link, self._clock()
        if link.state is LinkState.UP and not link.fleet and now - self._models_at < MODELS_EVERY_S:
            return
        models = await self._api.models(link.url)
        self._models_at = now
        told = (models[0], tuple(models[1:]))
        if link.state is LinkState.UP and (link.model, link.aliases) == told:
            return
        link.card, link.fleet_token, link.source = None, None, KeySource()
        link.model, link.aliases = told
        link.group = GroupId(f"foreign:{link.model}")
        self._announce()
        self._up(f"serves {link.model} (foreign: its cache is guessed from routing history)")

    # States.

    def _up(self, what: str) -> None:
        if self._link.state is not LinkState.UP:
            log.info("worker %s at %s is up: it %s", self._link.worker, self._link.url, what)
        self._link.state, self._link.note = LinkState.UP, ""

    def _away(self, why: str, *, lose: bool) -> None:
        link = self._link
        if link.state is not LinkState.AWAY or link.note != why:
            log.warning("worker %s at %s is away: %s", link.worker, link.url, why)
        self._set_down(LinkState.AWAY, why)
        if lose:
            link.lose()

    def _refuse(self, why: str) -> None:
        link = self._link
        if link.state is not LinkState.REFUSED or link.note != why:
            log.error("worker %s at %s is refused: %s", link.worker, link.url, why)
        self._set_down(LinkState.REFUSED, why)

    def _set_down(self, state: LinkState, why: str) -> None:
        self._link.state, self._link.note = state, why
        if self._core.has_worker(self._link.worker):
            self._core.feed_lost(self._link.worker, self._clock(), gone=True)
