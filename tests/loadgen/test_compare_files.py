"""Files of `load` and `sim` side by side: reports with reports, studies with studies, whoever made them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.loadgen.making import report
from trieway.cli import main
from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.compare import Verdict
from trieway.loadgen.reports.compare_files import compare_files
from trieway.loadgen.reports.files import write_report
from trieway.loadgen.reports.schema import Requests
from trieway.loadgen.reports.study import Capacity, Point, Setting, Study, write_study

FAST, SLOW = Setting(policy="cache_aware", workers=4), Setting(policy="round_robin", workers=4)
SIM = ("--set", "conversations=4", "--set", "groups=1", "--workers", "2")


def point(setting: Setting, rate: float, repeat: int, ttft_ms: float, hit: float = 0.5) -> Point:
    requests = Requests(total=10, warmup=0, interrupted=0, measured=10, ok=10, failed=0, abandoned=0)
    figures = {"ttft_p50_ms": ttft_ms, "hit_rate": hit}
    return Point(setting=setting, rate=rate, repeat=repeat, seed=repeat, requests=requests, figures=figures)


def study(points: Sequence[Point], **more: object) -> Study:
    values: dict[str, object] = {"kind": "sweep", "version": "0", "workload": "mixed", "seed": 0}
    return Study(points=list(points), **(values | more))  # type: ignore[arg-type]


def written(folder: Path, name: str, one: Study) -> Path:
    write_study(one, folder / name)
    return folder / name


def runs(setting: Setting, rate: float, ttft_ms: float, count: int = 3) -> list[Point]:
    """Alike but for a millisecond."""
    return [point(setting, rate, repeat, ttft_ms + repeat) for repeat in range(count)]


def test_the_same_study_differs_in_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", study(runs(FAST, 4.0, 100.0) + runs(SLOW, 4.0, 150.0)))
    found = compare_files(path, path)
    assert found.verdict is Verdict.SAME
    assert "2 compared, taken together: no difference" in found.lines[-1]


def test_each_fleet_is_compared_with_itself(tmp_path: Path) -> None:
    a = written(tmp_path, "a.json", study(runs(FAST, 4.0, 100.0) + runs(SLOW, 4.0, 150.0)))
    b = written(tmp_path, "b.json", study(runs(SLOW, 4.0, 150.0) + runs(FAST, 4.0, 130.0)))
    found = compare_files(a, b)
    assert found.verdict is Verdict.WORSE
    text = "\n".join(found.lines)
    fast, slow = text.split("round_robin, 4 workers\n")
    assert "b is WORSE in ttft_p50_ms" in fast
    assert "NO DIFFERENCE" in slow


def test_rates_are_matched_and_those_of_one_study_alone_left_out(tmp_path: Path) -> None:
    a = written(tmp_path, "a.json", study(runs(FAST, 1.0, 100.0) + runs(FAST, 2.0, 200.0) + runs(FAST, 3.0, 300.0)))
    b = written(tmp_path, "b.json", study(runs(FAST, 2.0, 100.0) + runs(FAST, 3.0, 300.0) + runs(FAST, 9.0, 1.0)))
    found = compare_files(a, b)
    assert found.verdict is Verdict.BETTER
    assert "cache_aware, 4 workers at 2.00/s" in found.lines
    assert not any("at 1.00/s" in line or "at 9.00/s" in line for line in found.lines)


def test_a_fleet_measured_at_one_rate_is_compared_whatever_that_came_to(tmp_path: Path) -> None:
    """A closed loop's rate is measured, so it is never twice the same."""
    a = written(tmp_path, "a.json", study(runs(FAST, 4.01, 100.0)))
    b = written(tmp_path, "b.json", study(runs(FAST, 4.37, 100.0)))
    assert compare_files(a, b).verdict is Verdict.SAME


def test_better_here_and_worse_there_is_unclear(tmp_path: Path) -> None:
    a = written(tmp_path, "a.json", study(runs(FAST, 4.0, 100.0) + runs(SLOW, 4.0, 100.0)))
    b = written(tmp_path, "b.json", study(runs(FAST, 4.0, 50.0) + runs(SLOW, 4.0, 200.0)))
    assert compare_files(a, b).verdict is Verdict.UNCLEAR


def test_a_single_run_proves_nothing(tmp_path: Path) -> None:
    a = written(tmp_path, "a.json", study(runs(FAST, 4.0, 100.0, count=1)))
    b = written(tmp_path, "b.json", study(runs(FAST, 4.0, 200.0, count=1)))
    assert compare_files(a, b).verdict is Verdict.UNCLEAR


def test_capacities_and_what_to_beware_of_are_said(tmp_path: Path) -> None:
    def capacity(rate: float | None) -> Capacity:
        return Capacity(setting=FAST, rate=rate, fails_at=None, held=3, repeats=3, confidence=0.4, why="")

    a = written(tmp_path, "a.json", study(runs(FAST, 4.0, 100.0), capacities=[capacity(4.0)]))
    b = written(
        tmp_path, "b.json",
        study(runs(FAST, 4.0, 100.0), capacities=[capacity(None)], partial=True, partial_reason="cut", seed=1),
    )  # fmt: skip
    text = "\n".join(compare_files(a, b).lines)
    assert "capacity 4.00/s and none" in text
    assert "b is partial: cut" in text
    assert "seed differs: 0 and 1" in text


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = written(tmp_path, "a.json", study(runs(FAST, 4.0, 100.0)))
    other = written(tmp_path, "b.json", study(runs(SLOW, 4.0, 100.0)))
    with pytest.raises(LoadError, match="no fleet and rate in common"):
        compare_files(one, other)
    write_report(report(), tmp_path / "r.json")
    with pytest.raises(LoadError, match=r"is a report, .* a study"):
        compare_files(tmp_path / "r.json", one)
    (tmp_path / "x.json").write_bytes(msgspec.json.encode({"schema": "trieway.study/2"}))
    with pytest.raises(LoadError, match=r"is trieway\.study/2; this version reads trieway\.report/1 and"):
        compare_files(one, tmp_path / "x.json")


@pytest.mark.parametrize("command", ["load", "sim"])
def test_what_the_simulator_writes_passes_through_both(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: str(tmp_path / name) for name in ("run.json", "slow.json", "study.json")}
    assert main(["sim", "run", *SIM, "--repeats", "3", "--json", paths["run.json"]]) == 0
    assert main(["sim", "run", *SIM, "--repeats", "3", "--gpu", "l4", "--json", paths["slow.json"]]) == 0
    assert main(["sim", "compare", *SIM[:4], "--workers", "1,2", "--repeats", "2", "--json", paths["study.json"]]) == 0
    capsys.readouterr()
    assert main([command, "compare", paths["run.json"], paths["slow.json"], "--fail-on-worse"]) == 1
    assert "b is WORSE in" in capsys.readouterr().out
    assert main([command, "compare", paths["study.json"], paths["study.json"], "--fail-on-worse"]) == 0
    assert "4 compared, taken together: " in capsys.readouterr().out
    assert main([command, "compare", paths["run.json"], paths["study.json"]]) == 2
