"""A worker's replica on Ray Serve: warmed before it takes traffic, and handing its prefixes on before it goes.

Keeps true: routers hear of a worker only once it is warm; a worker that leaves first gives its most valuable prefixes
to those that stay, serving on, then turns away what is new and ends its requests; neither hand-over takes longer than
its time. Does not know how a prefix travels (handover.py).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from trieway.meta_tree.chain import FleetKey
from trieway.serving.auth import read_fleet_secret
from trieway.serving.config import WorkerConfig
from trieway.serving.config_flags import to_flags
from trieway.serving.config_values import read_value, settings
from trieway.serving.ray_entries import Entry
from trieway.serving.ray_replica import Replica, node_address
from trieway.worker.neighbours import arrive, leave

HAND_OVER_S = 20.0
WARM_S = 20.0
OTHERS_SAY_S = 2.5
"""Two turns of the board, and a little."""
ROUTERS_HEAR_S = 1.5
"""A turn of the board: from then on nothing new comes to be turned away."""
STATS_TIMEOUT_S = 3.0
RUNS_WELL = 8
"""Requests at once that a worker carries well, where its settings say no less."""
FOREVER_MS = 60_000.0


class WorkerReplica(Replica):
    """One worker, on a port of its own."""

    def __init__(
        self,
        fleet: str,
        model: str,
        settings_: dict[str, Any],
        version: str,
        ready_timeout_s: float,
        others: list[Any] | None = None,
    ) -> None:
        known = settings(WorkerConfig)
        config = WorkerConfig(**{name: read_value(known[name], value, name) for name, value in settings_.items()})
        self._running_max = min(config.running_max, RUNS_WELL)
        token = FleetKey.from_secret(read_fleet_secret(config.fleet_secret_file)).feed_token
        self._queue: tuple[float, float] = (0.0, 0.0)
        super().__init__("worker", fleet, model, version, config.drain_timeout_s, token=token)
        config = replace(
            config,
            host=config.host if settings_.get("host") else node_address(),
            port=config.port if settings_.get("port") else 0,
        )
        self.start(["worker", *to_flags(config)], ready_timeout_s=ready_timeout_s, before_ready=self._warm)

    async def __del__(self) -> None:
        """Serve's word that the replica ends."""
        if self.child is not None and self.child.alive:
            await self.leave(self._hand_over)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the policy reads (router/ray_policy.py), from the worker's own numbers."""
        stats = await self.ask("/cache/load")
        seen, waited_ms = float(stats["started_total"]), float(stats["queue_ms_total"])
        began, ended = self._queue, (seen, waited_ms)
        self._queue = ended
        queue_ms = (ended[1] - began[1]) / max(1.0, ended[0] - began[0])
        rate = float(stats["prefill_tokens_per_s"])
        waiting = float(stats["waiting_tokens"])
        ttft_ms = 0.0 if not waiting else FOREVER_MS if rate <= 0 else min(FOREVER_MS, 1000 * waiting / rate)
        return {
            "queue_ms": max(0.0, queue_ms),
            "ttft_ms": ttft_ms,
            "pressure": float(stats["running_tokens"]) / max(1.0, float(stats["kv_total_tokens"])),
            "busy": (float(stats["running"]) + float(stats["waiting"])) / self._running_max,
        }

    def _peers(self) -> list[Entry]:
        mine = self.entry
        peers = [e for e in self.table.alive("worker") if e.model == mine.model and e.state == "ready"]
        return [e for e in peers if e.replica != mine.replica]

    def _hand_over(self) -> None:
        """Gives this worker's prefixes to those that stay. Until they have them it goes on serving: who went elsewhere
        before would only compute there what is on its way."""
        self.say("leaving")
        # Others may have been told to leave at the same moment: let them say so first.
        time.sleep(OTHERS_SAY_S)
        peers = [peer.url for peer in self._peers()]
        # The whole fleet leaves: nobody to give to.
        if peers and self.child is not None:
            print(*leave(self.child.own_url, peers, self.token, HAND_OVER_S), sep="\n", flush=True)
        self.say("draining")
        time.sleep(ROUTERS_HEAR_S)

    def _warm(self) -> None:
        """Has peers give this worker their prefixes, before routers hear of it."""
        self.wait_read(STATS_TIMEOUT_S)
        assert self.child is not None
        peers = [peer.url for peer in self._peers()]
        print(*arrive(self.child.url, peers, self.token, WARM_S), sep="\n", flush=True)
