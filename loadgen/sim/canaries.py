"""Planted bugs, each of a kind that the checks must catch: a simulation that finds nothing must be able to.

Keeps true: a canary changes one behaviour in the objects of one fleet (their methods are replaced, one by one), so that
the next fleet is sound again. Does not know by which check it is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.sim.jumps import Job
from trieway.loadgen.sim.router import SimRouter
from trieway.loadgen.sim.worker import SimWorker
from trieway.meta_tree.events import CacheEvent, Removed, Stored
from trieway.meta_tree.ids import WorkerId
from trieway.router.core import Outcome, RouterCore
from trieway.worker.core.sequence import Outcome as StepOutcome
from trieway.worker.core.sequence import Request

Plant = Callable[[Fleet], None]


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replaces a method of one object by `around(method, ...)`."""
    method = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: around(method, *args, **kwargs))


def _cores(change: Callable[[RouterCore], None]) -> Plant:
    """The change to every router's core, now and after each start."""

    def plant(fleet: Fleet) -> None:
        def started(router: SimRouter) -> Callable[..., None]:
            def around(start: Callable[..., None], *args: Any) -> None:
                start(*args)
                change(router.core)

            return around

        for router in fleet.routers:
            change(router.core)
            _wrap(router, "start", started(router))

    return plant


def _workers(change: Callable[[SimWorker], None]) -> Plant:
    """The change to every worker, now and after each boot."""

    def plant(fleet: Fleet) -> None:
        def booted(worker: SimWorker) -> Callable[..., None]:
            def around(boot: Callable[..., None], **kwargs: Any) -> None:
                boot(**kwargs)
                change(worker)

            return around

        for worker in fleet.workers.values():
            change(worker)
            _wrap(worker, "boot", booted(worker))

    return plant


# Routers.


def _lost_removal(core: RouterCore) -> None:
    def around(apply: Callable[..., int], worker: WorkerId, event: CacheEvent) -> int:
        if isinstance(event, Removed):
            event = Removed(namespace_id=event.namespace_id, hashes=(), tier=event.tier)
        return apply(worker, event)

    _wrap(core._view, "apply", around)


def _ghost_blocks(core: RouterCore) -> None:
    _wrap(core._view, "reset_worker", lambda reset, worker: None)


def _leaked_booking(core: RouterCore) -> None:
    def around(release: Callable[..., None], booking_id: int, outcome: Outcome, now: float) -> None:
        if outcome is not Outcome.CANCELLED:
            release(booking_id, outcome, now)

    _wrap(core, "release", around)


def _released_twice(core: RouterCore) -> None:
    def around(release: Callable[..., None], booking_id: int, outcome: Outcome, now: float) -> None:
        release(booking_id, outcome, now)
        if outcome is Outcome.WORKER_ERROR:
            release(booking_id, outcome, now)

    _wrap(core, "release", around)


def _dead_is_alive(core: RouterCore) -> None:
    def around(lost: Callable[..., None], worker: WorkerId, now: float, *, gone: bool) -> None:
        lost(worker, now, gone=False)

    _wrap(core, "feed_lost", around)


def _no_budget(core: RouterCore) -> None:
    _wrap(core._view, "_make_room", lambda make_room, tree, blocks: None)


def _forgotten_exclusion(core: RouterCore) -> None:
    _wrap(core, "choose", lambda choose, query, now: choose(replace(query, exclude=frozenset()), now))


def _ended_twice(fleet: Fleet) -> None:
    def around(end: Callable[..., None], *args: Any) -> None:
        end(*args)
        end(*args)

    for router in fleet.routers:
        _wrap(router, "_end", around)


# Workers.


def _leaked_page(worker: SimWorker) -> None:
    pool = worker.scheduler.kv.pool

    def around(cancel: Callable[..., bool], name: str, now: float) -> bool:
        found = cancel(name, now)
        if pool._free:
            pool._free.pop()
        return found

    _wrap(worker.scheduler, "cancel", around)


def _freed_twice(worker: SimWorker) -> None:
    pool = worker.scheduler.kv.pool

    def around(free: Callable[..., None], pages: Sequence[int]) -> None:
        free(pages)
        pool._free.extend(pages[:1])

    _wrap(pool, "free_cached", around)


def _boasting_feed(worker: SimWorker) -> None:
    def boast(event: CacheEvent) -> CacheEvent:
        if isinstance(event, Stored):
            return replace(event, usable=tuple(count + worker.setup.page_size for count in event.usable))
        return event

    _wrap(worker.publisher, "publish", lambda publish, events: publish([boast(event) for event in events]))


def _silent_eviction(worker: SimWorker) -> None:
    def around(publish: Callable[..., int], events: Sequence[CacheEvent]) -> int:
        return publish([event for event in events if not isinstance(event, Removed)])

    _wrap(worker.publisher, "publish", around)


def _shared_namespace(worker: SimWorker) -> None:
    """Salts do not reach the tree."""
    first: list[Request] = []

    def around(add: Callable[..., Any], request: Request, now: float) -> Any:
        first.append(request)
        return add(replace(request, chain=first[0].chain), now)

    _wrap(worker.scheduler, "add", around)


def _lost_answer(worker: SimWorker) -> None:
    ended = [0]

    def around(answer: Callable[..., None], job: Job, outcome: StepOutcome, now: float) -> None:
        if outcome.finish is not None and outcome.first is None:
            ended[0] += 1
            if ended[0] % 5 == 0:
                del worker.jobs[job.exchange.id]
                return
        answer(job, outcome, now)

    _wrap(worker, "_answer", around)


def _hung_connection(fleet: Fleet) -> None:
    """A worker's process dies, and nobody ends the connections to it."""

    def forgetful(worker: SimWorker) -> Callable[..., None]:
        def around(crash: Callable[..., None]) -> None:
            worker.jobs = {}
            crash()

        return around

    for worker in fleet.workers.values():
        _wrap(worker, "crash", forgetful(worker))
    for router in fleet.routers:
        _wrap(router, "lose", lambda lose, worker: None)


class Restless:
    """Whoever plays a world with it twice gets two traces: state that outlives a world."""

    def __init__(self) -> None:
        self._worlds = 0

    def __call__(self, fleet: Fleet) -> None:
        self._worlds += 1
        for _ in range(self._worlds):
            fleet.network.rng.random()


CANARIES: Mapping[str, Plant] = {
    "lost_removal": _cores(_lost_removal),
    "ghost_blocks": _cores(_ghost_blocks),
    "leaked_booking": _cores(_leaked_booking),
    "released_twice": _cores(_released_twice),
    "dead_is_alive": _cores(_dead_is_alive),
    "no_budget": _cores(_no_budget),
    "forgotten_exclusion": _cores(_forgotten_exclusion),
    "ended_twice": _ended_twice,
    "leaked_page": _workers(_leaked_page),
    "freed_twice": _workers(_freed_twice),
    "boasting_feed": _workers(_boasting_feed),
    "silent_eviction": _workers(_silent_eviction),
    "shared_namespace": _workers(_shared_namespace),
    "lost_answer": _workers(_lost_answer),
    "hung_connection": _hung_connection,
}
