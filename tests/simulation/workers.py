"""A simulated worker: the production scheduler and publisher with a cost model in the engine's place."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.texts import TOKEN_BYTES
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.frames import Frame
from trieway.meta_tree.ids import GroupId, Reject, WorkerId
from trieway.meta_tree.publisher import Publisher
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import FirstToken, Plan, Request, SchedulerConfig

PREFILL_TOKENS_PER_S = 4000.0
DECODE_STEP_S = 0.01


@dataclass
class Answer:
    """What a worker tells the requester, by callback."""

    id: str
    first: FirstToken | None = None
    number: int = 0
    epoch: int = 0
    done: bool = False
    failed: bool = False
    tokens: tuple[int, ...] = ()


class SimWorker:
    """One incarnation after another; `at` schedules a call on the virtual clock."""

    def __init__(
        self, worker: WorkerId, group: GroupId, key: FleetKey, kv_tokens: int, rng: random.Random,
        at: Callable[[float, Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self.id, self.group, self.key, self.kv_tokens, self.rng, self._at = worker, group, key, kv_tokens, rng, at
        self.epoch = 0
        self.up = False
        self.speed = 1.0
        self.subscribers: list[Callable[[Frame], None]] = []
        self.answers: dict[str, Callable[[Answer], None]] = {}

    def boot(self) -> None:
        self.epoch += 1
        self.up, self.busy = True, False
        config = SchedulerConfig(
            page_size=self.rng.choice([1, 1, 4]), kv_tokens=self.kv_tokens, context_max=2048, batch_tokens_max=256,
            running_max=16, waiting_max=64,
        )  # fmt: skip
        self.scheduler = Scheduler(config, TOKEN_BYTES, self.rng)
        self.publisher = Publisher(
            epoch=self.epoch, seed_id=self.key.seed_id, group=self.group, ring_events_max=self.rng.choice([8, 200])
        )
        self.generated: dict[str, list[int]] = {}

    def crash(self) -> list[Callable[[Answer], None]]:
        """The process is dead: feeds end and requests break. The callbacks of broken requests."""
        self.up = False
        self.subscribers.clear()
        broken = list(self.answers.values())
        self.answers.clear()
        return broken

    def submit(self, request: Request, now: float, answer: Callable[[Answer], None]) -> Reject | None:
        refused = self.scheduler.add(request, now)
        if refused is None:
            self.answers[request.id] = answer
            self.generated[request.id] = []
            self._wake(now)
        return refused

    def cancel(self, request_id: str, now: float) -> None:
        self.answers.pop(request_id, None)
        self.generated.pop(request_id, None)
        self.scheduler.cancel(request_id, now)
        self._publish()

    def flush(self) -> None:
        self.scheduler.flush()
        self._publish()

    def heartbeat(self, now: float) -> None:
        self._send([self.publisher.heartbeat(self.scheduler.load(now))])

    def _publish(self) -> None:
        events = self.scheduler.drain_events()
        if events:
            before = self.publisher.number
            self.publisher.publish(events)
            frames = self.publisher.after(before)
            self._send(frames if frames is not None else self.publisher.snapshot())

    def _send(self, frames: list[Frame]) -> None:
        for deliver in list(self.subscribers):
            for frame in frames:
                deliver(frame)

    def _wake(self, now: float) -> None:
        if self.busy or not self.up or not self.scheduler.has_work():
            return
        plan = self.scheduler.plan(now)
        self._publish()
        if not plan.work:
            self._at(now + 0.01, self._later(self.epoch))
            self.busy = True
            return
        tokens = sum(len(work.tokens) for work in plan.work)
        took = (tokens / PREFILL_TOKENS_PER_S + DECODE_STEP_S) / self.speed
        self.busy = True
        epoch = self.epoch
        self._at(now + took, lambda: self._commit(epoch, plan, now + took))

    def _later(self, epoch: int) -> Callable[[], None]:
        def run() -> None:
            if self.up and self.epoch == epoch:
                self.busy = False
                self._wake(self.clock())

        return run

    clock: Callable[[], float]

    def _commit(self, epoch: int, plan: Plan, now: float) -> None:
        if not self.up or self.epoch != epoch:
            return
        self.busy = False
        sampled = {work.id: self.rng.randrange(97, 123) for work in plan.work if work.samples}
        committed = self.scheduler.commit(plan, sampled, now)
        self._publish()
        for request_id, outcome in committed.outcomes.items():
            answer = self.answers.get(request_id)
            if answer is None:
                continue
            if outcome.token is not None:
                self.generated[request_id].append(outcome.token)
            if outcome.finish is not None:
                del self.answers[request_id]
            tokens = tuple(self.generated.pop(request_id)) if outcome.finish else ()
            if outcome.first is not None or outcome.finish is not None:
                answer(
                    Answer(
                        id=request_id, first=outcome.first, number=self.publisher.number, epoch=self.epoch,
                        done=outcome.finish is not None, tokens=tokens,
                    )
                )  # fmt: skip
        self._wake(now)
