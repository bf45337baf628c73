"""What scaling does to users, measured on simulated fleets from drawn instants on.

Scale-in: the first request of each live session after the workers that leave are drained. Scale-out: the first
requests after routers hear of the newcomer. A session is live if it asked before and will ask again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.loadgen.shared import traces_dir
from tests.sim.branches import branch
from trieway.loadgen.arrivals import parse, schedule
from trieway.loadgen.records import Record
from trieway.loadgen.replay import replay
from trieway.loadgen.sim.config import FleetSetup, WorkerSetup
from trieway.loadgen.sim.cost import roofline
from trieway.loadgen.sim.fleet import SETTLE_S, Fleet
from trieway.loadgen.sim.scaling import Scaling
from trieway.loadgen.traces import Trace, read_trace
from trieway.loadgen.vocabulary import Workload
from trieway.loadgen.workloads import make
from trieway.meta_tree.ids import WorkerId

WORKERS, AFTERWARDS_S = 8, 400.0
"""Of the fleet that shrinks, and how long the next requests of the trace's live sessions are waited for."""
REQUESTS = 100
"""So many after the newcomer is known: it shall have its share of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A workload on a fleet. Instants are drawn between `first_s` and `last_s`."""

    workload: Workload
    worker: WorkerSetup
    workers: int
    first_s: float
    last_s: float
    afterwards_s: float
    """So long the next requests of live sessions are waited for."""

    def instants(self, count: int, seed: int) -> list[float]:
        """Drawn, in order."""
        rng = random.Random(seed)
        return sorted(rng.uniform(self.first_s, self.last_s) for _ in range(count))

    def fleet(self) -> Fleet:
        return Fleet(FleetSetup(seed=1, workers=(self.worker,) * self.workers), self.workload)


def trace() -> Trace:
    """Forty sessions of coding agents. Skips the test where it is not."""
    return read_trace(str(traces_dir() / "agentic_coding_a.jsonl.gz"))


def agents(workers: int, kv_tokens: int, *, speed: float = 1.0, last_s: float = 2500.0) -> Case:
    """The trace, its lengths and caches divided by 16. At its own speed it leaves a fleet of H100 nearly idle; ten
    times as fast, with an L4 for each worker, it keeps one busy. After 2,500 s less than ten sessions are left.
    """
    gpu = "l4" if speed > 1.0 else "h100"
    workload = schedule(replay(trace(), shrink=16), parse(f"trace:{speed:g}"), seed=0)
    return Case(
        workload=workload, worker=WorkerSetup(kv_tokens=kv_tokens, cost=roofline(gpu, "llama-3.1-8b")),
        workers=workers, first_s=300.0 / speed, last_s=last_s / speed, afterwards_s=AFTERWARDS_S / min(speed, 4.0),
    )  # fmt: skip


