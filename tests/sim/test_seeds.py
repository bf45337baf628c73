"""Seeds of whole fleets with faults: nothing breaks an invariant, all comes to rest, and the seed decides everything.

TRIEWAY_SIM_SEEDS sets how many are played, TRIEWAY_SIM_FIRST the first of them; `make sim` plays more.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from trieway.loadgen.sim.canaries import Restless
from trieway.loadgen.sim.faults import Kind
from trieway.loadgen.sim.seeds import World, play, world_of
from trieway.loadgen.simulations.seeds import Told, play_seeds

FIRST = int(os.environ.get("TRIEWAY_SIM_FIRST", "0"))
SEEDS = int(os.environ.get("TRIEWAY_SIM_SEEDS", "200"))
PROCESSES = min(2, os.cpu_count() or 1)
OLD_FAILURES = [2, 5, 16, 18, 36, 174, 249]
"""Seeds that once failed stay in the list, whatever world they stand for today."""


@pytest.fixture(scope="module")
def told() -> Told:
    return play_seeds(FIRST, SEEDS, PROCESSES)


@pytest.mark.timeout(3600)
def test_no_fault_breaks_anything(told: Told) -> None:
    print("\n".join(told.lines()))
    assert not told.failed, "\n".join(f"seed {failed.seed}: {failed.why}" for failed in told.failed)
    assert len(told.outcomes) == SEEDS


@pytest.mark.parametrize("seed", OLD_FAILURES)
def test_old_failures_hold(seed: int) -> None:
    play(world_of(seed))


def test_most_calls_are_answered_and_every_kind_of_end_is_seen(told: Told) -> None:
    ends: Counter[str] = Counter()
    for outcome in told.outcomes:
        ends += outcome.statuses
    assert ends["ok"] > 0.7 * ends.total(), ends
    if SEEDS >= 100:
        wanted = {"ok", "abandoned", "router_lost", "broken_stream", "worker_error", "no_worker", "hung_up", "timeout"}
        assert wanted <= set(ends), ends


def test_faults_of_every_kind_are_drawn() -> None:
    kinds = {fault.kind for seed in range(40) for fault in world_of(seed).faults}
    assert kinds == set(Kind)


@pytest.mark.parametrize("seed", [1, 2])
def test_without_faults_nothing_fails(seed: int) -> None:
    world = world_of(seed, faults=False)
    assert world.faults == ()
    outcome = play(world)
    assert set(outcome.statuses) <= {"ok", "queues_full", "too_long", "abandoned"}
    assert outcome.statuses["ok"] > 0.8 * outcome.statuses.total()


@pytest.mark.parametrize("seed", [7, 8])
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    first, again = play(world_of(seed)), play(world_of(seed))
    assert first == again


def test_state_that_outlives_a_world_is_seen() -> None:
    restless = Restless()
    assert play(world_of(7), restless).trace != play(world_of(7), restless).trace


def test_a_world_is_its_seeds() -> None:
    one: World = world_of(3)
    assert one == world_of(3)
    assert one.workload != world_of(4).workload
