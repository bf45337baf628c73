"""Arrival processes: rates and regularity as promised, profiles, seeds, and every refusal."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.arrivals import (
    ClosedLoop,
    OpenLoop,
    Stretch,
    TraceTimes,
    constant,
    gamma,
    parse,
    poisson,
    ramp,
    schedule,
    steps,
    users_of,
)
from trieway.loadgen.errors import ArrivalError
from trieway.loadgen.vocabulary import Call, Hint, Text, Workload


def take(arrivals: OpenLoop, count: int, seed: int = 1) -> list[float]:
    return list(islice(arrivals.times(Random(seed)), count))


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def test_constant_is_even_from_the_start() -> None:
    assert take(constant(4.0), 5) == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(("shape", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_mean_of_the_rate_and_the_variation_of_the_burstiness(shape: float, variation: float) -> None:
    found = gaps(take(gamma(5.0, shape), 20_000))
    assert fmean(found) == pytest.approx(0.2, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(variation, rel=0.06)


def test_poisson_is_gamma_of_one() -> None:
    assert take(poisson(3.0), 50) == take(gamma(3.0, 1.0), 50)


def test_a_seed_names_the_times() -> None:
    assert take(poisson(3.0), 20, seed=5) == take(poisson(3.0), 20, seed=5) != take(poisson(3.0), 20, seed=6)


def test_a_ramp_speeds_up_and_then_holds() -> None:
    even = OpenLoop(stretches=(Stretch(first=0.0, last=10.0, seconds=20.0),), burstiness=None)
    times = take(even, 150)
    assert even.arrivals == 100.0
    assert times[25] == pytest.approx(10.0)  # a quarter of the triangle in half of the time
    assert times[100] == pytest.approx(20.0)
    assert gaps(times)[120] == pytest.approx(0.1)


def test_steps_keep_their_rates() -> None:
    counts = [0, 0, 0]
    for time in take(steps([(50.0, 10.0), (5.0, 10.0), (200.0, 10.0)]), 2_500):
        if time < 30.0:
            counts[int(time // 10)] += 1
    assert counts[0] == pytest.approx(500, rel=0.2)
    assert counts[1] == pytest.approx(50, rel=0.5)
    assert counts[2] == pytest.approx(2000, rel=0.2)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 50), st.floats(0.1, 30)), min_size=1, max_size=4),
    st.sampled_from([None, 0.3, 1.0, 3.0]),
    st.integers(0, 100),
)
def test_times_never_go_back_and_keep_to_the_profile(
    levels: list[tuple[float, float, float]], burstiness: float | None, seed: int
) -> None:
    stretches = tuple(Stretch(first=first, last=last, seconds=seconds) for first, last, seconds in levels)
    arrivals = OpenLoop(stretches=stretches, burstiness=burstiness)
    times = take(arrivals, 200, seed)
    assert times[0] >= 0.0
    assert all(gap >= -1e-9 for gap in gaps(times))
    if burstiness is None:
        within = sum(time < arrivals.seconds - 1e-6 for time in times)
        assert within in range(min(200, int(arrivals.arrivals) - 1), min(200, int(arrivals.arrivals) + 1) + 1)


def workload(turns: int = 1, sessions: int = 6) -> Workload:
    calls = [
        Call(
            id=f"{s}.{t}",
            session=f"s{s}",
            form="completion",
            prompt=(Text("x"),),
            after=(f"{s}.{t - 1}",) if t else (),
            think_s=2.0 if t else 0.0,
            due_s=s * 10.0 if not t else None,
        )
        for s in range(sessions)
        for t in range(turns)
    ]
    hints = tuple(Hint(session=f"s{s}", form="completion", prompt=(Text("x"),)) for s in range(sessions))
    return Workload(name="w", seed=0, calls=tuple(calls), hint_prefixes=hints)


def test_sessions_arrive_in_order_and_their_later_calls_have_no_time_of_their_own() -> None:
    found = schedule(workload(turns=2), constant(1.0), seed=1)
    found.check()
    assert [call.due_s for call in found.calls if not call.after] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert all(call.due_s is None for call in found.calls if call.after)
    assert [call.due_s for call in schedule(workload(turns=2), constant(1.0), seed=1, per="session").calls][2] == 1.0


def test_free_calls_of_a_session_are_due_together() -> None:
    calls = tuple(Call(id=str(n), session="s", form="completion", prompt=(Text("x"),)) for n in range(3))
    found = schedule(Workload(name="w", seed=0, calls=calls), poisson(1.0), seed=3)
    assert len({call.due_s for call in found.calls}) == 1


def test_trace_times_are_kept_or_sped_up() -> None:
    found = schedule(workload(turns=2), TraceTimes(speed=4.0), seed=1)
    assert [call.due_s for call in found.calls][:3] == [0.0, None, 2.5]
    assert found.calls[1].think_s == 0.5
    bare = schedule(workload(), ClosedLoop(users=2), seed=1)
    assert all(call.due_s is None for call in bare.calls)
    with pytest.raises(ArrivalError, match="no times of its own"):
        schedule(bare, TraceTimes(), seed=1)


def test_what_begins_too_late_is_left_out_whole() -> None:
    found = schedule(workload(turns=2), constant(1.0), seed=1, until_s=4.0)
    found.check()
    assert [call.id for call in found.calls] == ["0.0", "0.1", "1.0", "1.1"]
    assert [hint.session for hint in found.hint_prefixes] == ["s0", "s1"]


def test_an_empty_workload_stays_empty() -> None:
    assert schedule(Workload(name="w", seed=0, calls=()), poisson(1.0), seed=1).calls == ()


def test_the_flow_is_told_of_users() -> None:
    assert users_of(ClosedLoop(users=3)) == 3
    assert users_of(poisson(1.0)) is None


GOOD = {
    "constant:4": constant(4.0),
    "poisson:0.5": poisson(0.5),
    "gamma:4:0.25": gamma(4.0, 0.25),
    "ramp:1:20:60": ramp(1.0, 20.0, 60.0),
    "steps:1x30,2x30": steps([(1.0, 30.0), (2.0, 30.0)]),
    "trace": TraceTimes(),
    "trace:2": TraceTimes(speed=2.0),
    "closed:16": ClosedLoop(users=16),
}


@pytest.mark.parametrize("text", GOOD)
def test_the_command_line_says_what_it_means(text: str) -> None:
    assert parse(text) == GOOD[text]


BAD = (
    *("", "poisson", "poisson:", "poisson:x", "poisson:0", "poisson:-1", "poisson:nan", "poisson:inf", "poisson:1:2"),
    *("gamma:4", "gamma:4:0", "gamma:4:-1", "ramp:1:2", "ramp:1:0:5", "ramp:-1:2:5", "ramp:1:2:0", "ramp:1:2:inf"),
    *("steps:", "steps:1", "steps:1x", "steps:0x5", "steps:1x2x3", "closed:0", "closed:1.5", "closed:-3", "trace:0"),
    *("trace:nan", "burst:3"),
)


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ArrivalError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_a_profile_needs_a_stretch_and_an_end_that_moves() -> None:
    with pytest.raises(ArrivalError, match="needs a stretch"):
        OpenLoop(stretches=())
    with pytest.raises(ArrivalError, match="last rate"):
        OpenLoop(stretches=(Stretch(first=1.0, last=0.0, seconds=1.0),))
