"""A small fleet out of a seed, with a workload and a plan of faults, and its play to the end under all checks.

Keeps true: the seed alone decides; a world is small enough for every check after every step. A world whose calls do not
end, or which does not come to rest, within REST_S after the healing fails. Does not know what planted bugs do.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from trieway.loadgen.records import Record
from trieway.loadgen.sim.checks import Checks, check_router, check_worker, unrest
from trieway.loadgen.sim.config import FleetSetup, NetworkSetup, RouterSetup, WorkerSetup
from trieway.loadgen.sim.cost import Rates
from trieway.loadgen.sim.faults import Fault, Faults, draw
from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.vocabulary import AnswerOf, Call, Filler, Hint, Message, Text, Workload
from trieway.meta_tree.holding import HOLDING_BYTES

ARRIVE_S = 8.0
"""Sessions begin within this time of the first call."""
FAULTS_S = 12.0
HEAL_S = 16.0
REST_S = 120.0
STEPS_MAX = 400_000
TIGHT_BYTES = 22_000
"""Of a tree's budget, what is left for blocks and expectations: less than a fleet's caches fill now and then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """What a seed stands for."""

    seed: int
    setup: FleetSetup
    workload: Workload
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of it."""

    seed: int
    trace: str
    statuses: Counter[str]
    steps: int
    virtual_s: float
    cached_share: float


def world_of(seed: int, *, calls: int = 48, faults: bool = True) -> World:
    """The world of a seed."""
    rng = random.Random(f"world {seed}")
    workload = _workload(rng, seed, calls)
    mishaps = faults and rng.random() < 0.5
    network = NetworkSetup(
        delay_s=0.001,
        jitter_s=0.002,
        loss=rng.choice([0.0, 0.01, 0.05]) if mishaps else 0.0,
        duplicate=rng.choice([0.0, 0.05]) if mishaps else 0.0,
        reorder=rng.choice([0.0, 0.05]) if mishaps else 0.0,
    )
    workers = tuple(_worker(rng) for _ in range(rng.randint(2, 4)))
    tight = (len(workers) + 1) * HOLDING_BYTES + TIGHT_BYTES
    setup = FleetSetup(
        seed=seed,
        workers=workers,
        routers=rng.randint(1, 3),
        router=RouterSetup(
            policy=rng.choice(["cache_aware"] * 4 + ["round_robin", "least_loaded", "longest_prefix"]),
            tree_bytes_max=rng.choice([tight, 64 << 20]),
            first_byte_timeout_s=rng.choice([5.0, 60.0]),
        ),
        network=network,
        check_every=1,
    )
    plan = draw(rng, rng.randint(4, 20), 2.5, FAULTS_S) if faults else []
    return World(seed=seed, setup=setup, workload=workload, faults=tuple(plan))


def _worker(rng: random.Random) -> WorkerSetup:
    page = rng.choice([1, 1, 2, 4, 8])
    return WorkerSetup(
        kv_tokens=rng.choice([400, 700, 2000]),
        page_size=page,
        batch_tokens_max=rng.choice([32, 128]),
        running_max=rng.choice([4, 16]),
        waiting_max=rng.choice([4, 64]),
        context_max=rng.choice([300, 1000]),
        policy=rng.choice(["lpm", "lpm", "fcfs", "random"]),
        prefix_cache=rng.random() > 0.05,
        memory_bytes_max=rng.choice([0, 4096, 1 << 20]),
        ring_events_max=rng.choice([8, 200]),
        cost=Rates(
            prefill_tokens_per_s=rng.choice([1500.0, 6000.0]), decode_step_s=0.015, per_decode_s=0.001,
            prefill_step_s=0.01, request_s=rng.choice([0.0, 0.003]),
        ),
    )  # fmt: skip


def _workload(rng: random.Random, seed: int, count: int) -> Workload:
    """Chats over shared system prompts, and completions that share heads; salts, tenants, priorities, hints."""
    calls: list[Call] = []
    hints: list[Hint] = []
    systems = [Filler(rng.randrange(1 << 20), rng.randint(10, 120)) for _ in range(2)]
    session = 0
    while len(calls) < count:
        name = f"s{session}"
        session += 1
        salt, tenant = rng.choice([None, None, None, "pepper"]), rng.choice([None, None, "t"])
        due_s = rng.uniform(0.0, ARRIVE_S)
        system = rng.choice(systems)
        if rng.random() < 0.4:
            calls.append(_completion(rng, name, due_s, system, salt, tenant))
            continue
        messages = [Message("system", (system,))]
        if rng.random() < 0.1:
            hints.append(Hint(session=name, messages=tuple(messages), salt=salt, tenant=tenant))
        for turn in range(rng.randint(1, 4)):
            messages.append(Message("user", (Filler(rng.randrange(1 << 30), rng.randint(1, 30)),)))
            before = f"{name}.{turn - 1}"
            tokens = rng.randint(1, 40)
            calls.append(
                Call(
                    id=f"{name}.{turn}", session=name, messages=tuple(messages), output_tokens=tokens,
                    max_tokens=tokens, after=(before,) if turn else (), think_s=rng.expovariate(1.0) if turn else 0.0,
                    due_s=None if turn else due_s, salt=salt, tenant=tenant, stream=rng.random() < 0.6,
                    priority=rng.choice([0, 0, 0, 1]),
                )
            )  # fmt: skip
            messages.append(Message("assistant", (AnswerOf(f"{name}.{turn}"),)))
    workload = Workload(name="faults", seed=seed, calls=tuple(calls), hint_prefixes=tuple(hints))
    workload.check()
    return workload


def _completion(
    rng: random.Random, name: str, due_s: float, system: Filler, salt: str | None, tenant: str | None
) -> Call:
    tokens = rng.randint(1, 60)
    prompt = (Text("Once upon "), system, Text(" Then: "), Filler(rng.randrange(8), rng.randint(1, 60)))
    return Call(
        id=f"{name}.0", session=name, form="completion", prompt=prompt, output_tokens=tokens, max_tokens=tokens,
        due_s=due_s, salt=salt, tenant=tenant, stream=rng.random() < 0.6,
    )  # fmt: skip


def play(world: World, plant: Callable[[Fleet], None] | None = None) -> Outcome:
    """Runs a world to its rest. AssertionError: something does not hold, or it does not come to rest in time.

    `plant` may put a bug into the fleet before it runs.
    """
    fleet = Fleet(world.setup, world.workload)
    if plant is not None:
        plant(fleet)
    Faults(fleet, world.faults, HEAL_S)
    checks = Checks(fleet)
    timeline = fleet.timeline
    look_at = HEAL_S
    complaints = ["it has not run"]
    while complaints:
        assert timeline.step(), "nothing is to come"
        checks.after_step()
        assert timeline.steps < STEPS_MAX, "the world does not come to rest: too many steps"
        if timeline.now >= look_at:
            look_at = timeline.now + 0.5
            complaints = list(unrest(fleet))
            assert timeline.now < HEAL_S + REST_S, f"no rest {REST_S:.0f} s after the healing: {'; '.join(complaints)}"
    return _outcome(world, fleet)


def _outcome(world: World, fleet: Fleet) -> Outcome:
    for worker in fleet.workers.values():
        check_worker(worker)
    for router in fleet.routers:
        check_router(router)
    records = fleet.records
    calls = Counter(record.call for record in records)
    assert calls == Counter(call.id for call in world.workload.calls), "each call ends once"
    lengths = {call.id: call.output_tokens for call in world.workload.calls}
    for record in records:
        record.check()
        if record.ok:
            assert record.output_tokens == lengths[record.call] or _full(world, record), f"{record.call} lost tokens"
            assert not record.gaps or sum(count for _, count in record.gaps) == record.output_tokens - 1
    answered = [record for record in records if record.ok]
    prompt = sum(record.prompt_tokens or 0 for record in answered)
    cached = sum(record.cached_tokens or 0 for record in answered)
    return Outcome(
        seed=world.seed,
        trace=fleet.trace,
        statuses=Counter(record.status for record in records),
        steps=fleet.timeline.steps,
        virtual_s=fleet.timeline.now,
        cached_share=cached / prompt if prompt else 0.0,
    )


def _full(world: World, record: Record) -> bool:
    """Whether its answer was cut where a worker's context, or its whole memory, ends."""
    used = (record.prompt_tokens or 0) + record.output_tokens
    setups = world.setup.workers
    return any(
        used in (setup.context_max, setup.kv_tokens // setup.page_size * setup.page_size + 1) for setup in setups
    )
