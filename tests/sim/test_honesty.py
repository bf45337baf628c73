"""`make honesty`: the table on made-up runs, what is kept on disk, both sides of a small run, whose processor time."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.fleet.test_calibrate import work
from tests.loadgen.serving import serving
from tests.sim.support import calibration
from tests.tools.honesty import __main__ as command
from tests.tools.honesty import state as states
from tests.tools.honesty.cases import CASES, Case
from tests.tools.honesty.machine import Watch
from tests.tools.honesty.runs import FIGURES, Lagged, Run, real_run, simulated_run
from tests.tools.honesty.state import State, pooled
from tests.tools.honesty.table import broken, costs_of, line_of, text_of
from tests.tools.mock_openai import Options
from trieway.fleet.calibrate import Calibration, Measured
from trieway.fleet.fitting import Costs
from trieway.fleet.mixes import MIXES
from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.reports.study import Setting
from trieway.loadgen.sim.cost import SharedMachine, calibrated

OPEN, CLOSED, _ = CASES
SMALL = Case(
    name="system-prompts", about="small", arrivals_text="closed:4", warmup=4,
    settings={"conversations": 10, "turns": 2, "system_tokens": 100, "output_tokens": 8, "pause": "none"},
)  # fmt: skip


def made(hit_rate: float = 0.8, per_s: float = 4.0, ttft: float = 100.0, tokens: int = 1000) -> Run:
    figures = dict.fromkeys(FIGURES, 10.0) | {"hit_rate": hit_rate, "requests_per_s": per_s, "ttft_p50_ms": ttft}
    return Run(figures=figures, requests=50, prompt_tokens=tokens, output_tokens=100)


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "real", "simulated", "difference", "within"),
    [
        ("hit_rate", [0.80, 0.82], [0.815], 0.005, True),
        ("hit_rate", [0.80, 0.82], [0.79], -0.02, False),
        ("ttft_p50_ms", [100.0, 100.0], [110.0, 118.0], 0.14, True),
        ("ttft_p50_ms", [100.0], [84.0], -0.16, False),
        ("requests_per_s", [4.0], [4.0], 0.0, True),
        ("itl_p95_ms", [100.0], [300.0], 2.0, None),
    ],
)
def test_a_difference_is_of_means_and_judged_by_its_bound(
    figure: str, real: Sequence[float], simulated: Sequence[float], difference: float, within: bool | None
) -> None:
    line = line_of(figure, real, simulated)
    assert line.difference == pytest.approx(difference)
    assert line.within is within


def test_the_fleet_is_compared_with_itself() -> None:
    line = line_of("ttft_p50_ms", [90.0, 100.0, 110.0], [100.0])
    # The first is 15 from the mean of the others; the mean of all is 100.
    assert line.noise == pytest.approx(0.15)
    assert line.half == pytest.approx(4.303 * 10.0 / math.sqrt(3) / 100.0)
    single = line_of("ttft_p50_ms", [90.0], [100.0])
    assert (single.noise, single.half) == (None, None)


def test_the_table_says_what_holds_and_what_does_not() -> None:
    real = [made(), made(ttft=110.0), made(hit_rate=0.81)]
    text = "\n".join(text_of(CLOSED, real, [made(ttft=150.0)], judged=True))
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert "saturated" in text
    assert "holds" in lines["hit_rate"]
    assert "80.33 %" in lines["hit_rate"]
    assert "-0.33 points" in lines["hit_rate"]
    assert "BROKEN" in lines["ttft_p50_ms"]
    assert "+45.2 %" in lines["ttft_p50_ms"]
    assert "BROKEN" not in lines["itl_p95_ms"]
    assert "prompt_tokens" in lines
    (wrong,) = broken(CLOSED, real, [made(ttft=150.0)])
    assert wrong == "mixed: ttft_p50_ms is off by +45.2 %"


def test_a_fleet_that_is_printed_beside_is_not_judged() -> None:
    text = "\n".join(text_of(OPEN, [made()], [made(ttft=900.0)], judged=False))
    assert "BROKEN" not in text
    assert "+800.0 %" in text
    assert "open: the throughput is that of the arrivals" in text


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_what_was_measured_is_kept_in_order(tmp_path: Path) -> None:
    state = State(tmp_path)
    assert (state.runs(2, "mixed"), state.calibrations(2)) == ([], [])
    for run in (made(), made(ttft=7.0)):
        state.add_run(2, "mixed", run)
    state.add_run(4, "mixed", made(ttft=9.0))
    state.add_calibration(2, {"step_ms": 1.0})
    again = State(tmp_path)
    assert [run.figures["ttft_p50_ms"] for run in again.runs(2, "mixed")] == [100.0, 7.0]
    assert len(again.runs(4, "mixed")) == 1
    assert again.calibrations(2) == [{"step_ms": 1.0}]


def test_measurements_of_other_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    State(tmp_path)
    monkeypatch.setattr(states, "CASES", CASES[:1])
    with pytest.raises(LoadError, match="other settings"):
        State(tmp_path)


def test_calibrations_are_fitted_to_the_points_of_all() -> None:
    def told(latency_ms: float, factor: float) -> dict[str, object]:
        costs = Costs(
            step_ms=12.0 * factor, request_us=2000.0, prefill_token_us=600.0, prefill_pair_ns=400.0,
            prefill_context_us=8.0, decode_us=900.0, decode_context_us=3.0, error=0.0,
        )  # fmt: skip
        side = Measured(costs=costs, points=tuple(work(mix, costs) for mix in MIXES))
        return Calibration(model="m", workers=2, repeats=1, latency_ms=latency_ms, alone=side, together=side).as_json()

    found = pooled([told(3.0, 1.0), told(5.0, 1.02)])
    assert (found["version"], found["workers"], found["latency_ms"]) == (2, 2, 4.0)
    assert found["together"]["step_ms"] == pytest.approx(12.12, rel=0.02)
    assert isinstance(calibrated(found), SharedMachine)
    text = "\n".join(costs_of(found))
    assert "prefill token, us" in text
    assert "4.00 ms more" in text
    single = pooled([{**told(3.0, 1.0), "together": None}])
    assert "together" not in "\n".join(costs_of(single))


# -- both sides --------------------------------------------------------------------------------------------------------


def test_every_case_can_be_simulated_with_the_calls_that_the_fleet_gets() -> None:
    for case in CASES:
        bare, scheduled = case.bare_workload(), case.workload()
        assert [replace(call, due_s=None) for call in scheduled.calls] == [
            replace(call, due_s=None) for call in bare.calls
        ]
        assert case.warmup < len(bare.calls) / 2
    assert {case.saturated for case in CASES} == {True, False}


def test_a_simulated_run_is_the_same_for_the_same_seed() -> None:
    told = json.loads(json.dumps(calibration(workers=2, slower=1.5)))
    run = simulated_run(SMALL, told, 2, 1)
    assert run == simulated_run(SMALL, told, 2, 1) != simulated_run(SMALL, told, 2, 2)
    assert run.requests == 20 - SMALL.warmup == len(run.calls)
    assert 0.0 < run.figures["hit_rate"] < 1.0
    assert run.prompt_tokens == sum(call[2] for call in run.calls)


def test_a_real_run_is_flushed_before_and_judged_by_the_same_code() -> None:
    options = Options(gap_ms=1)

    async def main() -> Run:
        async with serving(options) as url:
            return await real_run(SMALL, str(url))

    run = asyncio.run(main())
    assert options.stats["flushes"] == 2, "each worker's"
    assert run.requests == 20 - SMALL.warmup
    assert run.output_tokens == sum(call.output_tokens for call in SMALL.workload().calls) - _first_outputs(run)


def _first_outputs(run: Run) -> int:
    """Tokens of the calls that count for nothing."""
    counted = {call[0] for call in run.calls}
    return sum(call.output_tokens for call in SMALL.workload().calls if call.id not in counted)


def test_a_run_with_a_failure_is_none() -> None:
    async def main() -> None:
        async with serving(Options(gap_ms=1, trouble={9: "500"})) as url:
            await real_run(SMALL, str(url))

    with pytest.raises(RunFailed, match=r"system-prompts: chat-.* ended as"):
        asyncio.run(main())


# -- the command -------------------------------------------------------------------------------------------------------


class FakeFleet:
    """In the places of a fleet, of its calibration and of runs on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ttft_ms: float = 100.0) -> None:
        self.did: list[str] = []
        self.fails = False
        self.late = 0
        self.ttft_ms = ttft_ms
        monkeypatch.setattr(command, "CASES", (SMALL,))
        monkeypatch.setattr(command, "fleet_of", self.fleet_of)
        monkeypatch.setattr(command, "calibrate", self.calibrate)
        monkeypatch.setattr(command, "real_run", self.real_run)
        monkeypatch.setattr(command, "Watch", lambda: self)

    def foreign(self) -> float:
        return 0.0

    @asynccontextmanager
    async def fleet_of(self, setting: Setting, arguments: Sequence[str]) -> AsyncIterator[str]:
        assert "--pin" in arguments
        self.did.append(f"up {setting.workers}")
        yield "http://fleet"
        self.did.append("down")

    async def calibrate(self, *asked: object) -> Calibration:
        self.did.append("calibrate")
        return await self.calibrated()

    async def calibrated(self) -> Calibration:
        costs = Costs(
            step_ms=12.0, request_us=2000.0, prefill_token_us=600.0, prefill_pair_ns=400.0, prefill_context_us=8.0,
            decode_us=900.0, decode_context_us=3.0, error=0.0,
        )  # fmt: skip
        side = Measured(costs=costs, points=tuple(work(mix, costs) for mix in MIXES))
        return Calibration(model="m", workers=2, repeats=1, latency_ms=2.0, alone=side, together=side)

    async def real_run(self, case: Case, url: str) -> Run:
        self.did.append(case.name)
        if self.fails:
            raise RunFailed("it broke")
        if self.late:
            self.late -= 1
            raise Lagged("late")
        run = simulated_run(case, pooled([(await self.calibrated()).as_json()]), 2, 0)
        return replace_figures(run, ttft_p50_ms=self.ttft_ms)


