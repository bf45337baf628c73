"""The autoscaling policy: bounds, asymmetry, damping, missing reports; and as Ray Serve calls it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.router.ray_policy import Aim, Memory, Policy, Report, decide, read_reports, strain

AIM = Aim(least=1, most=8, calm_s=60.0, up_pause_s=5.0)
IDLE = Report(queue_ms=0, ttft_ms=0, pressure=0, busy=0)


def loaded(times: float) -> Report:
    """At `times` its target."""
    return Report(queue_ms=0, ttft_ms=AIM.ttft_target_ms * times, pressure=0.1, busy=0.1)


def run(loads: list[float], *, start: int, step_s: float = 1.0, aim: Aim = AIM) -> list[int]:
    """Targets over time, where `loads` is the fleet's whole load in workers and the workers share it evenly."""
    target, memory, seen = start, Memory(), []
    for index, load in enumerate(loads):
        target, memory = decide([loaded(load / target)] * target, target, aim, memory, index * step_s)
        seen.append(target)
    return seen


def test_each_measure_alone_strains() -> None:
    assert strain(IDLE, AIM) == 0
    for field, target in (("queue_ms", 250), ("ttft_ms", 1000), ("pressure", 0.75), ("busy", 0.7)):
        assert strain(replace(IDLE, **{field: 2.0 * target}), AIM) == pytest.approx(2)


def test_up_comes_at_once_and_down_after_a_calm() -> None:
    seen = run([1.0] * 3 + [3.0] * 10 + [0.5] * 200, start=1)
    assert seen[3] == 2, "the first look at the load asks for more, at most twice as many"
    assert max(seen[:13]) == 3
    first_down = next(i for i in range(13, len(seen)) if seen[i] < 3)
    assert first_down - 13 >= AIM.calm_s - 1
    second_down = next(i for i in range(first_down, len(seen)) if seen[i] < 2)
    assert second_down - first_down >= AIM.calm_s - 1
    assert seen[-1] == 1


def test_one_at_a_time_down() -> None:
    seen = run([0.0] * 1000, start=8)
    assert all(before - after in (0, 1) for before, after in pairwise(seen))
    assert seen[-1] == AIM.least


def test_a_load_between_the_bands_moves_nothing() -> None:
    # 3 workers at 0.8 of their targets: two could not carry it calmly, four are not needed.
    assert set(run([2.4] * 500, start=3)) == {3}


def test_a_swinging_load_does_not_swing_the_fleet() -> None:
    seen = run([3.0, 0.5] * 200, start=3)
    assert set(seen) == {3}


def test_a_break_in_the_calm_begins_it_anew() -> None:
    seen = run(([0.5] * 50 + [2.9]) * 6, start=3)
    assert set(seen) == {3}


def test_missing_reports_keep_the_target() -> None:
    assert decide([], 4, AIM, Memory(calm_since=1.0), 1000.0) == (4, Memory(calm_since=None))
    assert decide([], 40, AIM, Memory(), 0.0)[0] == AIM.most


def test_newcomers_are_waited_for_and_given_time() -> None:
    aim = replace(AIM, start_s=60.0)
    target, memory = decide([loaded(5)], 1, aim, Memory(), 0.0)
    assert target == 2
    # The newcomer starts: the queue grows at the only one that serves, and says nothing of how many are needed.
    for now in range(1, 60, 5):
        target, memory = decide([loaded(5 + now)], 2, aim, memory, float(now))
        assert target == 2
    # It serves, and is given time to take load.
    assert decide([loaded(30)] * 2, 2, aim, memory, 60.0)[0] == 2
    # Strain that falls by itself is given more.
    held, later = decide([loaded(25)] * 2, 2, aim, memory, 61.0 + AIM.up_pause_s)
    assert held == 2
    assert decide([loaded(24)] * 2, 2, aim, later, 61.0 + 2 * AIM.up_pause_s)[0] == 4
    assert decide([loaded(30)] * 2, 2, aim, memory, 61.0 + AIM.up_pause_s)[0] == 4


def test_newcomers_that_never_come_are_not_waited_for_for_ever() -> None:
    aim = replace(AIM, start_s=60.0)
    target, memory = decide([loaded(5)], 1, aim, Memory(), 0.0)
    target, memory = decide([loaded(5)], target, aim, memory, 59.0)
    assert target == 2
    assert decide([loaded(5)], target, aim, memory, 65.0)[0] == 4


