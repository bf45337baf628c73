"""A whole simulated fleet: clients, routers, workers and the network between them, on one timeline.

Keeps true: the same setup, workload and faults give the same trace and the same records, byte for byte; nothing of it
depends on who looks. Does not know which faults are planned (faults.py) nor what must hold (checks.py).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from trieway.loadgen.records import Record
from trieway.loadgen.sim.clients import Clients
from trieway.loadgen.sim.clock import Timeline
from trieway.loadgen.sim.config import FleetSetup, WorkerSetup
from trieway.loadgen.sim.network import Network
from trieway.loadgen.sim.router import GROUP, SimRouter
from trieway.loadgen.sim.worker import SimWorker
from trieway.loadgen.vocabulary import Workload
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.ids import WorkerId

SETTLE_S = 2.0
"""Feeds are up and heard before the first call."""
DRAIN_TIMEOUT_S = 30.0


class Fleet:
    """`run` plays the workload to its end. Faults are methods; they may come at any time."""

    def __init__(self, setup: FleetSetup, workload: Workload, *, users_max: int | None = None) -> None:
        self.setup = setup
        self.timeline = Timeline()
        self._trace = hashlib.sha256()
        rng = random.Random(setup.seed)
        self.key = FleetKey.from_secret(b"simulation")
        self.network = Network(self.timeline, setup.network, random.Random(rng.random()))
        self.watch = setup.check_every == 1
        self._rng = rng
        self._joined = 0
        self._machines: list[list[SimWorker]] = []
        self.workers: dict[WorkerId, SimWorker] = {}
        self.routers = [
            SimRouter(f"r{index}", setup.router, self.key.seed_id, self.network, random.Random(rng.random()), self.note)
            for index in range(setup.routers)
        ]
        for worker in setup.workers:
            self._new_worker(worker).boot(watch=self.watch)
        for router in self.routers:
            router.start(self.workers.values())
        self.clients = Clients(
            workload, self.routers, self.key, self.network, setup.seed, self.note, users_max=users_max
        )
        self.timeline.at(SETTLE_S, self.clients.start)

    def note(self, *what: object) -> None:
        """One line of the trace."""
        self._trace.update(f"{self.timeline.now:.9f} {what}\n".encode())

    @property
    def trace(self) -> str:
        """A digest of all that happened so far."""
        return self._trace.hexdigest()

    @property
    def records(self) -> list[Record]:
        """What became of the calls that have ended."""
        return self.clients.records

    def run(self, watch: Callable[[], None] | None = None) -> list[Record]:
        """Until every call has ended; `watch` is called after every step."""
        step, clients = self.timeline.step, self.clients
        while clients.unfinished:
            assert step(), "calls are left, and nothing is to come"
            if watch is not None:
                watch()
        return self.records

    # Faults, and other events of a fleet's life.

    def _new_worker(self, setup: WorkerSetup) -> SimWorker:
        name = WorkerId(f"w{self._joined}")
        self._joined += 1
        worker = SimWorker(name, GROUP, self.key, setup, self.timeline, random.Random(self._rng.random()), self.note)
        self.workers[name] = worker
        if setup.cost.machine > 1:
            self._share_machine(worker, setup.cost.machine)
        return worker

    def _share_machine(self, worker: SimWorker, size: int) -> None:
        """Workers share machines in the order in which they joined."""
        machine = self._machines[-1] if self._machines and len(self._machines[-1]) < size else []
        if not machine:
            self._machines.append(machine)
        machine.append(worker)
        worker.busy_neighbours = lambda: sum(one.computes for one in machine if one is not worker) / (size - 1)

    def join(self, setup: WorkerSetup, *, told: bool = True) -> SimWorker:
        """A new worker starts, and every router is told unless `tell` shall do that later."""
        worker = self._new_worker(setup)
        worker.boot(watch=self.watch)
        if told:
            self.tell(worker)
        return worker

    def tell(self, worker: SimWorker) -> None:
        """Every router that is up follows it, if it does not yet."""
        for router in self.routers:
            if router.up and worker.id not in router.followers:
                router.follow(worker)

    def leave(self, name: WorkerId) -> None:
        """A worker is drained by every router, and ends when it is idle everywhere or its time is over."""
        if name in self.workers:
            self.note("leave", name)
            for router in self.routers:
                if router.up and name in router.followers:
                    router.drain(name)
            self.timeline.after(0.5, self._leave, name, self.timeline.now + DRAIN_TIMEOUT_S)

    def _leave(self, name: WorkerId, until: float) -> None:
        routers = [router for router in self.routers if router.up and name in router.followers]
        if self.timeline.now < until and any(router.busy_with(name) for router in routers):
            self.timeline.after(0.5, self._leave, name, until)
            return
        for router in routers:
            router.remove(name)
        worker = self.workers.pop(name, None)
        if worker is not None and worker.up:
            worker.crash()

    def crash(self, name: WorkerId, down_s: float) -> None:
        """A worker's process dies, and is started again after a time."""
        worker = self.workers.get(name)
        if worker is not None and worker.up:
            worker.crash()
            self.timeline.after(down_s, self._boot, name)

    def _boot(self, name: WorkerId) -> None:
        worker = self.workers.get(name)
        if worker is not None and not worker.up:
            worker.boot(watch=self.watch)

    def restart_router(self, index: int, down_s: float) -> None:
        """A router's process dies, and another one starts in its place, knowing nothing."""
        router = self.routers[index]
        if router.up:
            router.stop()
            self.timeline.after(down_s, self._start_router, index)

    def _start_router(self, index: int) -> None:
        if not self.routers[index].up:
            self.routers[index].start(self.workers.values())