def replace_figures(run: Run, **figures: float) -> Run:
    return msgspec.structs.replace(run, figures=run.figures | figures)


def honesty(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["honesty", *arguments])
    return command.main()


Output = pytest.CaptureFixture[str]


def test_rounds_of_a_calibration_and_the_cases_then_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output
) -> None:
    fake = FakeFleet(monkeypatch, ttft_ms=1e-3)
    state = ("--state", str(tmp_path))
    assert honesty(monkeypatch, *state, "--workers", "2", "--rounds", "2", "--minutes", "0.1") == command.MORE
    assert fake.did == [], "a piece takes longer than there is time"
    assert honesty(monkeypatch, *state, "--workers", "2,4", "--rounds", "2") == 1, "the median is off by far"
    once = ["calibrate", "system-prompts"] * 2
    assert fake.did == ["up 2", *once, "down", "up 4", *once, "down"]
    out = capsys.readouterr().out
    assert "4 workers, each kept to a core; calibrated 2 times" in out
    assert "system-prompts: ttft_p50_ms is off by" in out.rstrip().splitlines()[-1]
    assert honesty(monkeypatch, *state, "--workers", "4", "--rounds", "2") == 0, "four workers are not judged"
    assert fake.did[-1] == "down", "and nothing is measured twice"
    assert len(fake.did) == 12


