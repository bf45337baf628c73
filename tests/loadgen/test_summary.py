"""Records in, report out: sums, shares, balance, timeline, and the file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.making import context, noisy, record, report
from tests.tools.report_schema import published
from trieway.loadgen.errors import LoadError
from trieway.loadgen.oracle import Bound
from trieway.loadgen.records import ABANDONED, INTERRUPTED, Record
from trieway.loadgen.reports.figures import figures_of, over_repeats
from trieway.loadgen.reports.files import check_writable, read_report, write_report
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.summary import Client, imbalance, summarise
from trieway.loadgen.reports.timeline import STEPS_MAX, timeline_of


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        due = draw(st.floats(0, 50))
        status = draw(st.sampled_from(["ok", "http_500", "timeout", ABANDONED, INTERRUPTED]))
        sent = None if status == ABANDONED else due + draw(st.floats(0, 1))
        first = None if sent is None else sent + draw(st.floats(0, 5))
        last = None if first is None else first + draw(st.floats(0, 5))
        made.append(
            record(
                number, due_s=due, sent_s=sent, first_s=first, last_s=last, status=status,
                warmup=draw(st.booleans()), worker=draw(st.sampled_from([None, "a", "b"])),
                tenant=draw(st.sampled_from([None, "t"])), cached_tokens=draw(st.none() | st.integers(0, 100)),
            )
        )  # fmt: skip
    return made


@given(records())
def test_every_record_is_counted_once(made: list[Record]) -> None:
    found = summarise(made, context())
    requests = found.requests
    assert requests.total == len(made) == requests.measured + requests.warmup + requests.interrupted
    assert requests.measured == requests.ok + requests.failed + requests.abandoned
    assert sum(found.errors.values()) == requests.failed + requests.abandoned
    assert found.latency.ttft_ms.count == requests.ok
    assert INTERRUPTED not in found.errors
    assert sum(share.requests for share in found.balance.workers) <= requests.ok
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found


def test_latency_counts_from_the_due_time() -> None:
    found = summarise([record(0, sent_s=0.09)], context())
    assert found.latency.ttft_ms.p50 == pytest.approx(100)
    assert found.latency.e2e_ms.max == pytest.approx(180)
    assert found.latency.tpot_ms.mean == pytest.approx(20)
    assert found.latency.itl_ms.count == 4


def test_warm_up_is_left_out() -> None:
    slow = record(0, first_s=0.9, last_s=0.98, warmup=True)
    found = summarise([slow, record(1), record(2)], context())
    assert found.requests.warmup == 1
    assert found.latency.ttft_ms.max == pytest.approx(100)
    assert found.rates.window_s == pytest.approx(1.18)
    assert found.rates.offered_per_s == pytest.approx(1.0)
    assert found.rates.achieved_per_s == pytest.approx(2 / 1.18)
    assert found.rates.output_tokens_per_s == pytest.approx(10 / 1.18)


def test_the_cache_stands_against_its_bound() -> None:
    bound = Bound(prompt_tokens=400.0, endless_tokens=300.0, reuse_tokens=250.0)
    cache = summarise([record(0), record(1, cached_tokens=75)], context(bound=bound)).cache
    assert cache.hit_rate == pytest.approx(0.625)
    assert cache.bound_rate == pytest.approx(0.625)
    assert cache.share_of_bound == pytest.approx(1.0)
    assert cache.bound_tokens == 125
    assert cache.prediction_error == pytest.approx(25 / 125)


def test_a_server_that_says_nothing_is_unknown_not_zero() -> None:
    found = summarise([record(0, cached_tokens=None, prompt_tokens=None, predicted_tokens=None)], context())
    assert not found.cache.reported
    assert found.cache.hit_rate is None
    assert found.cache.cached_tokens is None
    assert any("cached tokens" in note for note in found.notes)
    assert any("usage" in note for note in found.notes)


def test_a_bound_of_nothing_has_no_share() -> None:
    bound = Bound(prompt_tokens=100.0, endless_tokens=0.0, reuse_tokens=0.0)
    assert summarise([record(0, cached_tokens=0)], context(bound=bound)).cache.share_of_bound is None


def test_balance_is_busiest_over_mean() -> None:
    found = summarise([record(0), record(1), record(2, cached_tokens=0)], context()).balance
    assert [(share.worker, share.requests, share.uncached_tokens) for share in found.workers] == [
        ("w0", 2, 150),
        ("w1", 1, 50),
    ]
    assert found.requests == pytest.approx(4 / 3)
    assert found.work == pytest.approx(1.5)
    assert imbalance([]) is None


def test_a_generator_that_lagged_says_so_loudly() -> None:
    late = [record(number, sent_s=number + 0.05) for number in range(10)]
    found = summarise(late, context())
    assert found.generator is not None
    assert found.generator.lagged
    assert found.generator.late_share == 1.0
    assert "LAGGED" in found.notes[0]


def test_a_lag_that_latency_dwarfs_is_no_lag() -> None:
    late = [record(number, sent_s=number + 0.05, first_s=number + 2.0, last_s=number + 2.1) for number in range(10)]
    found = summarise(late, context(client=Client(processes=2))).generator
    assert found is not None
    assert not found.lagged
    assert found.lag_ms.p99 == pytest.approx(50)


def test_a_simulation_has_no_generator() -> None:
    assert summarise([record()], context(kind="sim", client=None)).generator is None


def test_nothing_measured_still_makes_a_report() -> None:
    found = summarise([], context(partial_reason="interrupted"))
    assert found.partial
    assert found.rates.achieved_per_s is None
    assert found.timeline is None
    assert found.figures == {}


def test_tenants_are_told_apart() -> None:
    found = summarise([record(0, tenant="a"), record(1, tenant="b", status="x"), record(2, tenant="a")], context())
    assert [(share.tenant, share.requests, share.failed) for share in found.tenants] == [("a", 2, 0), ("b", 1, 1)]


@given(records())
def test_the_timeline_adds_up(made: list[Record]) -> None:
    sent = [one for one in made if one.sent_s is not None]
    timeline = timeline_of(made)
    if timeline is None:
        assert not sent
        return
    assert all(len(lane.in_flight) == len(timeline.ttft_p50_ms) <= STEPS_MAX + 1 for lane in timeline.lanes)
    assert sum(sum(lane.finished) for lane in timeline.lanes) == len(sent)
    busy = sum(sum(lane.in_flight) for lane in timeline.lanes) * timeline.step_s
    expected = sum((one.last_s or 0) - (one.sent_s or 0) for one in sent)
    assert busy == pytest.approx(expected, abs=1e-3 * len(timeline.ttft_p50_ms) * len(timeline.lanes))


def test_many_workers_share_the_last_lane() -> None:
    timeline = timeline_of([record(number, worker=f"w{number:03}") for number in range(100)])
    assert timeline is not None
    assert len(timeline.lanes) == 64
    assert sum(sum(lane.finished) for lane in timeline.lanes) == 100


def test_headlines_have_intervals_where_there_is_enough() -> None:
    few, many = figures_of(noisy(20, seed=1)), figures_of(noisy(400, seed=1))
    assert few["ttft_p50_ms"].low is None
    assert many["ttft_p50_ms"].low is not None
    assert many["ttft_p50_ms"].high is not None
    assert many["ttft_p50_ms"].low < many["ttft_p50_ms"].value < many["ttft_p50_ms"].high
    assert many["hit_rate"].value == 0.5
    assert many["error_rate"].value == 0.0
    assert many["requests_per_s"].value == pytest.approx(10, rel=0.02)


def test_repeats_are_averaged() -> None:
    found = over_repeats([{"a": 1.0, "b": 1.0}, {"a": 3.0}, {"a": 2.0, "b": 1.0}])
    assert set(found) == {"a"}
    assert found["a"].value == 2.0
    assert found["a"].low == pytest.approx(2 - 4.303 / 3**0.5)


def test_a_report_reads_back(tmp_path: Path) -> None:
    made, path = report(), tmp_path / "r.json"
    write_report(made, path)
    assert read_report(path) == made
    assert sorted(each.name for each in tmp_path.iterdir()) == ["r.json"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "no report"), (b"{}", "no report"), (b"[1]", "no report"), (b"\xff", "no report"),
     (b'{"schema": "trieway.report/9"}', "trieway.report/9"), (b'{"schema": "trieway.report/1"}', "no report")],
)  # fmt: skip
def test_what_is_no_report_is_refused_in_a_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(LoadError) as caught:
        read_report(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_or_folder_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot read"):
        read_report(tmp_path / "none.json")
    with pytest.raises(LoadError, match="no folder"):
        check_writable([None, tmp_path / "none" / "r.json"])
    with pytest.raises(LoadError, match="it is a folder"):
        check_writable([tmp_path])
    with pytest.raises(LoadError, match="cannot write"):
        write_report(report(1), tmp_path / "none" / "r.json")


def test_a_later_minor_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_report(report(1), path)
    path.write_text(path.read_text().replace('"kind"', '"news": 1,\n"kind"'))
    assert read_report(path).workload == "made up"


def test_the_schemas_are_published() -> None:
    for path, content in published().items():
        assert path.read_bytes() == content, "run `make report-schema`"
