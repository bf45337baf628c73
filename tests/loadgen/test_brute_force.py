"""Reports and arrivals against their definitions, written down as plainly as can be."""

from __future__ import annotations

from itertools import islice, pairwise
from math import exp, floor, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.making import context, record
from trieway.loadgen.arrivals import OpenLoop, poisson, ramp, steps
from trieway.loadgen.records import Record
from trieway.loadgen.reports.schema import Distribution
from trieway.loadgen.reports.slo import parse_slo
from trieway.loadgen.reports.stats import Sorted
from trieway.loadgen.reports.summary import summarise


@st.composite
def runs(draw: st.DrawFn) -> list[Record]:
    made = []
    for number in range(draw(st.integers(1, 25))):
        due = draw(st.floats(0, 30))
        sent = due + draw(st.floats(0, 0.2))
        first = sent + draw(st.floats(0.001, 2))
        gaps = tuple(draw(st.lists(st.tuples(st.floats(0.001, 0.5), st.integers(1, 5)), max_size=3)))
        prompt = draw(st.integers(1, 500))
        made.append(
            record(
                number, due_s=due, sent_s=sent, first_s=first, last_s=first + sum(gap * count for gap, count in gaps),
                gaps=gaps, output_tokens=1 + sum(count for _, count in gaps), worker=draw(st.sampled_from("abc")),
                prompt_tokens=prompt, cached_tokens=draw(st.integers(0, prompt)),
                status=draw(st.sampled_from(["ok", "ok", "ok", "http_503"])),
            )
        )  # fmt: skip
    return made


def percentile(values: list[float], share: float) -> float:
    """Between the two values around it, in a straight line."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = floor(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)


def agree(found: Distribution, seconds: list[float]) -> None:
    assert found.count == len(seconds)
    if seconds:
        ms = [1e3 * value for value in seconds]
        assert found.mean == pytest.approx(sum(ms) / len(ms))
        for told, share in ((found.p50, 0.5), (found.p90, 0.9), (found.p95, 0.95), (found.p99, 0.99), (found.max, 1.0)):
            assert told == pytest.approx(percentile(ms, share))


@given(runs())
def test_a_report_says_what_its_records_say(made: list[Record]) -> None:
    found = summarise(made, context(slo=parse_slo("ttft_p95=1s,e2e_p95=1500ms,errors=10%")))
    ok = [one for one in made if one.status == "ok"]
    agree(found.latency.ttft_ms, [one.first_s - one.due_s for one in ok if one.first_s is not None])
    agree(found.latency.e2e_ms, [one.last_s - one.due_s for one in ok if one.last_s is not None])
    agree(found.latency.itl_ms, [gap for one in ok for gap, count in one.gaps for _ in range(count)])
    prompts, cached = sum(one.prompt_tokens or 0 for one in ok), sum(one.cached_tokens or 0 for one in ok)
    assert found.cache.input_tokens == prompts
    assert found.cache.hit_rate == (cached / prompts if prompts else None)
    for share in found.balance.workers:
        mine = [one for one in ok if one.worker == share.worker]
        assert share.requests == len(mine)
        assert share.input_tokens == sum(one.prompt_tokens or 0 for one in mine)
        assert share.uncached_tokens == sum((one.prompt_tokens or 0) - (one.cached_tokens or 0) for one in mine)
    assert found.goodput is not None
    good = [one for one in ok if (one.ttft_s or 0.0) <= 1.0 and (one.e2e_s or 0.0) <= 1.5]
    assert found.goodput.good == len(good)
    if ok:
        holds = len(made) - len(ok) <= 0.1 * len(made)
        holds &= percentile([one.ttft_s or 0.0 for one in ok], 0.95) <= 1.0
        holds &= percentile([one.e2e_s or 0.0 for one in ok], 0.95) <= 1.5
        assert found.goodput.holds == holds


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 6)), max_size=20), st.floats(0, 1))
def test_weighted_values_are_many_equal_ones(pairs: list[tuple[float, int]], share: float) -> None:
    written_out = [value for value, count in pairs for _ in range(count)]
    found = Sorted(pairs)
    assert found.count == len(written_out)
    if written_out:
        assert found.quantile(share) == pytest.approx(percentile(written_out, share), rel=1e-9, abs=1e-6)
    else:
        assert found.quantile(share) is None


# Arrivals: a Poisson process of any profile, once its times are straightened out, has exponential gaps of mean 1.

PROFILES = {
    "poisson": poisson(20.0),
    "ramp up": ramp(0.5, 40.0, 120.0),
    "ramp down": ramp(40.0, 2.0, 60.0),
    "steps": steps([(5.0, 30.0), (60.0, 30.0), (1.0, 10.0), (20.0, 30.0)]),
}


def expected(profile: OpenLoop, until: float, parts: int = 400) -> float:
    """Arrivals until a moment: the rate, added up in small steps."""
    total, elapsed = 0.0, 0.0
    for one in profile.stretches:
        length = min(one.seconds, max(until - elapsed, 0.0))
        for part in range(parts):
            at = (part + 0.5) / parts * length
            total += (one.first + (one.last - one.first) * at / one.seconds) * length / parts
        elapsed += one.seconds
    return total + max(until - elapsed, 0.0) * profile.stretches[-1].last


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("seed", [1, 2])
def test_straightened_out_every_profile_is_poisson(name: str, seed: int) -> None:
    profile, count = PROFILES[name], 1500
    times = list(islice(profile.times(Random(seed)), count))
    marks = [0.0, *(expected(profile, time) for time in times)]
    gaps = sorted(later - earlier for earlier, later in pairwise(marks))
    # Kolmogorov and Smirnov: a right sample is farther off once in a thousand.
    farthest = max(
        max(abs((rank + 1) / count - (1 - exp(-gap))), abs(rank / count - (1 - exp(-gap))))
        for rank, gap in enumerate(gaps)
    )
    assert farthest < 1.95 / sqrt(count)
    assert marks[-1] == pytest.approx(count, abs=4 * sqrt(count))