def test_bounds_that_hold_are_exit_code_0(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    fake = FakeFleet(monkeypatch)
    fake.ttft_ms = simulated_run(SMALL, pooled([asyncio.run(fake.calibrated()).as_json()]), 2, 0).figures["ttft_p50_ms"]
    assert honesty(monkeypatch, "--workers", "2", "--rounds", "1") == 0
    assert "every bound holds" in capsys.readouterr().out


def test_an_open_loop_that_came_late_is_run_again(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    fake = FakeFleet(monkeypatch)
    fake.late = 2
    honesty(monkeypatch, "--workers", "4", "--rounds", "1", "--tries", "3")
    assert fake.did.count("system-prompts") == 3
    fake.late = 2
    assert honesty(monkeypatch, "--workers", "4", "--rounds", "1", "--tries", "2") == 1
    assert "lagged 2 times" in capsys.readouterr().err


def test_what_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    FakeFleet(monkeypatch).fails = True
    assert honesty(monkeypatch, "--workers", "2") == 1
    assert "honesty: error: it broke" in capsys.readouterr().err
    assert honesty(monkeypatch, "--workers", "two") == 2


# -- the machine -------------------------------------------------------------------------------------------------------


def process(proc: Path, pid: int, parent: int, ticks: int, name: str = "x") -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    rest = ["S", str(parent), *["0"] * 9, str(ticks), "0", "0", "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(rest)}\n")


def test_what_others_used_is_what_neither_we_nor_our_children_did(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 100 0 0 900 0 0 0 0 0 0\n")
    process(tmp_path, 1, 0, 50)
    process(tmp_path, 10, 1, 10)
    process(tmp_path, 11, 10, 5, name="a) b (c")
    process(tmp_path, 12, 1, 3)
    watch = Watch(tmp_path, 10)
    (tmp_path / "stat").write_text("cpu 180 0 0 1000 0 0 0 20 0 0\n")
    process(tmp_path, 10, 1, 20)
    process(tmp_path, 11, 10, 35)
    process(tmp_path, 12, 1, 43)
    # Of 200 ticks 100 were busy (20 of them stolen), 40 of these ours.
    assert watch.foreign() == pytest.approx(0.3)


def test_where_nothing_is_told_nothing_is_foreign(tmp_path: Path) -> None:
    assert Watch(tmp_path / "nowhere").foreign() == 0.0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_our_own_work_is_not_foreign() -> None:
    watch = Watch(pid=os.getpid())
    before = watch._ours()
    sum(number * number for number in range(3_000_000))
    assert watch._ours() > before
    assert 0.0 <= watch.foreign() <= 1.0
