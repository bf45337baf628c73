"""How often the verdict on two reports is wrong: on made noise, whose truth is known."""

from __future__ import annotations

from math import exp
from random import Random

import msgspec
import pytest

from tests.loadgen.making import context, record, report
from trieway.loadgen.records import Record
from trieway.loadgen.reports.compare import Verdict, compare
from trieway.loadgen.reports.figures import over_repeats
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.summary import summarise

WRONG = (Verdict.BETTER, Verdict.WORSE)
BLANK = report(1)
FIGURES = ("ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms", "requests_per_s", "hit_rate")


def repeated(rng: Random, repeats: int, noise: float, slower: float = 1.0) -> Report:
    """Six headlines of each repeat. Of a run's noise a half is common to its figures: a slow machine slows all."""
    rows = []
    for _ in range(repeats):
        common = rng.gauss(0.0, noise / 2)
        one = {name: 100.0 * exp(common + rng.gauss(0.0, noise)) for name in FIGURES}
        one["hit_rate"] = 0.8 + rng.gauss(0.0, noise / 20)
        for name in FIGURES[:4]:
            one[name] *= slower
        rows.append(one)
    return msgspec.structs.replace(BLANK, repeats=rows, figures=over_repeats(rows))


@pytest.mark.parametrize("repeats", [2, 3, 5, 10])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_equal_fleets_are_seldom_told_apart(repeats: int, noise: float) -> None:
    """At most one pair in twenty, of six figures each; 200 pairs, so 16 are beyond what chance would do to 5 %."""
    rng = Random(f"{repeats} {noise}")
    pairs = [(repeated(rng, repeats, noise), repeated(rng, repeats, noise)) for _ in range(200)]
    alarms = sum(any(one.verdict in WRONG for one in compare(a, b).differences) for a, b in pairs)
    assert alarms <= 16


def test_a_real_difference_is_found() -> None:
    """20 % slower under 3 % of noise: five repeats see it nearly always, and never the other way round."""
    rng = Random(7)
    verdicts = [compare(repeated(rng, 5, 0.03), repeated(rng, 5, 0.03, slower=1.2)).verdict for _ in range(100)]
    assert Verdict.BETTER not in verdicts
    assert verdicts.count(Verdict.WORSE) >= 95


def test_what_noise_could_hide_is_called_unclear_and_not_equal() -> None:
    rng = Random(8)
    verdicts = [compare(repeated(rng, 3, 0.2), repeated(rng, 3, 0.2, slower=1.15)).verdict for _ in range(100)]
    assert verdicts.count(Verdict.SAME) <= 2
    assert verdicts.count(Verdict.UNCLEAR) >= 80


def correlated(rng: Random, count: int = 500, memory: float = 0.9) -> list[Record]:
    """A queue that comes and goes: neighbours' latencies are alike, as under load."""
    made, level = [], 0.0
    for number in range(count):
        level = memory * level + rng.gauss(0.0, 0.2)
        due = number * 0.1
        first = due + 0.001 + 0.1 * exp(level)
        made.append(
            record(number, due_s=due, sent_s=due + 0.001, first_s=first, last_s=first + 0.08, gaps=((0.02, 4),))
        )
    return made


def test_one_run_each_is_not_fooled_by_a_queue_that_comes_and_goes() -> None:
    """Means vary 4 times as much as independent values would let expect: blocks of neighbours know."""
    rng = Random(9)
    runs = [summarise(correlated(rng), context()) for _ in range(80)]
    alarms = sum(compare(a, b).verdict in WRONG for a, b in zip(runs[::2], runs[1::2], strict=True))
    assert alarms <= 4
