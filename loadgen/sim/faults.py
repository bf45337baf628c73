"""Faults: what can go wrong, a plan of it drawn from a seed, and the healing after which all must end.

Keeps true: the plan is a list of values, drawn before the world runs; after `heal` nothing is broken any more and
nothing breaks. Does not know what must hold (checks.py).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trieway.loadgen.sim.fleet import Fleet
from trieway.meta_tree.ids import WorkerId


class Kind(StrEnum):
    """What happens."""

    CRASH = "crash"
    """A worker's process dies and is started again after `seconds`."""
    SLOW = "slow"
    """A worker computes at `amount` of its speed for `seconds`."""
    FEED_CUT = "feed_cut"
    """A stream from a worker to a router breaks."""
    PARTITION = "partition"
    """Nothing passes between a worker and a router for `seconds`."""
    FLUSH = "flush"
    """An operator drops a worker's cache."""
    SKEW = "skew"
    """A worker's or a router's clock runs at `amount` of the true rate for `seconds`."""
    JOIN = "join"
    LEAVE = "leave"
    ROUTER_RESTART = "router_restart"
    HANG_UP = "hang_up"
    """A client goes away in the middle of its call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One event. `worker`, `router` and `call` are indices among those there at the time, taken round."""

    at_s: float
    kind: Kind
    worker: int = 0
    router: int = 0
    seconds: float = 0.0
    amount: float = 1.0
    call: int = 0


WEIGHTS: dict[Kind, int] = {
    Kind.CRASH: 4, Kind.SLOW: 2, Kind.FEED_CUT: 4, Kind.PARTITION: 3, Kind.FLUSH: 1, Kind.SKEW: 1, Kind.JOIN: 1,
    Kind.LEAVE: 1, Kind.ROUTER_RESTART: 2, Kind.HANG_UP: 4,
}  # fmt: skip


def draw(rng: random.Random, count: int, begin_s: float, end_s: float) -> list[Fault]:
    """So many faults between two times, in order."""
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return sorted((_one(rng, kind, begin_s, end_s) for kind in kinds), key=lambda fault: fault.at_s)


def _one(rng: random.Random, kind: Kind, begin_s: float, end_s: float) -> Fault:
    amount = 1.0
    if kind is Kind.SLOW:
        amount = rng.uniform(0.1, 0.5)
    elif kind is Kind.SKEW:
        amount = rng.choice([0.97, 0.999, 1.001, 1.03])
    return Fault(
        at_s=rng.uniform(begin_s, end_s),
        kind=kind,
        worker=rng.randrange(64),
        router=rng.randrange(64),
        seconds=rng.choice([0.02, 0.3, 1.0, 3.0, 8.0]) * rng.uniform(0.5, 1.5),
        amount=amount,
        call=rng.randrange(4096),
    )


class Faults:
    """A plan upon a fleet. Everything ends at `heal_at`."""

    def __init__(self, fleet: Fleet, plan: Sequence[Fault], heal_at: float) -> None:
        self._fleet = fleet
        self._heal_at = heal_at
        for fault in plan:
            fleet.timeline.at(fault.at_s, self._happen, fault)
        fleet.timeline.at(heal_at, self.heal)

    def _happen(self, fault: Fault) -> None:
        fleet = self._fleet
        names = list(fleet.workers)
        if not names:
            return
        name = names[fault.worker % len(names)]
        router = fleet.routers[fault.router % len(fleet.routers)]
        until = min(fleet.timeline.now + fault.seconds, self._heal_at)
        fleet.note("fault", fault.kind, name, router.name)
        match fault.kind:
            case Kind.CRASH:
                fleet.crash(name, until - fleet.timeline.now)
            case Kind.SLOW:
                self._set_speed(name, fault.amount)
                fleet.timeline.at(until, self._set_speed, name, 1.0)
            case Kind.FEED_CUT:
                follower = router.followers.get(name)
                if router.up and follower is not None and follower.feed is not None:
                    follower.ended()
            case Kind.PARTITION:
                fleet.network.cut(router.name, name)
                fleet.timeline.at(until, fleet.network.heal, router.name, name)
            case Kind.FLUSH:
                if fleet.workers[name].up:
                    fleet.workers[name].flush()
            case Kind.SKEW:
                self._skew(name, router.name, fault.amount)
                fleet.timeline.at(until, self._skew, name, router.name, 1.0)
            case Kind.JOIN:
                if len(names) <= len(fleet.setup.workers):
                    fleet.join(fleet.setup.workers[fault.worker % len(fleet.setup.workers)])
            case Kind.LEAVE:
                if len(names) > 1:
                    fleet.leave(name)
            case Kind.ROUTER_RESTART:
                fleet.restart_router(fleet.routers.index(router), until - fleet.timeline.now)
            case Kind.HANG_UP:
                under_way = list(fleet.clients.pending)
                if under_way:
                    fleet.clients.hang_up(under_way[fault.call % len(under_way)])

    def _set_speed(self, name: WorkerId, speed: float) -> None:
        worker = self._fleet.workers.get(name)
        if worker is not None:
            worker.set_speed(speed)

    def _skew(self, worker_name: WorkerId, router_name: str, rate: float) -> None:
        worker = self._fleet.workers.get(worker_name)
        if worker is not None:
            worker.skew(rate)
        for router in self._fleet.routers:
            if router.name == router_name:
                router.clock.skew(rate)

    def heal(self) -> None:
        """Nothing is broken any more; what is down is started by what planned it."""
        fleet = self._fleet
        fleet.note("heal")
        fleet.network.heal_all()
        for name in list(fleet.workers):
            self._set_speed(name, 1.0)
            fleet.workers[name].skew(1.0)
        for router in fleet.routers:
            router.clock.skew(1.0)
