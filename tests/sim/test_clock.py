"""Virtual time: order, ties, clocks that run at other rates."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.sim.clock import LocalClock, Timeline


@given(times=st.lists(st.floats(0, 100), max_size=30))
def test_calls_run_in_the_order_of_their_times_and_of_their_asking(times: list[float]) -> None:
    timeline = Timeline()
    seen: list[tuple[float, int]] = []
    for number, when in enumerate(times):
        timeline.at(when, lambda when, number: seen.append((when, number)), when, number)
    assert len(timeline) == len(times)
    while timeline.step():
        pass
    assert seen == sorted(seen)
    assert timeline.steps == len(times)


def test_what_is_late_runs_now() -> None:
    timeline = Timeline()
    seen: list[float] = []
    timeline.at(5.0, lambda: timeline.at(1.0, lambda: seen.append(timeline.now)))
    while timeline.step():
        pass
    assert seen == [5.0]


@given(rates=st.lists(st.floats(0.5, 2.0), max_size=10), gaps=st.lists(st.floats(0, 10), min_size=10, max_size=10))
def test_a_local_clock_never_runs_back(rates: list[float], gaps: list[float]) -> None:
    timeline = Timeline()
    clock = LocalClock(timeline, start=3.0)
    before = clock.now()
    for rate, gap in zip(rates, gaps, strict=False):
        clock.skew(rate)
        assert clock.now() >= before - 1e-9
        timeline.now += gap
        assert clock.now() >= before - 1e-9
        before = clock.now()


def test_a_fast_clock_is_fast() -> None:
    timeline = Timeline()
    clock = LocalClock(timeline, start=100.0, rate=2.0)
    assert clock.at(3.0) == 106.0
    timeline.now = 3.0
    clock.skew(1.0)
    timeline.now = 4.0
    assert clock.now() == 107.0
