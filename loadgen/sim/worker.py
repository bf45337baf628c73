"""A simulated worker: the production scheduler, publisher and memory, with a cost model in the engine's place.

Keeps true: the cores see what a real engine would show them, step by step, at its own clock; steps in which nothing
arrives, ends or is evicted are taken in one jump (jumps.py) with the same result. A crash loses all; the next
incarnation has a new epoch. Does not know routers' decisions or faults' plans.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.loadgen.sim.clock import LocalClock, Timeline
from trieway.loadgen.sim.config import WorkerSetup
from trieway.loadgen.sim.jumps import Job, Jump, plan_cost, steady_jump
from trieway.loadgen.sim.texts import tokenizer
from trieway.loadgen.sim.values import Ask, Done, First
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.frames import Buckets, Frame
from trieway.meta_tree.ids import GroupId, WorkerId
from trieway.meta_tree.publisher import Publisher
from trieway.worker.core.memory import GeneratedMemory
from trieway.worker.core.sequence import Outcome, Plan, Request

if TYPE_CHECKING:
    from trieway.loadgen.sim.exchange import Exchange
    from trieway.loadgen.sim.feeds import Feed

HEARTBEAT_S = 1.0


class SimWorker:
    """One incarnation after another under one name."""

    def __init__(
        self, worker: WorkerId, group: GroupId, key: FleetKey, setup: WorkerSetup, timeline: Timeline,
        rng: random.Random, note: Callable[..., None],
    ) -> None:  # fmt: skip
        self.id, self.group, self.setup = worker, group, setup
        self.clock = LocalClock(timeline)
        self.up = False
        self.epoch = 0
        self.speed = 1.0
        self.touched = False
        self.feeds: list[Feed] = []
        self.jobs: dict[str, Job] = {}
        self.seen: set[int] | None = None
        """Hashes of all texts that this incarnation may have computed, if anybody wants to check hits against them."""
        self.strays = 0
        """Hits on text that nobody had computed."""
        self.busy_neighbours: Callable[[], float] = _nobody
        self._key = key
        self._timeline = timeline
        self._rng = rng
        self._note = note
        self._turn = 0
        self._hints = 0
        self._came = 0  # requests since the last step
        self._plan: Plan | None = None
        self._jump: Jump | None = None
        self._codec = tokenizer()

    @property
    def computes(self) -> bool:
        """Whether a step is under way."""
        return self._plan is not None or self._jump is not None

    # Life.

    def boot(self, *, watch: bool = False) -> None:
        """A new process. `watch`: keep `seen`."""
        assert not self.up
        # As a real one takes it from its clock: new at every start, whatever the clock does.
        self.epoch = max(self.epoch + 1, int(self.clock.now() * 1000) + 1)
        self.up = self.touched = True
        self._turn += 1
        self._came = 0
        self._plan = self._jump = None
        self.scheduler = self.setup.build(self._codec.table, random.Random(self._rng.random()))
        self.publisher = Publisher(
            epoch=self.epoch,
            seed_id=self._key.seed_id,
            group=self.group,
            ring_events_max=self.setup.ring_events_max,
        )
        bytes_max = self.setup.memory_bytes_max
        self.memory = GeneratedMemory(bytes_max, self._codec.table) if bytes_max else None
        self.seen = set() if watch else None
        self._note("boot", self.id, self.epoch)
        self._timeline.after(self._rng.random() * HEARTBEAT_S, self._beat, self.epoch)

    def crash(self) -> None:
        """The process is dead: its connections are reset."""
        self._note("crash", self.id)
        self.up, self.touched = False, True
        self._turn += 1
        self._plan = self._jump = None
        feeds, jobs = self.feeds, self.jobs
        self.feeds, self.jobs = [], {}
        for feed in feeds:
            feed.reset()
        for job in jobs.values():
            job.exchange.reset()

    def set_speed(self, speed: float) -> None:
        """Steps from the next one on take 1 / `speed` of their time."""
        self._settle()
        self.speed = speed

    def skew(self, rate: float) -> None:
        """Its clock runs at another rate."""
        self._settle()
        self.clock.skew(rate)

    # The feed.

    def subscribe(self, feed: Feed, since: int | None, epoch: int | None) -> None:
        """A router listens from now on."""
        self.feeds.append(feed)
        feed.push(self.publisher.subscribe(since, epoch))

    def unsubscribe(self, feed: Feed) -> None:
        """It no longer does; unknown feeds are fine."""
        if feed in self.feeds:
            self.feeds.remove(feed)

    def buckets(self, indices: Sequence[int]) -> Buckets:
        """The content of these digest buckets now."""
        return self.publisher.buckets(indices)

    def _beat(self, epoch: int) -> None:
        if self.up and self.epoch == epoch:
            self._settle(stop=False)
            self._send([self.publisher.heartbeat(self.scheduler.load(self.clock.now()))])
            self._timeline.after(HEARTBEAT_S, self._beat, epoch)

    def _publish(self) -> None:
        events = self.scheduler.drain_events()
        if events:
            before = self.publisher.number
            self.publisher.publish(events)
            frames = self.publisher.after(before)
            self._send(self.publisher.snapshot() if frames is None else frames)

    def _send(self, frames: list[Frame]) -> None:
        for feed in self.feeds:
            feed.push(frames)

    # Requests.

    def submit(self, exchange: Exchange) -> None:
        """A request is read and tokenised: queue it, or refuse it."""
        self._settle()
        self.touched = True
        self._came += 1
        ask = exchange.ask
        tokens = self._encode(ask)
        request = Request(
            id=exchange.id,
            chain=ask.chain,
            tokens=tokens,
            canonical=len(tokens),
            max_new_tokens=ask.max_tokens,
            priority=ask.priority,
            arrived=self.clock.now(),
        )
        add = self.scheduler.hint if ask.hint else self.scheduler.add
        refused = add(request, self.clock.now())
        if refused is not None:
            exchange.refuse(refused.reason)
            return
        self.jobs[exchange.id] = Job(exchange, tokens)
        self._wake()

    @property
    def codec(self) -> Any:
        """The tokenizer."""
        return self._codec

    def take_hint(self, request: Callable[[str, float], Request], job: Callable[[str], Job]) -> None:
        """A prefix that another worker hands on; one that cannot be taken is left."""
        self._settle()
        self.touched = True
        self._hints += 1
        name, now = f"{self.id}/given.{self._hints}", self.clock.now()
        if self.scheduler.hint(request(name, now), now) is None:
            self.jobs[name] = job(name)
            self._wake()

    def _encode(self, ask: Ask) -> list[int]:
        """The path that this worker's memory knows, then the tokenizer's."""
        known, used = ([], 0) if self.memory is None else self.memory.recall(ask.chain, ask.hashes, ask.prompt)
        return known + self._codec.encode(ask.prompt[used:])

    def cancel(self, exchange_id: str) -> None:
        """The connection is gone: its request ends at once."""
        job = self.jobs.pop(exchange_id, None)
        if job is not None:
            self._settle()
            self.touched = True
            self._computed(job)
            self.scheduler.cancel(exchange_id, self.clock.now())
            self._publish()

    def flush(self) -> None:
        """An operator drops the cache."""
        self._settle()
        self.touched = True
        self.scheduler.flush()
        if self.memory is not None:
            self.memory.clear()
        self._publish()

    # Steps.

    def _wake(self) -> None:
        if self.computes or not self.scheduler.has_work():
            return
        now = self._timeline.now
        # What requests took of the engine, and what neighbours do to it, is known step by step.
        if not self._came and self.setup.cost.machine == 1:
            self._jump = steady_jump(self.scheduler, self.jobs, self.setup.cost, now, self.speed)
        if self._jump is None:
            self._begin(now)
            return
        self._turn += 1
        self._timeline.at(self._jump.ends[-1], self._land, self._turn)

    def _begin(self, began: float, ends: float | None = None) -> None:
        """A step begins at `began`, and ends when the cost model says so unless that is known already."""
        plan = self._plan = self.scheduler.plan(self.clock.at(began))
        assert plan.work, "a machine with work has nothing to do"
        self._publish()
        if self.seen is not None:
            self._watch(plan)
        if ends is None:
            ends = began + plan_cost(plan, self.setup.cost, self._came, self.busy_neighbours()) / self.speed
            self._came = 0
        self._turn += 1
        self._timeline.at(ends, self._commit, self._turn)

    def _land(self, turn: int) -> None:
        """A jump's last step ends."""
        if turn == self._turn and self._jump is not None:
            self.touched = True
            self._jump.take(self.scheduler, self.clock, self._timeline.now)
            self._jump = None
            self._wake()

    def _settle(self, *, stop: bool = True) -> None:
        """Takes the steps of a jump that have ended by now. stop: the one under way becomes an open step, so that what
        comes now waits for its end."""
        jump = self._jump
        if jump is None:
            return
        now = self._timeline.now
        jump.take(self.scheduler, self.clock, now)
        if jump.left and not stop:
            return
        self._jump = None
        self._turn += 1
        if jump.left:
            self._begin(jump.reached, jump.ends[jump.done])
        else:
            self._begin(now)

    def _commit(self, turn: int) -> None:
        if turn != self._turn:
            return
        plan, now = self._plan, self._timeline.now
        assert plan is not None
        self._plan = None
        self.touched = True
        jobs = self.jobs
        sampled = {work.id: jobs[work.id].next_token for work in plan.work if work.samples and work.id in jobs}
        committed = self.scheduler.commit(plan, sampled, self.clock.now())
        self._publish()
        for name, outcome in committed.outcomes.items():
            if outcome.token is not None or outcome.finish is not None:
                self._answer(jobs[name], outcome, now)
        self._wake()

    def _answer(self, job: Job, outcome: Outcome, now: float) -> None:
        if outcome.token is not None:
            job.token(now)
        exchange = job.exchange
        if outcome.first is not None:
            exchange.say(First(outcome.first, self.epoch, self.publisher.number))
        if outcome.finish is not None:
            del self.jobs[exchange.id]
            self._remember(job)
            exchange.say(Done(job.given, tuple(job.gaps)))

    def _remember(self, job: Job) -> None:
        ask = job.exchange.ask
        answer = job.said
        text = ask.prompt + self._codec.decode(answer)
        if self.memory is not None and answer:
            self.memory.remember(ask.chain, text, [*job.tokens, *answer], len(ask.prompt))
        self._computed(job)

    def _computed(self, job: Job) -> None:
        """What it has said is in the cache from now on."""
        if self.seen is not None and job.given:
            ask = job.exchange.ask
            self.seen.update(ask.chain.hashes(ask.prompt + self._codec.decode(job.said)))

    def _watch(self, plan: Plan) -> None:
        """Whether each hit is on text that somebody computed here before, in the same namespace."""
        assert self.seen is not None
        for work in plan.work:
            job = self.jobs.get(work.id)
            if job is None or job.watched:
                continue
            job.watched = True
            blocks = len(self._codec.decode(job.tokens[: work.start])) // BLOCK_BYTES
            hashes = job.exchange.ask.hashes
            if blocks and hashes[blocks - 1] not in self.seen:
                self.strays += 1
            self.seen.update(hashes)


def _nobody() -> float:
    return 0.0
