"""The scheduler under random traffic, with an engine that knows what every slot of KV must hold.

After every step: the sums of pool, cache and queues; each read of KV is of exactly its context; every output is that of
a lone run; the announced set is rebuilt from the events; nobody waits for ever.
"""

from __future__ import annotations

from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.worker_core.support import Engine, new_scheduler, request
from trieway.worker.core.sequence import Plan

STEMS = [[8 + stem * 11 + at for at in range(24)] for stem in range(3)]
STEMS += [[2, 3, 1, 1, 0, 4, 5, 2, 2, 3]]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        page=st.sampled_from([1, 2, 4, 8]),
        kv=st.sampled_from([48, 96, 200]),
        policy=st.sampled_from(["lpm", "fcfs", "random"]),
        cache=st.sampled_from([True, True, True, False]),
        running_max=st.sampled_from([1, 3, 8]),
        reserve=st.sampled_from([0, 4]),
    )
    def begin(self, page: int, kv: int, policy: str, cache: bool, running_max: int, reserve: int) -> None:
        self.engine = Engine(
            new_scheduler(
                page_size=page, kv_tokens=kv, policy=policy, prefix_cache=cache, running_max=running_max,
                reserve_tokens=reserve, context_max=min(kv, 64), batch_tokens_max=16, waiting_max=12, wait_max_s=3.0,
            )
        )  # fmt: skip
        self.open: Plan | None = None
        self.now = 0.0
        self.count = 0

    @property
    def alive(self) -> list[str]:
        return [name for name in self.engine.requests if name not in self.engine.ended]

    @rule(
        stem=st.integers(0, 3),
        length=st.integers(1, 24),
        tail=st.lists(st.integers(0, 20), max_size=12),
        new=st.integers(0, 20),
        salt=st.sampled_from(["", "", "s"]),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
        canonical=st.sampled_from([99, 99, 5, 0]),
        reuse=st.sampled_from([None, None, 0, 7]),
        publish=st.sampled_from([True, True, True, False]),
    )
    def add(
        self, stem: int, length: int, tail: list[int], new: int, salt: str, priority: int, canonical: int,
        reuse: int | None, publish: bool,
    ) -> None:  # fmt: skip
        tokens = [*STEMS[stem][:length], *tail]
        if self.engine.scheduler.stats().waiting >= 8:
            return
        self.count += 1
        self.engine.add(
            request(
                f"r{self.count}", tokens, new, salt, priority=priority, canonical=min(canonical, len(tokens)),
                reuse_max=reuse, publish=publish, arrived=self.now, stop_token_ids=frozenset({7}),
            ),
            self.now,
        )  # fmt: skip

    @precondition(lambda self: self.open is None)
    @rule()
    def plan(self) -> None:
        self.open = self.engine.plan(self.now)

    @precondition(lambda self: self.open is not None)
    @rule(took=st.sampled_from([0.0, 0.1, 1.0]))
    def commit(self, took: float) -> None:
        assert self.open is not None
        plan, self.open = self.open, None
        self.now += took
        self.engine.commit(plan, self.engine.compute(plan), self.now)

    @precondition(lambda self: self.open is None)
    @rule(steps=st.integers(1, 8))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.now += 0.1
            self.engine.step(self.now)
            self.engine.verify()

    @precondition(lambda self: self.open is not None)
    @rule()
    def fail(self) -> None:
        assert self.open is not None
        plan, self.open = self.open, None
        for name in self.engine.scheduler.abandon(plan, self.now):
            self.engine.ended[name] = "failed"

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 30), how=st.sampled_from(["cancel", "finish"]))
    def stop(self, which: int, how: Literal["cancel", "finish"]) -> None:
        name = self.alive[which % len(self.alive)]
        end = self.engine.scheduler.cancel if how == "cancel" else self.engine.scheduler.finish
        assert end(name, self.now)
        assert not end(name, self.now)
        self.engine.ended[name] = how

    @rule()
    def flush(self) -> None:
        before = self.engine.scheduler.stats()
        dropped = self.engine.scheduler.flush()
        after = self.engine.scheduler.stats()
        assert dropped == before.kv_cached - before.kv_locked
        assert after.kv_cached == after.kv_locked == before.kv_locked

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "engine"):
            self.engine.verify()
            load = self.engine.scheduler.load(self.now)
            assert load.waiting_tokens >= 0

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if self.open is not None:
            self.commit(0.0)
        self.engine.run(self.now, 0.1)
        self.engine.verify()
        for name, one in self.engine.requests.items():
            ended = self.engine.ended[name]
            output = self.engine.output(name)
            if ended == "length":
                room = min(one.max_new_tokens, self.engine.scheduler.config.context_max - len(one.tokens))
                assert len(output) == max(0, room)
            if ended == "stop":
                assert output[-1] == 7
                assert 7 not in output[:-1]
        stats = self.engine.scheduler.stats()
        assert (stats.kv_running, stats.kv_locked, stats.running, stats.waiting) == (0, 0, 0, 0)
        self.engine.scheduler.flush()
        self.engine.verify()
        assert self.engine.held == {}
        assert self.engine.scheduler.stats().kv_free == stats.kv_total


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
