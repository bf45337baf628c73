"""The load generator as a job: its report outlives the job."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ray.fleet import Fleet
from trieway.loadgen.reports.files import read_report


def test_a_load_test_runs_as_a_job_and_its_report_stays(fleet: Fleet, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    small = ("--set", "scale=0.1", "--set", "conversations=6", "--set", "output_tokens=4")
    told = fleet.job(
        *("ray", "load", "--keep", str(volume), "--name", "first", "run"),
        *("--workload", "system-prompts", *small, "--arrivals", "closed:3"),
    )
    assert "report first is kept in the cluster" in told
    report = read_report(volume / "first.json")
    assert (report.requests.ok, report.requests.failed) == (6, 0)
    assert report.config["url"] in fleet.routers
    assert (volume / "first.html").stat().st_size > 1000

    listed = json.loads(fleet.cluster.trieway("ray", "reports", "--json").stdout)
    assert [(one["name"], one["requests"]) for one in listed] == [("first", 6)]
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    done = fleet.cluster.trieway("ray", "reports", "first", "--to", str(fetched))
    assert done.returncode == 0, done.stderr
    assert (fetched / "first.json").read_bytes() == (volume / "first.json").read_bytes()
    assert (fetched / "first.html").read_bytes() == (volume / "first.html").read_bytes()


def test_a_report_is_kept_of_a_run_that_misses_its_slo(fleet: Fleet) -> None:
    small = ("--set", "scale=0.1", "--set", "conversations=2", "--set", "output_tokens=2")
    told = fleet.job(
        *("ray", "load", "--name", "missed", "run", "--workload", "system-prompts", *small),
        *("--arrivals", "closed:2", "--slo", "ttft_p50=0.01ms"),
        fails=True,
    )
    assert "the SLO does not hold" in told
    done = fleet.cluster.trieway("ray", "reports", "missed")
    assert json.loads(done.stdout)["goodput"]["holds"] is False
    missing = fleet.cluster.trieway("ray", "reports", "nobody")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "the last ones are first, missed" in missing.stderr
