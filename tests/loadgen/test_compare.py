"""The verdict on two reports: what noise looks like, and what is a difference."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.making import report
from trieway.loadgen.reports.compare import Verdict, compare, lines
from trieway.loadgen.reports.figures import over_repeats
from trieway.loadgen.reports.schema import Figure, Report


def with_repeats(values: dict[str, list[float]]) -> Report:
    count = len(next(iter(values.values())))
    repeats = [{name: series[number] for name, series in values.items()} for number in range(count)]
    return msgspec.structs.replace(report(1), repeats=repeats, figures=over_repeats(repeats))


def only(values: dict[str, Figure]) -> Report:
    return msgspec.structs.replace(report(1), figures=values)


def test_a_report_does_not_differ_from_itself() -> None:
    found = compare(report(), report())
    assert {one.verdict for one in found.differences} <= {Verdict.SAME, Verdict.UNCLEAR}
    assert all(one.change == 0 for one in found.differences)
    assert found.verdict in (Verdict.SAME, Verdict.UNCLEAR)


def test_twice_as_slow_is_worse_and_the_other_way_better() -> None:
    slow, fast = report(seed=2, mean_s=0.3), report(seed=1, mean_s=0.1)
    worse = compare(fast, slow)
    assert worse.verdict is Verdict.WORSE
    assert "ttft_p50_ms" in worse.summary
    assert compare(slow, fast).verdict is Verdict.BETTER


def test_equal_loads_seldom_differ() -> None:
    """Of 60 pairs of equal runs hardly one is called different, though ten figures are looked at in each."""
    verdicts = [compare(report(seed=seed), report(seed=seed + 1000)).verdict for seed in range(60)]
    assert sum(one in (Verdict.BETTER, Verdict.WORSE) for one in verdicts) <= 2


def test_repeats_count_more_than_the_runs_own_intervals() -> None:
    rng = Random(4)
    noisy = {"ttft_p50_ms": [100 + rng.gauss(0, 30) for _ in range(4)]}
    other = {"ttft_p50_ms": [110 + rng.gauss(0, 30) for _ in range(4)]}
    (difference,) = compare(with_repeats(noisy), with_repeats(other)).differences
    assert difference.verdict is Verdict.UNCLEAR
    steady = {"ttft_p50_ms": [100.0, 101.0, 99.0, 100.0]}
    shifted = {"ttft_p50_ms": [110.0, 111.0, 109.0, 110.0]}
    (difference,) = compare(with_repeats(steady), with_repeats(shifted)).differences
    assert difference.verdict is Verdict.WORSE
    assert difference.low is not None
    assert difference.low > 0.05


def test_repeats_that_agree_exactly_have_no_noise() -> None:
    a, b = with_repeats({"hit_rate": [0.5, 0.5]}), with_repeats({"hit_rate": [0.6, 0.6]})
    (difference,) = compare(a, b).differences
    assert difference.verdict is Verdict.BETTER
    assert difference.change == pytest.approx(0.1)
    assert difference.is_share


def test_what_nobody_would_care_for_is_no_difference() -> None:
    a, b = with_repeats({"ttft_p50_ms": [100.0, 100.0]}), with_repeats({"ttft_p50_ms": [101.0, 101.0]})
    assert compare(a, b).summary == "NO DIFFERENCE that matters"


def test_without_any_interval_a_large_change_is_unclear() -> None:
    a, b = only({"work_imbalance": Figure(value=1.0)}), only({"work_imbalance": Figure(value=2.0)})
    (difference,) = compare(a, b).differences
    assert difference.verdict is Verdict.UNCLEAR
    assert difference.low is None
    assert compare(a, b).summary.startswith("NOT SHOWN")


def test_better_here_and_worse_there_is_mixed() -> None:
    a = with_repeats({"ttft_p50_ms": [100.0, 100.0], "hit_rate": [0.5, 0.5]})
    b = with_repeats({"ttft_p50_ms": [150.0, 150.0], "hit_rate": [0.8, 0.8]})
    found = compare(a, b)
    assert found.summary == "MIXED: b is better in hit_rate and worse in ttft_p50_ms"
    assert found.verdict is Verdict.UNCLEAR


def test_from_nothing_to_something() -> None:
    a, b = with_repeats({"itl_p50_ms": [0.0, 0.0]}), with_repeats({"itl_p50_ms": [1.0, 1.0]})
    text = "\n".join(lines(compare(a, b)))
    assert "new" in text


def test_what_makes_reports_unlike_is_said() -> None:
    a = report(1, workload="x", seed=1)
    b = msgspec.structs.replace(report(1), kind="sim", partial=True, partial_reason="broken off", seed=9)
    text = "\n".join(compare(a, b).warnings)
    for said in ("b is partial: broken off", "a is a load, b a sim", "workload differs: x and made up", "seed differs"):
        assert said in text
    assert "one run" in text


@given(st.floats(1, 1e4), st.floats(0.5, 2.0), st.floats(0.01, 0.3), st.sampled_from(["ttft_p50_ms", "requests_per_s"]))
def test_a_verdict_turns_around_with_its_sides(value: float, factor: float, noise: float, name: str) -> None:
    def one(at: float) -> Report:
        return only({name: Figure(value=at, low=at * (1 - noise), high=at * (1 + noise))})

    forth, back = compare(one(value), one(value * factor)), compare(one(value * factor), one(value))
    opposite = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    one_way, other_way = forth.verdict, back.verdict
    # Relative changes are not symmetric: near the edge one side may be just unclear.
    assert other_way is opposite.get(one_way, other_way) or Verdict.UNCLEAR in (one_way, other_way)


def test_the_text_ends_with_the_verdict() -> None:
    text = list(lines(compare(report(seed=1), report(seed=2, mean_s=0.3))))
    assert text[-1].startswith("b is WORSE in ttft_p50_ms")
    assert any("95 % interval" in line for line in text)
