"""Service level objectives: reading, writing, judging."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.making import context, noisy, record
from trieway.loadgen.errors import LoadError
from trieway.loadgen.records import ABANDONED
from trieway.loadgen.reports.judging import broken, is_good, judge, tpot_s
from trieway.loadgen.reports.slo import METRICS, Slo, parse_slo
from trieway.loadgen.reports.summary import summarise


def test_terms_have_units() -> None:
    slo = parse_slo("ttft_p95=0.5s, itl_p99<=50, e2e_max=2000ms,errors=2%")
    limits = {(bound.metric, bound.quantile): bound.limit_ms for bound in slo.bounds}
    assert limits == {("ttft", "p95"): 500.0, ("itl", "p99"): 50.0, ("e2e", "max"): 2000.0}
    assert slo.errors_max == 0.02


def test_errors_are_bounded_without_a_word() -> None:
    assert parse_slo("ttft_p50=1s").errors_max == 0.01
    assert parse_slo("errors=0").errors_max == 0.0


@given(
    st.lists(st.tuples(st.sampled_from(METRICS), st.sampled_from(["p50", "p90", "p95", "p99", "max"]),
                       st.integers(1, 99_999)), min_size=1, max_size=5, unique_by=lambda term: term[:2]),
    st.integers(0, 100),
)  # fmt: skip
def test_what_is_written_reads_back(terms: list[tuple[str, str, int]], percent: int) -> None:
    text = ",".join([*(f"{metric}_{quantile}={limit}ms" for metric, quantile, limit in terms), f"errors={percent}%"])
    slo = parse_slo(text)
    assert parse_slo(str(slo)) == slo


def test_a_term_given_twice_is_one_line() -> None:
    with pytest.raises(LoadError, match="names ttft_p50 twice"):
        parse_slo("ttft_p50=1ms,ttft_p50=2ms")


@pytest.mark.parametrize(
    "text",
    ["", " , ", "ttft", "ttft_p95", "ttft_p95=", "ttft_p95=-1", "ttft_p95=0", "ttft_p42=1", "speed_p95=1", "p95=3",
     "ttft_p95=5%", "errors=101%", "errors=2", "errors=3ms", "ttft_p95=1e999", "ttft_p95=nan", "ttft_p95=1 year"],
)  # fmt: skip
def test_nonsense_is_one_line(text: str) -> None:
    with pytest.raises(LoadError) as caught:
        parse_slo(text)
    assert "\n" not in str(caught.value)
    assert "ttft_p95=500ms" in str(caught.value), "says what to give"


def test_a_request_is_good_by_its_own_times() -> None:
    slo = parse_slo("ttft_p95=100ms,itl_p95=20ms,e2e_p95=180ms")
    assert is_good(record(), slo)
    assert not is_good(record(first_s=0.11), slo)
    assert not is_good(record(last_s=0.2), slo)
    assert not is_good(record(status="http_500"), slo)


def test_one_token_has_no_waits() -> None:
    single = record(output_tokens=1, gaps=(), last_s=0.1)
    assert tpot_s(single) is None
    slo = parse_slo("itl_p95=1ms")
    assert is_good(single, slo)
    assert broken([single], slo) == []


def test_the_run_is_judged_by_its_percentiles() -> None:
    measured = noisy(200, seed=1)
    assert judge(measured, parse_slo("ttft_p95=10s"), 20.0).holds
    found = judge(measured, parse_slo("ttft_p50=1ms,itl_p95=20.1ms"), 20.0)
    assert not found.holds
    assert len(found.broken) == 1
    assert found.broken[0].startswith("ttft p50 ")
    assert found.broken[0].endswith("> 1 ms")


def test_failed_and_abandoned_requests_count_as_errors() -> None:
    bad = record(1, status="http_503", first_s=None)
    never = record(2, status=ABANDONED, sent_s=None, first_s=None, last_s=None)
    slo = parse_slo("errors=50%")
    assert broken([record(0), bad], slo) == []
    assert broken([record(0), bad, never], slo) == ["errors 66.67% > 50.00%"]


def test_nothing_measured_does_not_hold() -> None:
    assert broken([], Slo()) == ["nothing was measured"]
    assert broken([record(status="x")], parse_slo("ttft_p95=1s,errors=100%")) == ["ttft p95 was not measured"]


def test_the_report_tells_goodput() -> None:
    records = [record(0), record(1), record(2, first_s=2.9, last_s=2.98), record(3)]
    goodput = summarise(records, context(slo=parse_slo("ttft_p95=200ms"))).goodput
    assert goodput is not None
    assert (goodput.good, goodput.share) == (3, 0.75)
    assert goodput.per_s == pytest.approx(3 / 3.18)
    assert not goodput.holds