def chats(workers: int, kv_tokens: int, rate: float, *, seconds: float = 400.0, seed: int = 1) -> Case:
    """Chats under six system prompts and few-shot groups, `rate` calls per second, on an L4 for each worker."""
    sessions = round(rate * seconds / 9)
    made = make("mixed", seed=seed, conversations=sessions, groups=sessions // 8, systems=6, pause="exponential:5")
    return Case(
        workload=schedule(made, parse(f"poisson:{rate:g}"), seed=seed),
        worker=WorkerSetup(kv_tokens=kv_tokens, cost=roofline("l4", "llama-3.1-8b")),
        workers=workers, first_s=60.0, last_s=seconds * 0.8, afterwards_s=30.0,
    )  # fmt: skip


def play_until(fleet: Fleet, moment: float) -> None:
    while fleet.clients.unfinished and fleet.timeline.now < moment:
        fleet.timeline.step()


def sent_since(fleet: Fleet, since: float) -> list[Record]:
    """Of the records so far, those sent at `since` (of the fleet's clock) or later, in that order."""
    found = [one for one in fleet.records if one.sent_s is not None and one.sent_s + SETTLE_S >= since]
    return sorted(found, key=lambda one: one.sent_s or 0.0)


def next_requests(fleet: Fleet, count: int) -> list[Record]:
    """The next `count` requests from now on, played to their ends; less if the workload ends."""
    began, until = fleet.timeline.now, fleet.clients.sent + count
    while fleet.clients.unfinished and fleet.clients.sent < until:
        fleet.timeline.step()
    last = fleet.timeline.now

    def open_ones() -> bool:
        return any(
            one.call is not None and one.sent_s is not None and one.sent_s <= last
            for one in fleet.clients.pending.values()
        )

    while fleet.clients.unfinished and open_ones():
        fleet.timeline.step()
    found = sent_since(fleet, began)[:count]
    assert all(one.status == "ok" for one in found)
    return found


def mean_gap_s(records: Sequence[Record]) -> float:
    """Between two tokens of one answer."""
    gaps = [gap for record in records for gap in record.gaps]
    return sum(mean * count for mean, count in gaps) / sum(count for _, count in gaps)


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def computed(records: Sequence[Record]) -> int:
    """Prompt tokens that were not cached."""
    return sum((one.prompt_tokens or 0) - (one.cached_tokens or 0) for one in records)


# Scale-in.


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Of the first requests of live sessions after some workers left."""

    firsts: dict[str, tuple[int, float]]
    """By session: tokens computed, seconds to the first token."""
    given_tokens: int
    gap_s: float
    """Between tokens of whatever was sent within 20 s of the word to leave."""


def scale_in(
    fleet: Fleet, leaving: Sequence[WorkerId], afterwards_s: float, *, hand_over: bool, serve_on: bool = True
) -> Again:
    """These workers are told to leave now."""
    scaling, told = Scaling(fleet), fleet.timeline.now
    scaling.leave(leaving, hand_over=hand_over, serve_on=serve_on)
    while any(not drained(fleet, name) for name in leaving):
        fleet.timeline.step()
    since = fleet.timeline.now
    asked = {one.session for one in fleet.records if one.sent_s is not None}
    asked |= {one.call.session for one in fleet.clients.pending.values() if one.call and one.sent_s is not None}
    play_until(fleet, max(since + afterwards_s, told + 40.0))
    firsts: dict[str, Record] = {}
    for record in sent_since(fleet, since):
        if record.session in asked and (record.sent_s or 0.0) + SETTLE_S < since + afterwards_s:
            firsts.setdefault(record.session, record)
    assert all(one.status == "ok" for one in firsts.values())
    meanwhile = [one for one in sent_since(fleet, told) if (one.sent_s or 0.0) + SETTLE_S < told + 20.0]
    return Again(
        firsts={name: (computed([one]), (one.first_s or 0.0) - (one.sent_s or 0.0)) for name, one in firsts.items()},
        given_tokens=scaling.given_tokens,
        gap_s=mean_gap_s(meanwhile) if meanwhile else 0.0,
    )


def drained(fleet: Fleet, name: WorkerId) -> bool:
    """No router sends it anything new."""
    followers = [router.followers[name] for router in fleet.routers if name in router.followers]
    return name not in fleet.workers or all(one.draining for one in followers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """Of handing over, against leaving without, at one instant and with the same workers that leave."""

    without_tokens: int
    with_tokens: int
    given_tokens: int
    without_ttft_s: float
    with_ttft_s: float
    slower: float
    """The time between tokens while it was handed over, against leaving without."""

    @property
    def share(self) -> float:
        return 1.0 - self.with_tokens / max(self.without_tokens, 1)


def saving(plain: Again, kind: Again) -> Saving:
    """Of the sessions that asked again in both futures."""
    both = sorted(plain.firsts.keys() & kind.firsts.keys())
    return Saving(
        without_tokens=sum(plain.firsts[name][0] for name in both),
        with_tokens=sum(kind.firsts[name][0] for name in both),
        given_tokens=kind.given_tokens,
        without_ttft_s=mean([plain.firsts[name][1] for name in both]),
        with_ttft_s=mean([kind.firsts[name][1] for name in both]),
        slower=kind.gap_s / plain.gap_s if plain.gap_s and kind.gap_s else 1.0,
    )


def savings(case: Case, leaving: int, count: int, seed: int, *, serve_on: bool = True) -> list[Saving]:
    """At drawn instants with drawn victims."""
    rng, fleet, found = random.Random(seed + 1), case.fleet(), []
    for moment in case.instants(count, seed):
        play_until(fleet, moment)
        names = rng.sample(sorted(fleet.workers), leaving)
        plain = branch(partial(scale_in, fleet, names, case.afterwards_s, hand_over=False))
        kind = branch(partial(scale_in, fleet, names, case.afterwards_s, hand_over=True, serve_on=serve_on))
        found.append(saving(plain, kind))
    return found


def saved(found: Sequence[Saving]) -> float:
    """The share of recomputed tokens that handing over saves, over all instants together."""
    return 1.0 - sum(one.with_tokens for one in found) / sum(one.without_tokens for one in found)


# Scale-out.


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """Of the first requests after routers heard of a newcomer."""

    share: float
    """The newcomer's, of the requests."""
    busiest: float
    """The greatest share of one of the others."""
    firsts_share: float
    """The newcomer's, of those that began a session."""
    gap_s: float
    ttft_s: float
    computed_tokens: int


def grown(fleet: Fleet, change: Callable[[Fleet], WorkerId | None], settle_s: float) -> Grown:
    """`change` is made now; `settle_s` after it is complete the requests are counted."""
    newcomer = change(fleet)
    play_until(fleet, fleet.timeline.now + settle_s)
    before = {one.session for one in fleet.records}
    before |= {one.call.session for one in fleet.clients.pending.values() if one.call and one.sent_s is not None}
    records = next_requests(fleet, REQUESTS)
    counts = Counter(one.worker for one in records)
    own = counts.pop(newcomer, 0)
    begins = {one.session: one.worker for one in reversed(records) if one.session not in before}
    return Grown(
        share=own / len(records),
        busiest=max(counts.values()) / len(records),
        firsts_share=sum(worker == newcomer for worker in begins.values()) / max(len(begins), 1),
        gap_s=mean_gap_s(records),
        ttft_s=sum((one.first_s or 0.0) - (one.sent_s or 0.0) for one in records) / len(records),
        computed_tokens=computed(records),
    )


def nobody(fleet: Fleet) -> None:
    """The fleet stays as it is."""


def comes(case: Case, *, warm: bool) -> Callable[[Fleet], WorkerId]:
    """A newcomer, warmed or not."""

    def change(fleet: Fleet) -> WorkerId:
        told: list[bool] = []
        newcomer = Scaling(fleet).join(case.worker, warm=warm, then=lambda: told.append(True))
        while not told:
            fleet.timeline.step()
        return newcomer.id

    return change


def returns(down_s: float) -> Callable[[Fleet], WorkerId]:
    """One of the workers dies and comes back with an empty cache."""

    def change(fleet: Fleet) -> WorkerId:
        name = sorted(fleet.workers)[-1]
        fleet.crash(name, down_s)
        play_until(fleet, fleet.timeline.now + down_s + 1.0)
        return name

    return change


def growths(
    case: Case, count: int, seed: int, changes: Sequence[Callable[[Fleet], WorkerId | None]], settle_s: float = 0.5
) -> list[list[Grown]]:
    """For each change, what came of it at each of the drawn instants."""
    fleet = case.fleet()
    found: list[list[Grown]] = [[] for _ in changes]
    for moment in case.instants(count, seed):
        play_until(fleet, moment)
        for at, change in enumerate(changes):
            found[at].append(branch(partial(grown, fleet, change, settle_s)))
    return found
