"""Random lives of a whole core: after each step its sums hold, nobody gone is chosen, books return to zero."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.router_core.clockwork import GROUP, MODEL, ROOT, SEED_ID, chain
from trieway.meta_tree.events import CacheEvent, Cleared, Removed, Stored
from trieway.meta_tree.frames import Delta, Frame, WorkerLoad
from trieway.meta_tree.ids import Reject, WorkerId
from trieway.meta_tree.publisher import Publisher
from trieway.router.core import (
    POLICIES,
    AskBuckets,
    CoreConfig,
    FirstByte,
    Outcome,
    Query,
    Rejection,
    Resubscribe,
    RouterCore,
    WorkerState,
)

WORKERS = [WorkerId(name) for name in ("a", "b", "c", "foreign")]
PATHS = [chain(path) for path in ((1, 2, 3, 4, 5, 6), (1, 2, 3, 9, 9), (1, 7), (8, 8, 8, 8))]


class Core(RuleBasedStateMachine):
    """The shell's part is played by the rules: every booking is settled by them and by nobody else."""

    def __init__(self) -> None:
        super().__init__()
        self.core: RouterCore | None = None
        self.now = 0.0
        self.epoch = 0
        self.ends: dict[WorkerId, Publisher] = {}  # fed processes that live
        self.wire: dict[WorkerId, list[Frame]] = {}
        self.held: dict[WorkerId, set[int]] = {}
        self.gone: set[WorkerId] = set()
        self.pending: dict[int, WorkerId] = {}
        self.begun: dict[int, WorkerId] = {}
        self.released: set[int] = set()

    @precondition(lambda self: self.core is None)
    @rule(policy=st.sampled_from(POLICIES), seed=st.integers(0, 99), bound=st.sampled_from([3, 1000]))
    def begin(self, policy: str, seed: int, bound: int) -> None:
        config = CoreConfig(
            seed_id=SEED_ID, policy=policy, worker_bookings_max=bound, speculations_max=bound, tree_bytes_max=200_000
        )
        self.core = RouterCore(config, random.Random(seed))

    @property
    def made(self) -> RouterCore:
        if self.core is None:
            self.begin("cache_aware", 1, 1000)
        assert self.core is not None
        return self.core

    # Workers.
    @rule(worker=st.sampled_from(WORKERS))
    def add(self, worker: WorkerId) -> None:
        fed = worker != "foreign"
        self.made.add_worker(worker, f"http://{worker}", self.now, model=MODEL, group=GROUP, has_feed=fed)
        self.gone.discard(worker)
        if fed and worker not in self.ends:
            self.restart(worker)

    def restart(self, worker: WorkerId) -> None:
        self.epoch += 1
        self.ends[worker] = Publisher(epoch=self.epoch, seed_id=SEED_ID, group=GROUP, ring_events_max=4)
        self.held[worker] = set()
        self.subscribe(worker)

    def subscribe(self, worker: WorkerId) -> None:
        self.wire[worker] = self.ends[worker].subscribe(*self.made.resume(worker))

    def registered(self) -> list[WorkerId]:
        return [worker for worker in WORKERS if self.made.has_worker(worker)]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.registered():
            worker = data.draw(st.sampled_from(self.registered()))
            self.made.remove_worker(worker, self.now)
            self.gone.discard(worker)
            self.wire[worker] = []

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        if self.registered():
            self.made.drain(data.draw(st.sampled_from(self.registered())), self.now)

    @rule(worker=st.sampled_from(WORKERS))
    def die(self, worker: WorkerId) -> None:
        self.made.feed_lost(worker, self.now, gone=True)
        self.ends.pop(worker, None)
        self.wire[worker] = []
        if self.made.has_worker(worker):
            self.gone.add(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def come_back(self, worker: WorkerId) -> None:
        if worker in self.gone and worker != "foreign":
            self.restart(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def cut(self, worker: WorkerId) -> None:
        if worker in self.ends and self.made.has_worker(worker):
            self.made.feed_lost(worker, self.now, gone=False)
            self.subscribe(worker)

    # Feeds.
    @rule(worker=st.sampled_from(WORKERS), path=st.sampled_from(PATHS), what=st.sampled_from(["store", "tail", "all"]))
    def publish(self, worker: WorkerId, path: list[int], what: str) -> None:
        end = self.ends.get(worker)
        if end is None:
            return
        held, event = self.held[worker], None
        if what == "store":
            usable = tuple(16 * (at + 1) for at in range(len(path)))
            event = Stored(namespace_id=ROOT, parent=ROOT, hashes=tuple(path), usable=usable)
            held.update(path)
        elif what == "tail":
            gone = tuple(block for block in path[2:] if block in held)
            event = Removed(namespace_id=ROOT, hashes=gone)
            held.difference_update(gone)
        else:
            event = Cleared()
            held.clear()
        self.say(worker, event)

    def say(self, worker: WorkerId, event: CacheEvent) -> None:
        end = self.ends[worker]
        before = end.number
        end.publish([event])
        self.wire[worker] += end.after(before) or []

    @rule(
        worker=st.sampled_from(WORKERS), running=st.integers(0, 4), waiting=st.integers(0, 4),
        tokens=st.integers(0, 5000), rate=st.sampled_from([0.0, 500.0, 9000.0]), draining=st.booleans(),
    )  # fmt: skip
    def beat(self, worker: WorkerId, running: int, waiting: int, tokens: int, rate: float, draining: bool) -> None:
        if worker in self.ends:
            load = WorkerLoad(
                running=running, waiting=waiting, waiting_tokens=tokens, running_tokens=9, prefill_tokens_per_s=rate,
                decode_step_ms=3.0, kv_free_tokens=tokens, kv_cached_tokens=10, kv_total_tokens=9000,
                draining=draining and tokens > 4000,
            )  # fmt: skip
            self.wire[worker].append(self.ends[worker].heartbeat(load))

    @rule(worker=st.sampled_from(WORKERS), frames=st.integers(1, 8), lose=st.booleans())
    def deliver(self, worker: WorkerId, frames: int, lose: bool) -> None:
        wire = self.wire.get(worker, [])
        arriving, self.wire[worker] = wire[:frames], wire[frames:]
        if lose and len(arriving) > 1 and isinstance(arriving[1], Delta):
            del arriving[1]
        for frame in arriving:
            for effect in self.made.feed_frame(worker, frame, self.now):
                assert effect.worker == worker
                if isinstance(effect, Resubscribe):
                    self.subscribe(worker)
                elif isinstance(effect, AskBuckets):
                    self.wire[worker].append(self.ends[worker].buckets(effect.indices))
        if self.row_state(worker) is not WorkerState.GONE:
            self.gone.discard(worker)

    def row_state(self, worker: WorkerId) -> WorkerState | None:
        return next((row.state for row in self.made.workers(self.now) if row.worker == worker), None)

    # Requests.
    @rule(
        path=st.sampled_from(PATHS), exclude=st.sets(st.sampled_from(WORKERS), max_size=2),
        known=st.sampled_from([None, 40, 4000]), reuse=st.sampled_from([None, 0, 20]),
    )  # fmt: skip
    def ask(self, path: list[int], exclude: set[WorkerId], known: int | None, reuse: int | None) -> None:
        query = Query(
            model=MODEL, group=GROUP, hashes=path, prompt_bytes=len(path) * 64 + 9, prompt_tokens=known,
            reuse_max=reuse, exclude=frozenset(exclude),
        )  # fmt: skip
        choice = self.made.choose(query, self.now)
        if isinstance(choice, Reject):
            assert choice.reason in set(Rejection)
            return
        assert choice.worker in self.registered()
        assert choice.worker not in exclude
        state = self.row_state(choice.worker)
        assert state in (WorkerState.UP, WorkerState.SUSPECT), "nothing is sent to a worker known to be gone"
        assert 0 <= choice.predicted_tokens < choice.prompt_tokens
        booking = self.made.book(query, choice, self.now)
        self.pending[booking.id] = booking.worker

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), cached=st.sampled_from([None, 0, 30]), number=st.sampled_from([None, 0, 1, 50]))
    def first_byte(self, data: st.DataObject, cached: int | None, number: int | None) -> None:
        booking = data.draw(st.sampled_from(sorted(self.pending)))
        worker = self.begun[booking] = self.pending.pop(booking)
        end = self.ends.get(worker)
        first = FirstByte(
            prompt_tokens=None if cached is None else 90, cached_tokens=cached, epoch=end.epoch if end else None,
            number=number, prefill_ms=12.0 if cached == 30 else None,
        )  # fmt: skip
        settled = self.made.receipt(booking, first, self.now)
        assert settled.worker == worker
        assert settled.regret_ms >= 0.0

    @precondition(lambda self: self.pending or self.begun)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def release(self, data: st.DataObject, outcome: Outcome) -> None:
        booking = data.draw(st.sampled_from(sorted(self.pending) + sorted(self.begun)))
        self.pending.pop(booking, None)
        self.begun.pop(booking, None)
        assert booking not in self.released
        self.released.add(booking)
        self.made.release(booking, outcome, self.now)

    @rule(passed=st.sampled_from([0.001, 0.3, 2.0, 7.0, 40.0, 200.0]))
    def tick(self, passed: float) -> None:
        self.now += passed
        for effect in self.made.tick(self.now):
            if isinstance(effect, Resubscribe) and effect.worker in self.ends:
                assert (effect.since, effect.epoch) == self.made.resume(effect.worker)
                self.subscribe(effect.worker)

    # What must hold.
    @invariant()
    def sums(self) -> None:
        if self.core is None:
            return
        self.core.check()
        rows = self.core.workers(self.now)
        assert sum(row.booked for row in rows) <= len(self.pending) + len(self.begun)
        for row in rows:
            if row.worker in self.gone:
                assert row.state is WorkerState.GONE
            if row.state is WorkerState.GONE:
                assert row.booked == row.blocks == 0

    def teardown(self) -> None:
        if self.core is None:
            return
        for booking in [*self.pending, *self.begun]:
            self.core.release(booking, Outcome.CANCELLED, self.now)
        self.core.check()
        for row in self.core.workers(self.now):
            assert (row.booked, row.booked_tokens, row.pending_tokens) == (0, 0, 0)
        self.core.tick(self.now + 1000.0)
        assert self.core.tree()["speculations"] == 0


TestCore = Core.TestCase
TestCore.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
