"""Learnt rates: they find the truth, shrug off outliers, fade to the prior, and never turn absurd."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.router.core.rates import Affine, Line, Mean, Ratio

PRIOR = Line(overhead_ms=10.0, ms_per_unit=1.0)


def affine() -> Affine:
    return Affine(halflife_s=120.0, error_min=0.05, pull=(0.1, 1.0))


def test_before_any_sample_the_prior_holds() -> None:
    line = affine().line(5.0, PRIOR)
    assert line.overhead_ms == pytest.approx(10.0)
    assert line.ms_per_unit == pytest.approx(1.0)
    assert line.at(100) == pytest.approx(110.0)
    assert line.samples == 0.0


@pytest.mark.parametrize(("overhead", "slope"), [(45.0, 0.83), (8.0, 0.03), (2.0, 0.01), (100.0, 4.0)])
def test_finds_overhead_and_slope_of_mixed_lengths(overhead: float, slope: float) -> None:
    rng = random.Random(1)
    learnt = affine()
    for step in range(60):
        units = rng.choice([16, 64, 200, 1000, 3000])
        learnt.observe(units, (overhead + slope * units) * rng.uniform(0.95, 1.05), step * 0.5)
    line = learnt.line(30.0, PRIOR)
    assert line.ms_per_unit == pytest.approx(slope, rel=0.1)
    for units in (16, 1000):
        assert line.at(units) == pytest.approx(overhead + slope * units, rel=0.15)


def test_short_prompts_do_not_make_a_worker_slow() -> None:
    """A worker that was only asked short prompts pays its overhead each time, and no more for a long one."""
    short, long = affine(), affine()
    for step in range(40):
        short.observe(16 + step % 5, 45.0 + 0.8 * (16 + step % 5), step)
        long.observe(900 + step, 45.0 + 0.8 * (900 + step), step)
    one, two = short.line(40.0, PRIOR), long.line(40.0, PRIOR)
    assert one.at(1000) == pytest.approx(two.at(1000), rel=0.35)


def test_one_outlier_moves_little() -> None:
    learnt = affine()
    for step in range(30):
        learnt.observe(500, 410.0, step)
    before = learnt.line(30.0, PRIOR).at(500)
    learnt.observe(500, 60_000.0, 30.5)
    assert learnt.line(30.5, PRIOR).at(500) < 1.15 * before


def test_a_changed_worker_is_known_within_thirty_requests() -> None:
    learnt = affine()
    for step in range(100):
        learnt.observe(500, 410.0, step * 0.1)
    for step in range(30):
        learnt.observe(500, 1230.0, 10 + step * 0.1)
    assert learnt.line(13.0, PRIOR).at(500) > 700.0


def test_without_traffic_the_prior_returns() -> None:
    learnt = affine()
    for step in range(30):
        learnt.observe(512, 5120.0, step * 0.1)
    assert learnt.line(3.0, PRIOR).at(512) > 3000.0
    assert learnt.line(3.0 + 120 * 16, PRIOR).at(512) == pytest.approx(PRIOR.at(512), rel=0.05)


def test_the_error_falls_with_evidence_to_its_floor() -> None:
    learnt = affine()
    first = learnt.line(0.0, PRIOR).error
    for step in range(200):
        learnt.observe(500, 410.0, step * 0.01)
    last = learnt.line(2.0, PRIOR).error
    assert first > last >= 0.05


def test_broken_samples_are_ignored() -> None:
    learnt = affine()
    for units, ms in [(-1.0, 5.0), (10.0, -1.0), (10.0, float("nan")), (float("nan"), 1.0), (5.0, float("inf"))]:
        learnt.observe(units, ms, 1.0)
    assert learnt.samples(1.0) == 0.0


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0, 1e8), st.floats(0, 500.0)),
        max_size=60,
    )
)
def test_estimates_are_positive_and_finite_whatever_comes(samples: list[tuple[float, float, float]]) -> None:
    learnt, now = affine(), 0.0
    for units, ms, passed in samples:
        now += passed
        learnt.observe(units, ms, now)
        line = learnt.line(now, PRIOR)
        assert 0.0 <= line.overhead_ms < 1e12
        assert 0.0 < line.ms_per_unit < 1e12
        assert 0.05 <= line.error < 10.0
        assert learnt.samples(now) <= 32.0


def test_ratio_follows_the_text() -> None:
    ratio = Ratio(prior=4.0, prior_weight=64.0)
    assert ratio.value == 4.0
    for _ in range(200):
        ratio.observe(300.0, 100.0)
    assert ratio.value == pytest.approx(3.0, rel=0.02)
    ratio.observe(0.0, 10.0)
    ratio.observe(10.0, 0.0)
    ratio.observe(1e9, 1.0)
    assert ratio.value < 6.0


def test_mean_follows_and_bounds_outliers() -> None:
    mean = Mean(1000.0)
    for _ in range(100):
        mean.observe(200.0)
    assert mean.value == pytest.approx(200.0, rel=0.01)
    mean.observe(1e9)
    assert mean.value < 400.0
    mean.observe(-5.0)
    assert mean.value > 200.0
