"""The search for the capacity, against servers made up with a known one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.study import certain_share
from trieway.loadgen.runs.capacity import RUNS_MAX, Found, Range, Search, Trial


def search(within: Range, holds: object) -> tuple[Found, list[tuple[float, bool]]]:
    """`holds(rate)`; the answer and every run made."""
    assert callable(holds)
    looking, runs = Search(within), []
    while isinstance(asked := looking.ask(), Trial):
        assert asked == looking.ask(), "asking changes nothing"
        held = bool(holds(asked.rate))
        runs.append((asked.rate, held))
        looking.tell(asked.rate, held)
        looking.check()
        assert len(runs) < RUNS_MAX
    return asked, runs


@given(st.floats(0.1, 10), st.floats(1, 1000), st.floats(0.02, 0.5), st.integers(1, 7), st.floats(0.05, 20_000))
def test_a_sharp_capacity_is_found_within_the_precision(
    low: float, times: float, precision: float, repeats: int, capacity: float
) -> None:
    within = Range(low=low, high=low * times, precision=precision, repeats=repeats)
    found, runs = search(within, lambda rate: rate <= capacity)
    if capacity < low:
        assert found.rate is None
        assert found.fails_at == low
        return
    assert found.rate is not None
    assert found.rate <= capacity
    assert (found.held, found.repeats) == (repeats, repeats)
    if found.fails_at is None:
        assert found.rate == pytest.approx(within.high, rel=1e-3)
    else:
        assert capacity < found.fails_at
        assert found.fails_at / found.rate <= 1 + precision + 1e-3
    rates = {rate for rate, _ in runs}
    assert all(low * 0.999 <= rate <= within.high * 1.001 for rate in rates)


def test_noise_near_the_edge_is_outvoted() -> None:
    rng = Random(3)
    answers = []
    for _ in range(100):
        within = Range(low=1, high=100, precision=0.1, repeats=5)
        found, _ = search(within, lambda rate: rng.random() < (0.95 if rate <= 20 else 0.05))
        answers.append(found.rate or 0.0)
    near = sum(18 <= rate <= 22 for rate in answers)
    assert near >= 85


def test_no_run_is_made_that_cannot_matter() -> None:
    _, runs = search(Range(low=1, high=64, precision=1, repeats=5), lambda rate: rate <= 8)
    by_rate: dict[float, int] = {}
    for rate, _ in runs:
        by_rate[rate] = by_rate.get(rate, 0) + 1
    assert by_rate == {1.0: 3, 2.0: 3, 4.0: 3, 8.0: 5, 16.0: 3}


def test_what_was_seen_is_replayed_to_the_same_place() -> None:
    within = Range(low=1, high=100)
    whole, runs = search(within, lambda rate: rate <= 37)
    for cut in range(len(runs)):
        again = Search(within)
        for rate, held in runs[:cut]:
            again.tell(rate, held)
        asked = again.ask()
        assert isinstance(asked, Trial)
        assert asked.rate == runs[cut][0]
    assert whole.rate is not None


@pytest.mark.parametrize(
    "bad",
    [{"low": 0}, {"low": 2, "high": 1}, {"low": -1}, {"high": float("inf")}, {"low": float("nan")},
     {"precision": 0}, {"repeats": 0}, {"repeats": 100}],
)  # fmt: skip
def test_a_range_that_cannot_be(bad: dict[str, float]) -> None:
    with pytest.raises(LoadError):
        Range(**({"low": 1, "high": 2} | bad))  # type: ignore[arg-type]


def test_how_sure_repeats_make() -> None:
    """The known one-sided points: 3 of 3 is 37 %, 5 of 5 is 55 %, 59 of 59 is 95 %."""
    assert certain_share(3, 3) == pytest.approx(0.05 ** (1 / 3), abs=1e-6)
    assert certain_share(5, 5) == pytest.approx(0.549, abs=1e-3)
    assert certain_share(59, 59) == pytest.approx(0.95, abs=1e-3)
    assert certain_share(0, 5) == 0.0
    assert certain_share(0, 0) is None
    assert (certain_share(4, 5) or 0) < (certain_share(5, 5) or 0)
