"""The published figures are consistent with each other, and say where they are from."""

from __future__ import annotations

from itertools import pairwise

from trieway.loadgen.reproductions import published
from trieway.loadgen.reproductions.benchmarks import BENCHMARKS
from trieway.loadgen.reproductions.variants import VARIANTS


def test_what_was_read_off_figure_13_gives_the_mean_of_the_text() -> None:
    shares = [one.share for one in published.HIT_RATES.values()]
    assert len(shares) == 11
    assert abs(sum(shares) / len(shares) - published.SHARE_MEAN.value) < 0.01


def test_hit_rates_lie_between_the_ones_of_the_text() -> None:
    for one in published.HIT_RATES.values():
        assert published.HIT_RATE_LOW.value - one.error <= one.achieved <= published.HIT_RATE_HIGH.value + one.error
        assert one.achieved <= one.optimal <= 1.0


def test_the_overhead_is_under_what_the_text_calls_it() -> None:
    share = published.OVERHEAD_MANAGING_S.value / published.OVERHEAD_RUN_S.value
    assert 0.0025 < share < published.OVERHEAD_SHARE.value


def test_the_curve_rises_and_its_tokens_agree() -> None:
    points = published.CURVE
    for before, after in pairwise(points):
        assert before.hit_rate < after.hit_rate
        assert before.batch < after.batch
        assert before.tokens_per_s < after.tokens_per_s
        assert before.run_s > after.run_s
        assert before.ttft_s >= after.ttft_s
    served = [point.tokens_per_s * point.run_s for point in points]
    assert max(served) / min(served) < 1.3, "one workload: throughput times time is about its tokens"


def test_every_reading_says_where_and_how_well() -> None:
    for rows in published.ABLATIONS.values():
        assert set(rows) <= set(VARIANTS) - {"full", "shipped"}
        for reading in rows.values():
            assert 0.0 < reading.value <= 1.0
            assert 0.0 < reading.error <= 0.3
            assert reading.where == "figure 8(c)"


def test_benchmarks_are_named_as_in_the_paper() -> None:
    for what in BENCHMARKS:
        assert (what.name in published.HIT_RATES) == what.published
    assert set(published.ABLATIONS) <= {what.name for what in BENCHMARKS}
