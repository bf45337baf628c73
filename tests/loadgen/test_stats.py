"""Percentiles and intervals against plain second implementations."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.reports.stats import QUANTILES, Sorted, interval, ratio, spread, t95

TIMES = st.floats(min_value=0, max_value=1e6)


@given(st.lists(TIMES, min_size=2, max_size=40))
def test_percentiles_interpolate_as_the_standard_library_does(values: list[float]) -> None:
    found = Sorted.of(values)
    for number, expected in enumerate(quantiles(values, n=100, method="inclusive"), start=1):
        at = found.quantile(number / 100)
        assert at == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found.quantile(0.0) == min(values)
    assert found.quantile(1.0) == max(values)
    assert found.mean == pytest.approx(fmean(values))


@given(st.lists(st.tuples(TIMES, st.integers(0, 5)), max_size=20), st.floats(0, 1))
def test_a_weighted_value_counts_as_if_written_out(pairs: list[tuple[float, int]], share: float) -> None:
    plain = Sorted.of([value for value, count in pairs for _ in range(count)])
    weighted = Sorted(pairs)
    assert weighted.count == plain.count
    assert weighted.quantile(share) == plain.quantile(share)


def test_nothing_has_no_percentile() -> None:
    assert Sorted.of([]).quantile(0.5) is None
    assert Sorted([(1.0, 0)]).count == 0
    assert Sorted.of([]).mean is None


def test_one_value_is_every_percentile() -> None:
    assert [Sorted.of([3.0]).quantile(share) for share in QUANTILES] == [3.0] * len(QUANTILES)


def test_quantiles_rise() -> None:
    assert list(QUANTILES) == sorted(set(QUANTILES))
    assert QUANTILES[-1] == 1.0


def test_student_falls_to_the_normal() -> None:
    points = [t95(freedom) for freedom in range(1, 200)]
    assert points == sorted(points, reverse=True)
    assert points[0] == 12.706
    assert points[9] == 2.228
    assert t95(1e6) == pytest.approx(1.96, abs=1e-3)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = Random(5)
    inside = 0
    for _ in range(1000):
        low, high = interval([rng.gauss(10, 3) for _ in range(5)]) or (0, 0)
        inside += low <= 10 <= high
    assert 0.93 <= inside / 1000 <= 0.97


def test_one_value_has_no_interval() -> None:
    assert interval([1.0]) is None


def test_batch_means_cover_a_percentile() -> None:
    """The median of an exponential is ln 2; independent values, so the blocks are too."""
    rng = Random(9)
    inside = 0
    for _ in range(200):
        values = [rng.expovariate(1.0) for _ in range(600)]
        whole = Sorted.of(values).quantile(0.5)
        assert whole is not None
        low, high = spread(values, lambda block: Sorted.of(block).quantile(0.5), whole) or (0, 0)
        inside += low <= math.log(2) <= high
    assert inside >= 180


def test_batch_means_see_that_neighbours_depend_on_each_other() -> None:
    rng, level, values = Random(3), 0.0, []
    for _ in range(1000):
        level = 0.95 * level + rng.gauss(0, 1)
        values.append(level)
    shuffled = values[:]
    rng.shuffle(shuffled)
    slow, fast = (spread(each, fmean, fmean(values)) for each in (values, shuffled))
    assert slow is not None
    assert fast is not None
    assert slow[1] - slow[0] > 2 * (fast[1] - fast[0])


def test_too_little_has_no_interval() -> None:
    assert spread([1.0] * 49, fmean, 1.0) is None
    assert spread([1.0] * 50, fmean, 1.0) == (1.0, 1.0)
    assert spread([1.0] * 50, lambda block: None, 1.0) is None


def test_a_share_of_nothing_is_unknown() -> None:
    assert ratio(0, 0) is None
    assert ratio(1, 4) == 0.25
