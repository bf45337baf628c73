"""`trieway sim` as a user meets it: reports, comparisons, one line for every mistake, interrupts that still report."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.support import calibration
from trieway.cli import main
from trieway.loadgen.reports.files import read_report
from trieway.loadgen.reports.study import read_study
from trieway.loadgen.simulations import playing
from trieway.loadgen.simulations.scale import scale_workload
from trieway.loadgen.simulations.seeds import play_seeds

Output = pytest.CaptureFixture[str]
SMALL = ("--set", "conversations=4", "--set", "groups=1", "--arrivals", "poisson:20")


def sim(*arguments: str) -> int:
    return main(["sim", *arguments])


def test_a_run_reports_as_load_does_and_says_its_speed(tmp_path: Path, capsys: Output) -> None:
    paths = {name: tmp_path / f"out.{name}" for name in ("json", "html", "csv")}
    code = sim(
        "run", *SMALL, "--workers", "2", "--slo", "ttft_p95=5s,errors=1%", "--json", str(paths["json"]),
        "--report", str(paths["html"]), "--csv", str(paths["csv"]),
    )  # fmt: skip
    assert code == 0
    said = capsys.readouterr().out
    for words in ("48 requests measured: 48 ok", "TTFT", "oracle bound", "balance", "holds", "requests/s; trace"):
        assert words in said
    report = read_report(paths["json"])
    assert report.kind == "sim"
    assert report.generator is None
    assert report.requests.ok == 48
    assert report.cache.hit_rate is not None
    assert report.cache.bound_rate is not None
    assert 0.3 < report.cache.hit_rate <= report.cache.bound_rate
    assert report.config["workers"] == 2
    assert report.config["policy"] == "cache_aware"
    assert report.config["gpu"] == "h100"
    assert report.goodput is not None
    assert report.goodput.holds
    assert {share.worker for share in report.balance.workers} == {"w0", "w1"}
    assert paths["html"].read_text().startswith("<!doctype html>")
    assert len(paths["csv"].read_text().splitlines()) == 49


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path, capsys: Output) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for file, seed in zip(files, ("5", "5", "6"), strict=True):
        assert sim("run", *SMALL, "--seed", seed, "--json", str(file)) == 0
    first, again, other = (file.read_bytes() for file in files)
    assert first == again != other


def test_checking_changes_nothing(tmp_path: Path, capsys: Output) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, more in zip(files, ((), ("--check",)), strict=True):
        assert sim("run", *SMALL, "--kv-tokens", "2048", *more, "--json", str(file)) == 0
    first, again = (json.loads(file.read_text()) for file in files)
    assert first == again


def test_repeats_give_figures_that_know_their_noise(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "a.json"
    assert sim("run", *SMALL, "--repeats", "3", "--json", str(file)) == 0
    report = read_report(file)
    assert len(report.repeats) == 3
    assert len({one["ttft_p50_ms"] for one in report.repeats}) == 3
    assert "run 3 of 3" in capsys.readouterr().err


def test_two_reports_are_compared(tmp_path: Path, capsys: Output) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file, gpu in zip(files, ("h100", "l4"), strict=True):
        assert sim("run", *SMALL, "--policy", "round_robin", "--gpu", gpu, "--repeats", "3", "--json", str(file)) == 0
    capsys.readouterr()
    assert sim("compare", *map(str, files)) == 0
    assert "hit_rate" in capsys.readouterr().out
    assert sim("compare", *map(str, files), "--fail-on-worse") == 1
    assert sim("compare", str(files[1]), str(files[0]), "--fail-on-worse") == 0


def test_policies_and_sizes_are_compared_on_one_workload(tmp_path: Path, capsys: Output) -> None:
    study_file, page = tmp_path / "s.json", tmp_path / "s.html"
    code = sim(
        "compare", "--policies", "cache_aware,round_robin", "--workers", "2,4", *SMALL, "--repeats", "2",
        "--json", str(study_file), "--report", str(page),
    )  # fmt: skip
    assert code == 0
    said = capsys.readouterr().out
    for name in ("cache_aware, 2 workers", "round_robin, 4 workers"):
        assert said.count(name) == 2
    study = read_study(study_file)
    assert len(study.points) == 8
    hits = {point.setting.name: point.figures["hit_rate"] for point in study.points}
    assert hits["cache_aware, 4 workers"] > hits["round_robin, 4 workers"]
    assert page.read_text().startswith("<!doctype html>")


def test_a_calibration_stands_in_for_the_gpu(tmp_path: Path, capsys: Output) -> None:
    file, out = tmp_path / "c.json", tmp_path / "a.json"
    file.write_text(json.dumps(calibration(workers=2, slower=1.5)))
    assert sim("run", *SMALL, "--calibration", str(file), "--json", str(out)) == 0
    report = read_report(out)
    assert report.config["calibration"] == str(file)
    assert report.config["kv_tokens"] == 32768
    assert report.latency.itl_ms.p50 is not None
    # A step alone with few decodes takes 13 ms and more; prompts in between and neighbours lengthen some.
    assert 13.0 < report.latency.itl_ms.p50 < 80.0
    assert report.config["delay"] == "0", "the ways between processes are in the calibration"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "--gpu", "tpu"), "no GPU named 'tpu'"),
        (("run", "--model", "gpt"), "no model named 'gpt'"),
        (("run", "--gpu", "l4", "--model", "llama-3.1-70b"), "does not fit"),
        (("run", "--policy", "best"), "no policy named 'best'"),
        (("run", "--workers", "0"), "1 to 4096 workers"),
        (("run", "--routers", "0"), "--routers is 1 to 256, not 0"),
        (("run", "--workload", "nothing"), "neither a file nor a workload"),
        (("run", "--arrivals", "poisson:0"), "above 0"),
        (("run", "--delay", "soon"), "no time"),
        (("run", "--slo", "fast"), "fast"),
        (("run", "--json", "/nowhere/a.json"), "no folder"),
        (("run", "--calibration", "/nowhere.json"), "cannot read"),
        (("run", "--page-size", "4", "--kv-tokens", "2"), "at least one page"),
        (("run", "--worker-policy", "best"), "unknown policy"),
        (("run", "--repeats", "0"), "--repeats is 1 to 1000, not 0"),
        (("compare", "one.json"), "two reports"),
        (("compare", "a.json", "b.json"), "cannot read a.json"),
        (("compare", "--workers", "many"), "no list of whole numbers"),
        (("scale", "--workers", "0"), "no list of whole numbers"),
        (("scale", "--requests", "1"), "at least 10 requests"),
        (("seeds", "--seeds", "0"), "at least one seed"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: Sequence[str], says: str, capsys: Output) -> None:
    assert sim(*arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_a_calibration_that_is_none_is_refused(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "c.json"
    for text, says in (("no", "no JSON"), ("[]", "not what"), ('{"alone": {}}', "the calibration has no")):
        file.write_text(text)
        assert sim("run", "--calibration", str(file)) == 2
        assert says in capsys.readouterr().err


def test_a_broken_slo_is_exit_code_1(capsys: Output) -> None:
    assert sim("run", *SMALL, "--slo", "ttft_p95=1ms") == 1
    assert "the SLO does not hold" in capsys.readouterr().err


def test_an_interrupt_leaves_a_partial_report(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "LOOK_STEPS", 64)
    cut = playing._Look.cut
    looks = [0]

    def interrupted(self: playing._Look) -> bool:
        looks[0] += 1
        if looks[0] == 6:
            signal.raise_signal(signal.SIGINT)
        return cut(self)

    monkeypatch.setattr(playing._Look, "cut", interrupted)
    file = tmp_path / "a.json"
    assert sim("run", *SMALL, "--json", str(file)) == 1
    assert "the report is partial: interrupted after" in capsys.readouterr().err
    report = read_report(file)
    assert report.partial
    assert report.requests.total == 48
    assert 0 < report.requests.interrupted < 48
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_warmup_and_closed_loops_are_as_in_load(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "a.json"
    assert sim("run", *SMALL[:4], "--arrivals", "closed:2", "--warmup-requests", "10", "--json", str(file)) == 0
    report = read_report(file)
    assert report.requests.warmup == 10
    assert report.requests.ok == 38


def test_hints_are_sent_on_demand(tmp_path: Path, capsys: Output) -> None:
    few_shot = (
        "--workload",
        "few-shot-20",
        "--set",
        "hints=true",
        "--set",
        "questions=6",
        "--arrivals",
        "poisson:1000",
    )
    rates = []
    for more in ((), ("--hints",)):
        assert sim("run", *few_shot, "--workers", "1", *more, "--json", str(tmp_path / "a.json")) == 0
        rates.append(read_report(tmp_path / "a.json").cache.hit_rate or 0.0)
    assert rates[1] >= rates[0]


def test_scale_says_requests_per_second_of_processor_time(capsys: Output) -> None:
    assert sim("scale", "--workers", "2,3", "--requests", "90") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("requests/s of processor time (8" in line or "(9" in line for line in lines)
    assert len(scale_workload(1000, 10.0, 0).calls) == 1000 // 80 * 16 + (1000 - 1000 // 80 * 16) // 8 * 8


def test_seeds_are_played_in_processes(capsys: Output) -> None:
    assert sim("seeds", "--seeds", "3", "--processes", "1") == 0
    assert "3 seeds hold" in capsys.readouterr().out


def test_a_failed_seed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    from trieway.loadgen.simulations import commands, seeds

    told = seeds.Told(outcomes=[], failed=[seeds.SeedFailed(seed=7, why="it broke")], wall_s=1.0, cpu_s=1.0)
    monkeypatch.setattr(commands, "play_seeds", lambda *arguments: told)
    assert sim("seeds", "--seeds", "1") == 1
    out = capsys.readouterr()
    assert "seed 7: it broke" in out.out
    assert "the first of them 7" in out.err


def test_an_assertion_without_words_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from trieway.loadgen.simulations import seeds

    def play(world: object) -> None:
        raise AssertionError

    monkeypatch.setattr(seeds, "play", play)
    found, _ = seeds.seed_outcome(1)
    assert isinstance(found, seeds.SeedFailed)
    assert "play, line" in found.why
    assert play_seeds.__doc__
