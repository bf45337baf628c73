"""`trieway load` as a user types it: every bad input is one line with its exit code; runs leave their files."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from trieway import cli
from trieway.loadgen.reports.files import read_report
from trieway.loadgen.reports.study import Study, read_study

SMALL = [
    "--workload",
    "chat-short",
    "--set",
    "scale=0.1",
    "--set",
    "conversations=4",
    "--set",
    "turns=2",
    "--set",
    "pause=none",
]


@pytest.fixture(scope="module")
def mock() -> Iterator[str]:
    yield from serve()


@pytest.fixture(scope="module", autouse=True)
def threads_before() -> set[threading.Thread]:
    """What ran before the first test of this file."""
    return set(threading.enumerate())


def serve(*options: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tools.mock_openai", "--gap-ms", "1", *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["load", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def complains(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    found, _, err = said(capsys, *arguments)
    line = err.splitlines()[-1]
    assert found == code, err
    assert line.startswith("trieway: error: ")
    assert "Traceback" not in err
    return line


URL = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "ftp://x"], "no HTTP URL"),
        (["run", URL, "--arrivals", "poisson:0"], "above 0"),
        (["run", URL, "--arrivals", "constant:-1"], "above 0"),
        (["run", URL, "--arrivals", "sometimes"], "no arrival process"),
        (["run", URL, "--arrivals", "closed:0"], "users"),
        (["run", URL, "--arrivals", "closed:2", "--processes", "3"], "cannot be shared"),
        (["run", URL, "--workload", "nothing"], "neither a file nor a workload"),
        (["run", URL, "--set", "turns"], "KEY=VALUE"),
        (["run", URL, "--set", "colour=red"], "no setting 'colour'"),
        (["run", URL, "--set", "requests=none", "--workload", "unique"], "requests"),
        (["run", URL, "--slo", "fast"], "SLO term"),
        (["run", URL, "--duration", "soon"], "no time"),
        (["run", URL, "--duration", "0"], "above 0"),
        (["run", URL, "--duration", "5s", "--warmup", "5s"], "leaves nothing"),
        (["run", URL, "--duration", "1ms"], "nothing arrives"),
        (["run", URL, "--timeout", "0"], "above 0"),
        (["run", URL, "--repeats", "0"], "at least 1"),
        (["run", URL, "--warmup-requests", "-1"], "at least 0"),
        (["run", URL, "--processes", "0"], "at least 1"),
        (["run", URL, "--processes", "1000"], "1 to 64"),
        (["run", URL, "--cache-tokens", "0"], "at least 1"),
        (["run", URL, "--key-file", "/nowhere/key"], "cannot read the key file"),
        (["run", URL, "--json", "/nowhere/r.json"], "no folder"),
        (["run", URL, "--report", "/"], "folder"),
        (["run", URL, "--arrivals", "trace"], "no times of its own"),
        (["replay", "/nowhere.jsonl", URL], "nowhere.jsonl"),
        (["replay", "mixed"], "give the server's URL"),
        (["sweep", URL], "needs an --slo"),
        (["sweep", URL, "--rates", "1,two"], "no list of numbers"),
        (["sweep", URL, "--rates", "1,0"], "above 0"),
        (["sweep", URL, "--rates", "1", "--process", "trace"], "none of poisson"),
        (["sweep", URL, "--rates", "1", "--policies", "round_robin"], "leave the URL out"),
        (["sweep", "--rates", "1", "--workers", "0"], "at least 1"),
        (["sweep", "--rates", "1", "--workers", "few"], "no list of numbers"),
        (["sweep", URL, "--slo", "ttft_p95=1s", "--rate-min", "5", "--rate-max", "2"], "low to high"),
        (["compare", "/nowhere/a.json", "/nowhere/b.json"], "cannot read"),
        (["workloads", "nothing"], "no workload named"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_usage_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert says in complains(capsys, 2, *arguments)


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["run"], ["compare", "a"], ["run", URL, "--seed", "x"], ["run", URL, "--nope"]]
)
def test_what_the_parser_refuses_is_one_line_too(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert len(complains(capsys, 2, *arguments).splitlines()) == 1


def test_a_broken_trace_line_is_named_by_its_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    good = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}
    path.write_bytes(gzip.compress((json.dumps(good) + "\n\n{broken\n").encode()))
    assert f"{path}:3:" in complains(capsys, 2, "replay", str(path), URL)
    assert f"{path}:3:" in said(capsys, "replay", str(path), "--rules", "reference")[2]


def test_an_unreachable_url_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing answers at http://127.0.0.1:9" in complains(capsys, 1, "run", URL, *SMALL)


@pytest.mark.fleet
def test_a_server_without_usage_is_one_line_unless_told_to_do_without(capsys: pytest.CaptureFixture[str]) -> None:
    for url in serve("--no-usage"):
        assert "sends no usage" in complains(capsys, 1, "run", url, *SMALL)
        code, out, err = said(capsys, "run", url, *SMALL, "--arrivals", "closed:4", "--no-usage")
        assert code == 0, err
        assert "does not report usage" in out


@pytest.mark.fleet
def test_a_run_leaves_its_files_and_says_what_it_found(
    capsys: pytest.CaptureFixture[str], mock: str, tmp_path: Path
) -> None:
    files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "html", "csv")}
    code, out, err = said(
        capsys, "run", mock, *SMALL, "--arrivals", "constant:200", "--processes", "2", "--flush", "--hints",
        "--warmup-requests", "2", "--slo", "ttft_p95=10s,errors=0", "--json", str(files["json"]),
        "--report", str(files["html"]), "--csv", str(files["csv"]), "--seed", "5",
    )  # fmt: skip
    assert code == 0, err
    assert "6 requests measured: 6 ok" in out
    report = read_report(files["json"])
    assert (report.requests.total, report.requests.warmup, report.seed, report.kind) == (8, 2, 5, "load")
    assert report.generator is not None
    assert report.generator.processes == 2
    assert report.cache.bound_rate is not None
    assert report.goodput is not None
    assert report.goodput.holds
    assert report.config["arrivals"] == "constant:200"
    assert report.config["cache_tokens"] == 2_000_000
    assert {share.worker for share in report.balance.workers} <= {"w0", "w1"}
    assert report.scrapes[0].deltas["mock_requests_total"] == 8
    assert report.tree
    assert len(files["csv"].read_text().splitlines()) == 9
    assert files["html"].read_text().startswith("<!doctype html>")


@pytest.mark.fleet
def test_an_slo_that_does_not_hold_is_exit_code_1(capsys: pytest.CaptureFixture[str], mock: str) -> None:
    line = complains(capsys, 1, "run", mock, *SMALL, "--arrivals", "closed:2", "--slo", "e2e_max=0.001ms")
    assert "the SLO does not hold: e2e max" in line


@pytest.mark.fleet
def test_a_model_that_is_not_served_is_bad_usage(capsys: pytest.CaptureFixture[str], mock: str) -> None:
    assert "does not serve 'gpt'" in complains(capsys, 2, "run", mock, *SMALL, "--model", "gpt")


@pytest.mark.fleet
def test_a_warm_up_over_everything_is_a_line(capsys: pytest.CaptureFixture[str], mock: str) -> None:
    line = complains(capsys, 1, "run", mock, *SMALL, "--arrivals", "closed:2", "--warmup-requests", "99")
    assert "nothing was measured" in line


@pytest.mark.fleet
def test_repeats_give_intervals_and_compare_reads_them(
    capsys: pytest.CaptureFixture[str], mock: str, tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path in paths:
        code, _, err = said(
            capsys, "run", mock, *SMALL, "--arrivals", "closed:2", "--repeats", "2", "--flush", "--json", path
        )
        assert code == 0, err
    report = read_report(Path(paths[0]))
    assert len(report.repeats) == 2
    assert report.figures["hit_rate"].low is not None
    code, out, _ = said(capsys, "compare", *paths)
    assert code == 0
    assert "verdict" in out
    changed = msgspec.structs.replace(
        report, figures={"error_rate": msgspec.structs.replace(report.figures["error_rate"], value=0.9)},
        repeats=[{"error_rate": 0.9}, {"error_rate": 0.9}],
    )  # fmt: skip
    Path(paths[1]).write_bytes(msgspec.json.encode(changed))
    code, out, _ = said(capsys, "compare", *paths, "--fail-on-worse")
    assert code == 1
    assert "b is WORSE in error_rate" in out


@pytest.mark.fleet
def test_a_users_own_requests_are_replayed(capsys: pytest.CaptureFixture[str], mock: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": "hi " * 40}], "timestamp": n * 10, "max_tokens": 2} for n in range(5)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = said(capsys, "replay", str(path), mock)
    assert code == 0, err
    assert "5 requests measured: 5 ok" in out


@pytest.mark.fleet
def test_a_sweep_goes_on_from_its_state(capsys: pytest.CaptureFixture[str], mock: str, tmp_path: Path) -> None:
    state, out = tmp_path / "state", tmp_path / "s.json"
    common = ["sweep", mock, *SMALL, "--repeats", "2", "--state", str(state), "--json", str(out), "--no-bound"]
    code, _, err = said(capsys, *common, "--rates", "50,100", "--report", str(tmp_path / "s.html"))
    assert code == 0, err
    study = read_study(out)
    assert [(point.rate, point.repeat) for point in study.points] == [(50, 0), (50, 1), (100, 0), (100, 1)]
    assert all(point.figures["hit_rate"] < 0.9 for point in study.points), "each run begins with empty caches"
    rows = state.read_text().splitlines()
    assert len(rows) == 5
    state.write_text("\n".join(rows[:3]) + '\n{"torn')
    code, _, err = said(capsys, *common, "--rates", "50,100")
    assert code == 0, err
    assert "2 runs are there already" in err
    assert read_study(out).points[:2] == study.points[:2]
    assert len(read_study(out).points) == 4
    assert "another study" in complains(capsys, 2, *common, "--rates", "50,100", "--seed", "7")


@pytest.mark.fleet
def test_a_capacity_is_searched_within_its_limits(
    capsys: pytest.CaptureFixture[str], mock: str, tmp_path: Path
) -> None:
    out = tmp_path / "c.json"
    common = ["sweep", mock, *SMALL, "--repeats", "1", "--rate-min", "40", "--rate-max", "80", "--json", str(out)]
    code, text, err = said(capsys, *common, "--slo", "ttft_p95=10s")
    assert code == 0, err
    study = read_study(out)
    assert isinstance(study, Study)
    assert [(one.rate, one.fails_at) for one in study.capacities] == [(80.0, None)]
    assert "the highest rate that was allowed" in text
    line = complains(capsys, 1, *common, "--slo", "e2e_p50=0.001ms")
    assert "the SLO is not met even at 40.0/s" in line
    assert read_study(out).capacities[0].rate is None


@pytest.mark.fleet
def test_an_interrupt_during_the_warm_up_leaves_a_report_without_figures(mock: str, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "trieway", "load", "run", mock, "--workload", "unique", "--arrivals", "constant:20",
         "--set", "scale=0.1", "--warmup", "60s", "--set", "requests=2000", "--json", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "sent" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    report = read_report(out)
    assert report.partial
    assert report.requests.measured == 0
    assert report.requests.warmup > 0


@pytest.mark.fleet
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_still_writes_its_report(mock: str, tmp_path: Path, number: signal.Signals) -> None:
    """Whether one process gets the signal or, from a terminal or supervisor, all of the group."""
    out = tmp_path / "r.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "trieway", "load", "run", mock, "--workload", "unique", "--arrivals", "constant:20",
         "--set", "scale=0.1", "--json", str(out), "--processes", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    # The first line of progress says that requests are out.
    line = process.stderr.readline()
    assert "sent" in line, line
    time.sleep(0.5)
    (os.killpg if number == signal.SIGTERM else os.kill)(process.pid, number)
    text, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert "PARTIAL: interrupted" in text
    assert err.splitlines()[-1].startswith("trieway: error: the report is partial")
    report = read_report(out)
    assert report.partial
    assert report.requests.ok > 0
    assert report.partial_reason is not None
    assert "calls were not sent" in report.partial_reason


def test_the_workloads_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "workloads")
    assert code == 0
    assert "few-shot-20" in out
    code, out, _ = said(capsys, "workloads", "rag")
    assert code == 0
    assert "scale" in out


def test_threads_are_not_left_behind(threads_before: set[threading.Thread]) -> None:
    assert set(threading.enumerate()) <= threads_before
