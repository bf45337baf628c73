"""Scale-in in simulation: what live sessions compute again afterwards, with and without handing prefixes on."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests.loadgen.shared import traces_dir
from trieway.loadgen.replay import replay
from trieway.loadgen.sim.config import FleetSetup, WorkerSetup
from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.sim.scaling import WARM_S, hand_over, join_warm
from trieway.loadgen.traces import Trace, read_trace
from trieway.loadgen.vocabulary import Workload

WORKERS, LEAVING = 8, 4
AFTERWARDS_S = 400.0
"""So long the live sessions' next requests are waited for."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of the first request of each live session after the scale-in."""

    sessions: int
    prompt_tokens: int
    computed_tokens: int


def scale_in(workload: Workload, *, at_s: float, victims: list[int], hand_on: bool, kv_tokens: int) -> Found:
    """Half of the workers leave at one instant."""
    workers = (WorkerSetup(kv_tokens=kv_tokens),) * WORKERS
    fleet = Fleet(FleetSetup(seed=1, workers=workers), workload)
    names = list(fleet.workers)
    leaving = [names[victim] for victim in victims]

    def shrink() -> None:
        if hand_on:
            stay = [worker for name, worker in fleet.workers.items() if name not in leaving]
            hand_over([fleet.workers[name] for name in leaving], stay)
        for name in leaving:
            fleet.leave(name)

    fleet.timeline.at(at_s, shrink)
    while fleet.clients.unfinished and fleet.timeline.now < at_s + AFTERWARDS_S:
        fleet.timeline.step()
    sent = sorted((record for record in fleet.records if record.sent_s is not None), key=lambda one: one.sent_s or 0.0)
    live = {record.session for record in sent if (record.sent_s or 0.0) < at_s}
    first = {}
    for record in sent:
        if (record.sent_s or 0.0) >= at_s and record.session in live:
            first.setdefault(record.session, record)
    assert all(record.status == "ok" for record in first.values())
    prompt = sum(record.prompt_tokens or 0 for record in first.values())
    return Found(
        sessions=len(first),
        prompt_tokens=prompt,
        computed_tokens=prompt - sum(record.cached_tokens or 0 for record in first.values()),
    )


def trace() -> Trace:
    return read_trace(str(traces_dir() / "agentic_coding_a.jsonl.gz"))


def saved(instants: int, *, latest_s: float, seed: int) -> float:
    """The share of recomputed tokens that handing on saves, over drawn instants and victims."""
    rng = random.Random(seed)
    workload = replay(trace(), shrink=16)
    without = with_it = 0
    for _ in range(instants):
        at_s, victims = rng.uniform(300, latest_s), rng.sample(range(WORKERS), LEAVING)
        plain = scale_in(workload, at_s=at_s, victims=victims, hand_on=False, kv_tokens=32_768)
        kind = scale_in(workload, at_s=at_s, victims=victims, hand_on=True, kv_tokens=32_768)
        assert kind.sessions == plain.sessions
        without += plain.computed_tokens
        with_it += kind.computed_tokens
    return 1 - with_it / without


def test_handing_prefixes_on_saves_what_live_sessions_compute() -> None:
    assert saved(1, latest_s=600, seed=5) >= 0.25


@pytest.mark.verify
@pytest.mark.timeout(3000)
def test_scale_in_over_twenty_instants() -> None:
    share = saved(20, latest_s=4500, seed=5)
    print(f"scale-in 8 -> 4, 20 instants: {share:.1%} fewer tokens computed again")
    assert share >= 0.25


@dataclass(frozen=True, slots=True)
class Grown:
    """Of the requests after a newcomer took traffic."""

    share: float
    """Of the first hundred, the newcomer's."""
    inter_token_s: float


def scale_out(workload: Workload, *, at_s: float, joins: bool) -> Grown:
    """A fifth worker comes to four, warmed; or it does not."""
    setup = WorkerSetup(kv_tokens=65_536)
    fleet = Fleet(FleetSetup(seed=1, workers=(setup,) * 4), workload)
    if joins:
        fleet.timeline.at(at_s, join_warm, fleet, setup)
    while fleet.clients.unfinished and fleet.timeline.now < at_s + AFTERWARDS_S:
        fleet.timeline.step()
    after = [one for one in fleet.records if one.sent_s is not None and one.sent_s >= at_s + WARM_S]
    after.sort(key=lambda one: one.sent_s or 0.0)
    gaps = [gap for record in after for gap in record.gaps]
    first = after[:100]
    return Grown(
        share=sum(record.worker == "w4" for record in first) / len(first),
        inter_token_s=sum(mean * count for mean, count in gaps) / sum(count for _, count in gaps),
    )


def grown(instants: list[float]) -> tuple[float, float]:
    """(the newcomer's mean share of the first hundred requests, the fleet's inter-token time over that without)."""
    workload = replay(trace(), shrink=16)
    share = with_it = without = 0.0
    for at_s in instants:
        warm = scale_out(workload, at_s=at_s, joins=True)
        share += warm.share / len(instants)
        with_it += warm.inter_token_s
        without += scale_out(workload, at_s=at_s, joins=False).inter_token_s
    return share, with_it / without


def test_a_warm_newcomer_takes_its_part_and_slows_nobody() -> None:
    share, slower = grown([700.0])
    assert share >= 0.1
    assert slower <= 1.02


@pytest.mark.verify
@pytest.mark.timeout(3000)
def test_scale_out_at_twenty_instants() -> None:
    rng = random.Random(9)
    share, slower = grown([rng.uniform(300, 4500) for _ in range(20)])
    print(
        f"scale-out 4 -> 5, 20 instants: newcomer {share:.1%} of the next 100 requests, inter-token time x{slower:.4f}"
    )
    assert share >= 1 / 5
    assert slower <= 1.02
