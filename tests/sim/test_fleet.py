"""A whole simulated fleet without faults: times that can be worked out by hand, jumps, flows, hints, determinism."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.sim.support import RATES, chats, joined, one_call, setup
from trieway.loadgen.sim import jumps
from trieway.loadgen.sim.checks import Checks
from trieway.loadgen.sim.config import FleetSetup, RouterSetup, WorkerSetup
from trieway.loadgen.sim.cost import SharedMachine
from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.vocabulary import Filler, Hint, Workload
from trieway.router.core import POLICIES

SMALL = WorkerSetup(kv_tokens=1024, page_size=4, batch_tokens_max=64, running_max=8, cost=RATES)


def test_a_lone_request_takes_the_time_that_can_be_worked_out() -> None:
    fleet = Fleet(setup(1, worker=WorkerSetup(kv_tokens=4096, page_size=1, cost=RATES)), one_call(80, 5))
    (record,) = fleet.run()
    prefill_s, decode_s = 0.005 + 80 / 8000.0, 0.01 + 0.0005
    assert record.ok
    assert record.due_s == record.sent_s == 0.0
    # Client, router, worker and back: two delays out, two back.
    assert record.ttft_s == pytest.approx(4 * 0.001 + prefill_s)
    assert record.e2e_s == pytest.approx(4 * 0.001 + prefill_s + 4 * decode_s)
    assert [(pytest.approx(gap), count) for gap, count in record.gaps] == [(decode_s, 4)]
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (80, 0, 5)
    assert record.attempts == 1


def test_what_a_request_needs_beside_its_steps_delays_it_alone() -> None:
    worker = WorkerSetup(kv_tokens=4096, page_size=1, cost=replace(RATES, request_s=0.1))
    (record,) = Fleet(setup(1, worker=worker), one_call(80, 2)).run()
    assert record.ttft_s == pytest.approx(0.1 + 0.004 + 0.005 + 0.01)


def test_what_a_request_takes_of_the_engine_lengthens_the_next_step() -> None:
    worker = WorkerSetup(kv_tokens=4096, page_size=1, cost=replace(RATES, per_request_s=0.02))
    late = one_call(80, 2, "late", due_s=0.5)
    busy, beside = Fleet(setup(1, worker=worker), joined(one_call(80, 100), late)).run()
    if busy.call == "late":
        busy, beside = beside, busy
    assert busy.ttft_s == pytest.approx(0.004 + 0.02 + 0.005 + 0.01)
    longest = max(gap for gap, _ in busy.gaps)
    # The step with the other's prompt, which is cached but for its last token: one fixed cost, a decode, the request.
    assert longest == pytest.approx(0.01 + 1 / 8000.0 + 0.0005 + 0.02)
    assert beside.ttft_s is not None
    assert beside.ttft_s > longest


def test_neighbours_on_one_machine_slow_each_other() -> None:
    shared = SharedMachine(alone=RATES, together=replace(RATES, decode_step_s=0.03), machine=2)
    pair = joined(one_call(80, 50, "a"), one_call(80, 50, "b"))

    def tokens_s(workers: int, workload: Workload) -> float:
        worker = WorkerSetup(kv_tokens=4096, page_size=1, cost=shared)
        config = replace(setup(workers, worker=worker), router=RouterSetup(policy="round_robin"))
        records = Fleet(config, workload).run()
        return max((record.e2e_s or 0.0) - (record.ttft_s or 0.0) for record in records)

    alone_s = tokens_s(2, one_call(80, 50))
    assert alone_s == pytest.approx(49 * 0.0105)
    assert tokens_s(2, pair) == pytest.approx(49 * 0.0305, rel=0.05)
    # The third and the fourth worker are on the next machine.
    four = joined(pair, one_call(80, 50, "c"), one_call(80, 50, "d"))
    assert tokens_s(4, four) == pytest.approx(49 * 0.0305, rel=0.05)


def test_an_answer_that_is_not_streamed_comes_at_once() -> None:
    (record,) = Fleet(setup(1), one_call(80, 5, stream=False)).run()
    assert record.first_s == record.last_s
    assert record.gaps == ()


def test_a_repeated_prompt_is_found_cached_up_to_its_last_token() -> None:
    worker = WorkerSetup(kv_tokens=4096, page_size=1, cost=RATES)
    second = one_call(80, 5, "d", due_s=2.0)
    first, again = Fleet(setup(1, worker=worker), joined(one_call(80, 5), second)).run()
    assert (first.cached_tokens, again.cached_tokens) == (0, 79)
    assert again.predicted_tokens == 79


@pytest.mark.parametrize("page_size", [1, 16])
def test_jumps_change_nothing(page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step on its own gives the same trace and the same records, to the last bit."""
    worker = WorkerSetup(kv_tokens=3000, page_size=page_size, batch_tokens_max=128, running_max=16, cost=RATES)
    config = setup(2, jitter_s=0.001, worker=worker)
    workload = chats(30, rate=6.0, output=40)
    jumping = Fleet(config, workload)
    with_jumps = jumping.run()
    monkeypatch.setattr(jumps, "JUMP_STEPS_MAX", 1)
    stepping = Fleet(config, workload)
    one_by_one = stepping.run()
    assert jumping.trace == stepping.trace
    assert [replace(record, gaps=()) for record in with_jumps] == [replace(record, gaps=()) for record in one_by_one]
    for one, other in zip(with_jumps, one_by_one, strict=True):
        assert sum(gap * n for gap, n in one.gaps) == pytest.approx(sum(gap * n for gap, n in other.gaps))
    assert jumping.timeline.steps < 0.8 * stepping.timeline.steps, "it has jumped"