def test_a_worker_that_died_keeps_nobody_from_joining() -> None:
    # Nothing was asked for lately: the missing one is no newcomer.
    assert decide([loaded(3)], 2, AIM, Memory(), 0.0)[0] == 3


@pytest.mark.parametrize(("load", "start_s"), [(1.5, 30), (2.5, 60), (6.0, 20)])
def test_a_queue_that_grows_while_newcomers_start_brings_no_crowd(load: float, start_s: int) -> None:
    """A queue as it builds: work that is not done waits, and what waits strains."""
    aim = Aim(least=1, most=64)
    target, memory, serving, backlog_s = 1, Memory(), [0], 0.0
    asked: list[int] = []
    peak = 1
    for now in range(600):
        serving += [now for when in asked if now - when == start_s]
        backlog_s = max(0.0, backlog_s + load - len(serving))
        report = Report(queue_ms=0, pressure=0, busy=0.7 * load / len(serving), ttft_ms=1000 * backlog_s / len(serving))
        before = target
        target, memory = decide([report] * len(serving), target, aim, memory, float(now))
        asked += [now] * (target - before)
        peak = max(peak, target)
        if target < len(serving):
            serving = serving[:target]
    # Whatever was too much while the queue lasted leaves again, one at a time.
    assert peak <= 3 * math.ceil(load), f"{peak} workers for a load of {load}"
    assert load <= target < peak or peak <= math.ceil(load) + 2


reports = st.builds(
    Report,
    queue_ms=st.floats(0, 1e5),
    ttft_ms=st.floats(0, 1e6),
    pressure=st.floats(0, 1),
    busy=st.floats(0, 100),
)


@given(
    st.lists(st.lists(reports, max_size=10), max_size=20),
    st.integers(1, 8),
    st.integers(0, 12),
    st.integers(-2, 20),
)
def test_always_within_bounds_and_never_two_down(looks: list[list[Report]], least: int, more: int, start: int) -> None:
    aim = Aim(least=least, most=least + more, calm_s=2.0, up_pause_s=0.0)
    target, memory = start, Memory()
    for index, look in enumerate(looks):
        before = min(max(target, aim.least), aim.most)
        target, memory = decide(look, target, aim, memory, float(index))
        assert aim.least <= target <= aim.most
        assert before - 1 <= target <= math.ceil(before * aim.growth_max)
        assert decide(look, before, aim, memory, float(index)) == decide(look, before, aim, memory, float(index))


def context(metrics: dict[str, Any] | None, *, target: int, now: float, state: dict[str, Any] | None = None) -> Any:
    return SimpleNamespace(
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=5,
        target_num_replicas=target,
        aggregated_metrics=metrics,
        policy_state=state or {},
        current_time=now,
    )


def test_as_serve_calls_it() -> None:
    policy = Policy(calm_s=10.0)
    metrics = {
        "queue_ms": {"a": 0.0, "b": 0.0},
        "ttft_ms": {"a": 3000.0, "b": 1000.0},
        "pressure": {"a": 0.0, "b": 0.0},
        "busy": {"a": 0.0, "b": 0.0},
    }
    target, state = policy(context(metrics, target=2, now=100.0))
    assert target == 4
    assert state["raised_at"] == 100.0
    calm = {name: dict.fromkeys("abcd", 0.0) for name in metrics}
    target, state = policy(context(calm, target=4, now=101.0, state=state))
    assert target == 4
    target, state = policy(context(calm, target=4, now=112.0, state=state))
    assert target == 3
    assert policy(context({}, target=3, now=113.0, state=state))[0] == 3
    assert policy(context(None, target=3, now=113.0, state=state))[0] == 3


def test_replicas_that_report_by_half_are_left_out() -> None:
    metrics: dict[str, dict[Any, float]] = {
        "queue_ms": {"a": 1.0, "b": 2.0},
        "ttft_ms": {"a": 3.0},
        "pressure": {"a": 0.5, "b": 0.5},
        "busy": {"a": 0.0, "b": 0.0},
    }
    assert read_reports(metrics) == [Report(queue_ms=1.0, ttft_ms=3.0, pressure=0.5, busy=0.0)]
