"""What must hold in a simulated fleet: after every step, and once it has come to rest.

After a step, of every process that it touched: the core's own sums (`check()`); what a worker's feed has told is what
its cache holds; every hit is on text that somebody computed there in the same namespace; the bookings that are open are
those that some flight owns; a router that has applied all that a worker has published agrees with it, block by block;
the tree is within its budget. At rest: every call has ended, nothing is booked, expected, locked or running anywhere,
every feed is whole and without drift. Nothing here changes what it looks at: not even an estimate is worked out.
"""

from __future__ import annotations

from collections.abc import Iterator

from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.sim.router import SimRouter
from trieway.loadgen.sim.worker import SimWorker
from trieway.meta_tree.digest import Digest
from trieway.meta_tree.ids import Tier

WHOLE_EVERY = 256
"""Samples between two of a router's whole tree."""


class Checks:
    """Of one fleet. `after_step` is called after every step; AssertionError: something does not hold."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._turn = 0

    def after_step(self) -> None:
        """All processes that the step touched."""
        fleet = self._fleet
        workers = [worker for worker in fleet.workers.values() if worker.touched]
        routers = [router for router in fleet.routers if router.touched]
        for worker in workers:
            worker.touched = False
            check_worker(worker)
        for router in routers:
            router.touched = False
            check_router(router)
        if workers or routers:
            for router in fleet.routers:
                for worker in fleet.workers.values():
                    if worker in workers or router in routers:
                        check_pair(router, worker)

    def sample(self) -> None:
        """One worker, one router's books and their pairs, in turn; now and then a router's whole tree, which costs as
        much as the tree is large times the fleet."""
        fleet = self._fleet
        workers = list(fleet.workers.values())
        worker = workers[self._turn % len(workers)]
        router = fleet.routers[self._turn % len(fleet.routers)]
        self._turn += 1
        check_worker(worker)
        check_books(router)
        if self._turn % WHOLE_EVERY == 0:
            check_router(router)
        for one in fleet.routers:
            check_pair(one, worker)


def check_worker(worker: SimWorker) -> None:
    """One worker's sums, and its feed against its cache."""
    if not worker.up:
        assert not worker.feeds
        assert not worker.jobs
        return
    scheduler, publisher = worker.scheduler, worker.publisher
    scheduler.check()
    publisher.check()
    announced = scheduler.kv.cache.announcer.announced
    digest = Digest()
    digest.add_run(announced.keys(), Tier.DEVICE, announced.values())
    assert len(announced) == publisher.blocks, f"{worker.id} has told of other blocks than it holds"
    assert digest.total() == publisher.digest_total, f"{worker.id} has told of other blocks than it holds"
    assert worker.strays == 0, f"{worker.id} took a hit on text that nobody computed there"
    stats = scheduler.stats()
    assert len(worker.jobs) <= stats.running + stats.waiting, f"{worker.id} waits for a request that it has ended"


def check_router(router: SimRouter) -> None:
    """One router's sums, and its books."""
    if not router.up:
        assert not router.open
        assert not router.flights
        return
    router.core.check()
    check_books(router)


def check_books(router: SimRouter) -> None:
    """One router's books against its flights, and its tree against its budget."""
    if not router.up:
        return
    core = router.core
    assert core.open_bookings == len(router.open), f"{router.name}: bookings that no flight owns, or flights without"
    for booking_id, flight in router.open.items():
        assert flight in router.flights, f"{router.name}: {flight.ask.id} has ended and is still booked"
        assert flight.booking is not None
        assert flight.booking.id == booking_id
        assert flight.exchange is not None
        assert not flight.exchange.closed, f"{router.name}: {flight.ask.id} is booked and has no connection"
    assert core.tree_bytes <= router.setup.tree_bytes_max, f"{router.name}: the tree is over its budget"


def check_pair(router: SimRouter, worker: SimWorker) -> None:
    """A view that is up to date is true."""
    if not router.up or not worker.up or not router.core.has_worker(worker.id):
        return
    number, epoch = router.core.resume(worker.id)
    publisher = worker.publisher
    if number == publisher.number and epoch == publisher.epoch:
        told = router.core.digest(worker.id)
        assert told.total() == publisher.digest_total, f"{router.name} holds {worker.id} for another cache than it is"


def unrest(fleet: Fleet) -> Iterator[str]:
    """What keeps the fleet from being at rest, each in a few words; nothing if it is."""
    if fleet.clients.unfinished or fleet.clients.pending:
        yield f"{fleet.clients.unfinished} calls have not ended"
    for worker in fleet.workers.values():
        yield from _worker_unrest(worker)
    for router in fleet.routers:
        if not router.up:
            yield f"{router.name} is down"
            continue
        if router.flights or router.open or router.core.open_bookings:
            yield f"{router.name} has requests or bookings"
        for worker in fleet.workers.values():
            yield from _pair_unrest(router, worker)


def _worker_unrest(worker: SimWorker) -> Iterator[str]:
    if not worker.up:
        yield f"{worker.id} is down"
        return
    stats = worker.scheduler.stats()
    if stats.running or stats.waiting or stats.kv_running or stats.kv_locked or worker.jobs:
        yield f"{worker.id} runs, waits or holds locks"
    if worker.memory is not None:
        worker.memory.check()


def _pair_unrest(router: SimRouter, worker: SimWorker) -> Iterator[str]:
    where = f"{router.name}/{worker.id}"
    if not router.core.has_worker(worker.id):
        yield f"{where}: unknown"
        return
    row = next(row for row in router.core.workers(router.clock.now()) if row.worker == worker.id)
    if row.booked or row.booked_tokens or row.pending_tokens:
        yield f"{where}: booked"
    if row.state not in ("up", "draining") or not row.synced or row.epoch != worker.epoch:
        yield f"{where}: {row.state}, synced {row.synced}, epoch {row.epoch} of {worker.epoch}"
    elif row.number != worker.publisher.number:
        yield f"{where}: event {row.number} of {worker.publisher.number}"
    elif router.core.digest(worker.id).buckets() != worker.publisher.digest_buckets:
        yield f"{where}: another cache"
    if row.drift_blocks != 0:
        yield f"{where}: drift {row.drift_blocks}"