def test_a_chat_waits_for_its_answers_and_reuses_them() -> None:
    records = Fleet(setup(2), chats(8, 4, output=50)).run()
    assert len(records) == 32
    assert all(record.ok for record in records)
    by_call = {record.call: record for record in records}
    for number in range(8):
        for turn in range(1, 4):
            before, after = by_call[f"s{number}.{turn - 1}"], by_call[f"s{number}.{turn}"]
            assert before.last_s is not None
            assert before.last_s <= after.due_s == after.sent_s
            assert after.worker == before.worker, "a chat stays where its cache is"
            assert after.cached_tokens is not None
            assert before.prompt_tokens is not None
            # The prompt before and its answer, but for the last token, which no step has computed, and a page.
            assert after.cached_tokens >= before.prompt_tokens + 50 - 1 - 4


def test_a_hint_goes_before_the_calls_that_need_it() -> None:
    calls = joined(*(one_call(200, 5, f"c{number}", due_s=0.01 * number) for number in range(6)))
    hint = Hint(session=None, form="completion", prompt=(Filler(1, 200),))
    hinted = replace(calls, hint_prefixes=(hint,))
    worker = WorkerSetup(kv_tokens=4096, page_size=1, cost=RATES)
    without = Fleet(setup(1, worker=worker), calls).run()
    with_hint = Fleet(setup(1, worker=worker), hinted).run()
    assert min(record.cached_tokens or 0 for record in without) == 0
    assert min(record.cached_tokens or 0 for record in with_hint) == 199
    assert len(with_hint) == 6, "hints leave no record"


def test_a_hint_of_a_session_goes_with_it() -> None:
    hint = Hint(session="c", form="completion", prompt=(Filler(1, 200),))
    late = replace(one_call(200, 5, due_s=1.0), hint_prefixes=(hint,))
    (record,) = Fleet(setup(1), late).run()
    assert record.due_s == 1.0
    assert record.cached_tokens, "the call has waited for its hint's prefill"


def test_a_closed_loop_keeps_its_users() -> None:
    workload = chats(12, 2, rate=1000.0)
    records = Fleet(setup(1), workload, users_max=3).run()
    events = sorted(
        [(record.sent_s, 1, record.session) for record in records if record.call.endswith(".0")]
        + [(record.last_s, -1, record.session) for record in records if record.call.endswith(".1")]  # type: ignore[list-item]
    )
    open_now = most = 0
    for _, change, _ in events:
        open_now += change
        most = max(most, open_now)
    assert most == 3


def test_namespaces_share_nothing() -> None:
    salted = joined(one_call(80, 5, "a"), one_call(80, 5, "b", salt="s", due_s=1.0), one_call(80, 5, "c", due_s=2.0))
    records = Fleet(setup(1), salted).run()
    assert [bool(record.cached_tokens) for record in records] == [False, False, True]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_all(policy: str) -> None:
    config = setup(3)
    config = replace(config, router=replace(config.router, policy=policy))
    fleet = Fleet(config, chats(20))
    records = fleet.run()
    assert all(record.ok for record in records)
    assert len({record.worker for record in records}) == (1 if policy == "longest_prefix" else 3)


def test_several_routers_share_the_work_and_see_the_same_fleet() -> None:
    fleet = Fleet(setup(2, routers=3, worker=SMALL), chats(12, 2, rate=20.0))
    checks = Checks(fleet)
    records = fleet.run(checks.after_step)
    assert all(record.ok for record in records)
    assert all(router.core.has_worker(worker) for router in fleet.routers for worker in fleet.workers)


def config_of(seed: int) -> tuple[FleetSetup, Workload]:
    return setup(3, seed=seed, jitter_s=0.002, routers=2, worker=SMALL), chats(10, seed=seed)


def trace_of(seed: int) -> str:
    config, workload = config_of(seed)
    fleet = Fleet(config, workload)
    fleet.run()
    return fleet.trace


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    assert trace_of(3) == trace_of(3) != trace_of(4)


def test_another_process_gives_the_same_bytes() -> None:
    """Whatever the order in which its sets are walked."""
    code = "from tests.sim.test_fleet import trace_of; print(trace_of(3))"
    traces = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
        )
        traces.add(found.stdout.strip())
    assert traces == {trace_of(3)}


def test_looking_changes_nothing() -> None:
    config, workload = config_of(5)
    watched = Fleet(config, workload)
    checks = Checks(watched)
    watched.run(checks.after_step)
    sampled = Fleet(config, workload)
    sampled.run(Checks(sampled).sample)
    assert watched.trace == sampled.trace == trace_of(5)


def test_a_fleet_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a worker"):
        FleetSetup(workers=())
