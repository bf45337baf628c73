"""A whole router put together from its configuration, ready to be served by any ASGI server.

Keeps true: everything that `Router` starts ends with `close`. Does not know listening sockets or signals (main.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass

from trieway.meta_tree.chain import FleetKey
from trieway.router import listing
from trieway.router.app import Control, build_app
from trieway.router.asgi import RouterApp
from trieway.router.carrier import Carrier
from trieway.router.core import CoreConfig, RouterCore, WorkerRow
from trieway.router.discovery import Discovery, discovery_of
from trieway.router.dispatch import Dispatcher
from trieway.router.feeds import Pace
from trieway.router.links import Links, Patience
from trieway.router.metrics import RouterMetrics
from trieway.router.pass_on import PassOn
from trieway.router.questions import Asker
from trieway.router.registry import Registry
from trieway.router.upstream import Upstream
from trieway.router.wire_upstream import WireUpstream
from trieway.router.worker_api import WorkerApi
from trieway.serving.auth import KeyRing, read_fleet_secret
from trieway.serving.config import RouterConfig
from trieway.serving.errors import ApiError
from trieway.serving.tracing import Tracer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Secrets:
    """What a router must know and never show."""

    ring: KeyRing
    key: FleetKey

    @classmethod
    def load(cls, config: RouterConfig) -> Secrets:
        """Reads the files that the configuration names. Raises ConfigError."""
        ring = KeyRing.from_files(config.api_keys_file, config.admin_key_file)
        return cls(ring=ring, key=FleetKey.from_secret(read_fleet_secret(config.fleet_secret_file)))


class Router:
    """`app` is the ASGI app. Create it inside the event loop that serves it. `tracer`: None records nothing."""

    def __init__(
        self,
        config: RouterConfig,
        secrets: Secrets,
        discovery: Discovery | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.core = RouterCore(core_config(config, secrets.key), random.Random(config.seed))
        self.links = Links()
        self.metrics = RouterMetrics()
        self.upstream = Upstream(connect_timeout_s=config.connect_timeout_s)
        self.carrier: Carrier = self.upstream
        if config.data_plane == "protocol":
            self.carrier = WireUpstream(self.upstream, connect_timeout_s=config.connect_timeout_s)
        api = WorkerApi(self.upstream, secrets.key, frame_bytes_max=config.frame_bytes_max, feeds=self.carrier)
        self.registry = Registry(
            core=self.core,
            links=self.links,
            api=api,
            pace=Pace(probe_interval_s=config.probe_interval_s, heartbeat_timeout_s=config.heartbeat_timeout_s),
            workers_max=config.workers_max,
            drain_timeout_s=config.total_timeout_s,
            left=self.metrics.forget,
        )
        asker = Asker(links=self.links, ring=secrets.ring, key=secrets.key, vocabulary=self.registry.vocabulary)
        self.dispatcher = Dispatcher(
            core=self.core,
            asker=asker,
            links=self.links,
            upstream=self.carrier,
            metrics=self.metrics,
            patience=Patience(
                first_byte_s=config.first_byte_timeout_s,
                idle_s=config.idle_timeout_s,
                total_s=config.total_timeout_s,
            ),
            attempts_max=1 + config.retries_max,
            requests_max=config.requests_max,
            whole_max_bytes=config.response_max_bytes,
            tracer=tracer,
        )
        self._control = control = Control(
            core=self.core,
            links=self.links,
            registry=self.registry,
            asker=asker,
            pass_on=PassOn(
                self.links,
                self.upstream,
                attempts_max=1 + config.retries_max,
                keep_credentials=secrets.ring.open,
            ),
            ring=secrets.ring,
            metrics=self.metrics,
            body_max_bytes=config.body_max_bytes,
            began_at=time.monotonic(),
        )
        self.metrics.watch(self._rows, self._tree, lambda: control.readiness().share)
        self.app = RouterApp(self.dispatcher, build_app(control), body_max_bytes=config.body_max_bytes)
        self._discovering = asyncio.ensure_future(self._discover(discovery or discovery_of(config)))

    async def _discover(self, discovery: Discovery) -> None:
        async for urls in discovery.watch():
            try:
                self.registry.sync(urls)
            except ApiError as error:
                log.error("discovery named workers that cannot be taken: %s", error.message)

    def _rows(self) -> tuple[WorkerRow, ...]:
        return self.core.workers(time.monotonic())

    def _tree(self) -> dict[str, object]:
        return listing.tree(self.core, self.links, None, time.monotonic())

    async def wait_ready(self, timeout_s: float) -> None:
        """Until some worker is up and enough of the index is loaded, or the time is over."""
        until = time.monotonic() + timeout_s
        while not self._control.readiness().ready and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Ends followers, discovery and connections."""
        self._discovering.cancel()
        await asyncio.gather(self._discovering, return_exceptions=True)
        await self.registry.close()
        await self.carrier.close()
        await self.upstream.close()

    def check(self) -> None:
        """Proves the core's and the registry's sums."""
        self.core.check()
        self.registry.check()


def core_config(config: RouterConfig, key: FleetKey) -> CoreConfig:
    """The core's constants out of the router's configuration."""
    return CoreConfig(
        policy=config.policy,
        seed_id=key.seed_id,
        tree_bytes_max=config.tree_bytes_max,
        learned_blocks_max=config.approximate_blocks_max,
        workers_max=config.workers_max,
        bookings_max=config.requests_max,
        worker_bookings_max=config.worker_requests_max,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
    )
