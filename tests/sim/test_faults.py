"""One fault at a time: what the client sees of it, and that the fleet comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.support import RATES, chats, joined, one_call, setup
from trieway.loadgen.records import Record
from trieway.loadgen.sim.checks import Checks, unrest
from trieway.loadgen.sim.config import FleetSetup, NetworkSetup, WorkerSetup
from trieway.loadgen.sim.faults import Fault, Faults, Kind
from trieway.loadgen.sim.fleet import SETTLE_S, Fleet
from trieway.loadgen.vocabulary import Workload
from trieway.meta_tree.ids import WorkerId

SMALL = WorkerSetup(kv_tokens=1024, page_size=4, batch_tokens_max=64, running_max=8, cost=RATES)
LONG = 60
"""Tokens of an answer that takes 0.6 s."""


def config(workers: int = 2, **changes: object) -> FleetSetup:
    return replace(setup(workers, worker=SMALL), check_every=1, **changes)  # type: ignore[arg-type]


def played(
    fleet_setup: FleetSetup, workload: Workload, *events: tuple[float, Callable[[Fleet], object]]
) -> tuple[Fleet, dict[str, Record]]:
    """Runs with events at times after the first call, under every check, then until the fleet is at rest."""
    fleet = Fleet(fleet_setup, workload)
    checks = Checks(fleet)
    for when, event in events:
        fleet.timeline.at(SETTLE_S + when, event, fleet)
    fleet.run(checks.after_step)
    until = fleet.timeline.now + 40.0
    while fleet.timeline.now < until and (fleet.timeline.now < until - 30.0 or list(unrest(fleet))):
        fleet.timeline.step()
        checks.after_step()
    assert not list(unrest(fleet))
    return fleet, {record.call: record for record in fleet.records}


def of(record: Record, what: str) -> float:
    value = getattr(record, what)
    assert value is not None
    return float(value)


def test_a_crash_before_the_first_token_is_not_seen_by_the_client() -> None:
    workload = one_call(80, LONG)
    _, quiet = played(config(), workload)
    served = quiet["c"].worker
    assert served is not None
    _, records = played(config(), workload, (0.008, lambda fleet: fleet.crash(WorkerId(served), 3.0)))
    assert records["c"].ok
    assert records["c"].attempts == 2
    assert records["c"].worker != served


def test_a_crash_after_the_first_token_ends_a_stream_with_an_error_and_nothing_else() -> None:
    for stream, status, attempts in ((True, "broken_stream", 1), (False, "ok", 2)):
        workload = one_call(80, LONG, stream=stream)
        _, quiet = played(config(), workload)
        served = WorkerId(quiet["c"].worker or "")
        _, records = played(config(), workload, (0.3, lambda fleet, served=served: fleet.crash(served, 3.0)))
        assert records["c"].status == status
        assert records["c"].attempts == attempts


def test_what_waits_for_a_failed_call_is_abandoned() -> None:
    workload = chats(1, 3, output=LONG)
    _, quiet = played(config(), workload)
    served = WorkerId(quiet["s0.0"].worker or "")
    first = of(quiet["s0.0"], "first_s") + 0.2
    _, records = played(config(), workload, (first, lambda fleet: fleet.crash(served, 1.0)))
    assert [records[f"s0.{turn}"].status for turn in range(3)] == ["broken_stream", "abandoned", "abandoned"]


def test_a_returned_worker_is_cold_and_gets_work_again() -> None:
    calls = [one_call(80, 5, f"c{number}", due_s=0.5 * number) for number in range(20)]
    fleet, records = played(config(1), joined(*calls), (2.2, lambda fleet: fleet.crash(WorkerId("w0"), 1.0)))
    hits = [records[f"c{number}"].cached_tokens for number in range(20)]
    assert all(record.ok for name, record in records.items() if name not in ("c5", "c6"))
    assert {records[name].status for name in ("c5", "c6")} == {"no_worker"}
    assert [bool(hit) for hit in hits[:5]] == [False, True, True, True, True]
    assert not hits[7], "its cache went with its process"
    assert hits[8]
    assert fleet.workers[WorkerId("w0")].epoch > 1


def test_a_slow_worker_takes_its_time_and_then_is_fast_again() -> None:
    calls = joined(one_call(80, 20), one_call(90, 20, "d", due_s=5.0))

    def slow(fleet: Fleet) -> None:
        fleet.workers[WorkerId("w0")].set_speed(0.1)

    def fast(fleet: Fleet) -> None:
        fleet.workers[WorkerId("w0")].set_speed(1.0)

    _, records = played(config(1), calls, (0.1, slow), (4.0, fast))
    # A step takes 10.5 ms, ten times that while it is slow; the one under way ends as it would have.
    assert of(records["c"], "e2e_s") == pytest.approx(0.1 + 0.1 + 11 * 0.105, rel=0.15)
    assert of(records["d"], "e2e_s") == pytest.approx(0.02 + 19 * 0.0105, rel=0.2)


def test_a_cut_feed_resumes_where_it_was() -> None:
    def cut(fleet: Fleet) -> None:
        for follower in fleet.routers[0].followers.values():
            follower.ended()

    calls = [one_call(80, 5, f"c{number}", due_s=0.5 * number) for number in range(8)]
    fleet, records = played(config(1), joined(*calls), (1.2, cut))
    assert all(record.ok for record in records.values())
    row = fleet.routers[0].core.workers(fleet.routers[0].clock.now())[0]
    assert row.resyncs == row.gaps == 0


def test_a_partition_delays_what_is_under_way_and_diverts_the_rest() -> None:
    calls = [one_call(80, LONG, f"c{number}", due_s=0.2 * number) for number in range(8)]
    _, quiet = played(config(), joined(*calls))
    served = WorkerId(quiet["c0"].worker or "")

    def cut(fleet: Fleet) -> None:
        fleet.network.cut("r0", served)

    def heal(fleet: Fleet) -> None:
        fleet.network.heal("r0", served)

    _, records = played(config(), joined(*calls), (0.3, cut), (20.0, heal))
    late = [record for record in records.values() if record.ok and record.worker != served]
    assert late, "others served meanwhile"
    assert records["c0"].status == "broken_stream", "held for dead after some silent probes"
    assert all(records[f"c{number}"].ok for number in range(4, 8))
    assert 2 in {record.attempts for record in late}, "a connection that is not made is tried elsewhere"


def test_a_short_partition_breaks_nothing() -> None:
    def cut(fleet: Fleet) -> None:
        fleet.network.cut("r0", "w0")

    def heal(fleet: Fleet) -> None:
        fleet.network.heal("r0", "w0")

    _, records = played(config(1), one_call(80, LONG), (0.1, cut), (1.0, heal))
    assert records["c"].ok
    assert of(records["c"], "e2e_s") == pytest.approx(1.0, abs=0.05)


def test_a_router_that_dies_takes_its_streams_along_and_the_others_serve_on() -> None:
    # Calls are dealt out in turn: the second router has the streams.
    calls = joined(*(one_call(80, LONG, f"c{number}", stream=number % 2 == 0) for number in range(4)))
    for index, lost in ((0, 0), (1, 2)):
        event = (0.2, lambda fleet, index=index: fleet.restart_router(index, 2.0))
        fleet, records = played(config(routers=2), calls, event)
        assert sum(record.status == "router_lost" for record in records.values()) == lost
        assert sum(record.ok for record in records.values()) == 4 - lost
        assert all(router.up for router in fleet.routers)
        assert all(router.core.has_worker(worker) for router in fleet.routers for worker in fleet.workers)


def test_without_any_router_a_client_waits_and_gives_up() -> None:
    early, late = one_call(80, 5, "a", due_s=0.5), one_call(80, 5, "b", due_s=2.0)
    _, records = played(config(), joined(early, late), (0.1, lambda fleet: fleet.restart_router(0, 3.0)))
    assert records["a"].status == "router_lost"
    assert records["b"].ok


def test_a_client_that_hangs_up_leaves_nothing_behind() -> None:
    fleet, records = played(config(), one_call(80, LONG), (0.3, lambda fleet: fleet.clients.hang_up("c")))
    assert records["c"].status == "hung_up"
    stats = [worker.scheduler.stats() for worker in fleet.workers.values()]
    assert sum(stat.cancelled_total for stat in stats) == 1
    assert sum(stat.generated_tokens_total for stat in stats) < LONG


def test_a_hang_up_of_what_is_not_under_way_is_nothing() -> None:
    _, records = played(config(), one_call(80, 5), (3.0, lambda fleet: fleet.clients.hang_up("c")))
    assert records["c"].ok


def test_a_flush_empties_the_cache_and_the_routers_know() -> None:
    calls = [one_call(80, 5, f"c{number}", due_s=1.0 * number) for number in range(4)]
    _, records = played(config(1), joined(*calls), (1.5, lambda fleet: fleet.workers[WorkerId("w0")].flush()))
    assert [bool(records[f"c{number}"].cached_tokens) for number in range(4)] == [False, True, False, True]
    assert records["c2"].predicted_tokens == 0


def test_workers_join_and_leave_without_a_failed_call() -> None:
    workload = chats(20, 2, rate=8.0)

    def join(fleet: Fleet) -> None:
        fleet.join(SMALL)

    def leave(fleet: Fleet) -> None:
        fleet.leave(WorkerId("w0"))

    fleet, records = played(config(routers=2), workload, (0.5, join), (1.0, leave))
    assert all(record.ok for record in records.values())
    assert list(fleet.workers) == ["w1", "w2"]
    assert {record.worker for record in records.values()} == {"w0", "w1", "w2"}


def test_full_queues_are_a_429_and_a_silent_worker_a_504() -> None:
    tiny = replace(SMALL, waiting_max=1, running_max=1)
    calls = joined(*(one_call(80, LONG, f"c{number}") for number in range(6)))
    _, records = played(replace(config(), workers=(tiny,)), calls)
    assert sorted({record.status for record in records.values()}) == ["ok", "queues_full"]
    fast = config(1)
    fast = replace(fast, router=replace(fast.router, first_byte_timeout_s=0.5))
    _, records = played(fast, one_call(80, 5), (0.0, lambda fleet: fleet.workers[WorkerId("w0")].set_speed(0.001)))
    assert records["c"].status == "timeout"


def test_a_prompt_beyond_every_context_is_a_400() -> None:
    short = replace(SMALL, context_max=50)
    _, records = played(replace(config(), workers=(short,)), one_call(80, 5))
    assert records["c"].status == "too_long"


@pytest.mark.parametrize("rate", [0.97, 1.03])
def test_clocks_of_other_rates_disturb_nobody(rate: float) -> None:
    def skew(fleet: Fleet) -> None:
        fleet.workers[WorkerId("w0")].skew(rate)
        fleet.routers[0].clock.skew(2.0 - rate)

    _, records = played(config(), chats(6, 2), (0.2, skew))
    assert all(record.ok for record in records.values())


def test_lossy_feeds_heal_once_the_network_does() -> None:
    lossy = NetworkSetup(delay_s=0.001, jitter_s=0.001, loss=0.1, duplicate=0.1, reorder=0.1)
    fleet = Fleet(config(network=lossy, routers=2), chats(10, 3))
    checks = Checks(fleet)
    fleet.run(checks.after_step)
    gaps = sum(row.gaps for router in fleet.routers for row in router.core.workers(router.clock.now()))
    assert gaps > 0
    fleet.network.heal_all()
    until = fleet.timeline.now + 40.0
    while list(unrest(fleet)) and fleet.timeline.now < until:
        fleet.timeline.step()
        checks.after_step()
    assert not list(unrest(fleet))


def test_a_plan_of_faults_happens_and_heals() -> None:
    kinds = list(Kind)
    plan = [
        Fault(at_s=3.0 + number, kind=kind, worker=number, router=number, seconds=2.0, amount=0.97, call=number)
        for number, kind in enumerate(kinds)
    ]
    fleet = Fleet(config(3, routers=2), chats(30, 2, rate=3.0))
    Faults(fleet, plan, heal_at=16.0)
    checks = Checks(fleet)
    fleet.run(checks.after_step)
    while fleet.timeline.now < 60.0:
        fleet.timeline.step()
        checks.after_step()
    assert not list(unrest(fleet))
    assert {worker.speed for worker in fleet.workers.values()} == {1.0}
