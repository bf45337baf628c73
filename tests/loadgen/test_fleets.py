"""Fleets that a study starts, with a stand-in for `trieway up`; and studies over several of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.loadgen.serving import call, serving, workload
from tests.tools.mock_openai import Options
from trieway.loadgen.arrivals import Arrivals, parse
from trieway.loadgen.client.target import Access
from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.reports.slo import parse_slo
from trieway.loadgen.reports.study import Setting
from trieway.loadgen.runs import study as studying
from trieway.loadgen.runs.capacity import Range
from trieway.loadgen.runs.fleets import fleet_of
from trieway.loadgen.runs.once import Outcome, Stop
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.runs.study import Runner, StudyPlan

pytestmark = pytest.mark.fleet

STAND_IN = """
import json, os, signal, sys, time
folder = {folder!r}
open(os.path.join(folder, "asked"), "w").write(json.dumps(sys.argv[1:]))
print("workers are starting", flush=True)
if "--fail" in sys.argv:
    print("trieway: error: no such policy", flush=True)
    print("done", flush=True)
    sys.exit(2)
def stop(*_):
    open(os.path.join(folder, "stopped"), "w").close()
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
print("trieway ready on http://127.0.0.1:1 (router pid 1)", flush=True)
while True:
    print("x" * 1000, flush=True)
    time.sleep(0.001)
"""


def program(folder: Path) -> list[str]:
    return [sys.executable, "-c", STAND_IN.format(folder=str(folder))]


def test_a_fleet_is_started_as_asked_and_ended(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(policy="round_robin", workers=3)
        async with fleet_of(setting, ["--model", "m"], program(tmp_path)) as url:
            assert url == "http://127.0.0.1:1"
            await asyncio.sleep(0.2)  # its output is read on, or it would stand still
        assert (tmp_path / "stopped").exists()

    asyncio.run(main())
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked[0] == "--port"
    assert asked[2:] == ["--policy", "round_robin", "--workers", "3", "--model", "m"]


def test_a_fleet_is_ended_whatever_happens(tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet_of(Setting(), (), program(tmp_path)):
            raise KeyError("ours")

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert (tmp_path / "stopped").exists()


def test_a_fleet_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with fleet_of(Setting(policy="x"), ["--fail"], program(tmp_path)):
            raise AssertionError("never reached")

    with pytest.raises(RunFailed, match=r"\(x\) did not start: trieway: error: no such policy"):
        asyncio.run(main())


def at(rate: float) -> tuple[Arrivals, str]:
    text = f"constant:{rate:g}"
    return parse(text), text


def study_plan(access: Access, tmp_path: Path, **changes: object) -> StudyPlan:
    made = workload(*(call(f"c{n}") for n in range(5)))
    plan = Plan(
        access=access, workload=made, arrivals=parse("constant:1"), arrivals_text="", seed=1, flush=True, scrape_s=0,
        slo=parse_slo("ttft_p95=10s"), bound=False,
    )  # fmt: skip
    opened: list[Setting] = changes.pop("opened", [])  # type: ignore[assignment]

    @asynccontextmanager
    async def fleet(setting: Setting) -> AsyncIterator[Access]:
        opened.append(setting)
        yield access

    values: dict[str, object] = {
        "plan": plan, "arrivals_at": at, "workload_at": lambda seed: made, "fleet": fleet, "config": {"x": 1},
        "settings": [Setting(policy="a"), Setting(policy="b")], "search": Range(low=100, high=200, repeats=2),
        "state": tmp_path / "state",
    }  # fmt: skip
    return StudyPlan(**(values | changes))  # type: ignore[arg-type]


def quiet(text: str) -> None:
    pass


def test_a_search_over_fleets_opens_each_once_and_none_for_what_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        opened: list[Setting] = []
        async with serving(Options(gap_ms=1)) as url:
            study = study_plan(Access(url=url), tmp_path, opened=opened)
            runner = Runner(study, Stop(), quiet, lambda now: None)
            await runner.run()
            found = runner.result()
            assert [one.rate for one in found.capacities] == [200.0, 200.0]
            assert [one.policy for one in opened] == ["a", "b"]
            again = Runner(study, Stop(), quiet, lambda now: None)
            await again.run()
        assert len(opened) == 2, "all was in the state file: no fleet was needed"
        assert again.result().capacities == found.capacities
        assert again.result().points == found.points

    asyncio.run(main())


def test_a_search_needs_an_slo(tmp_path: Path) -> None:
    study = study_plan(Access(url=None), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(LoadError, match="needs an --slo"):
        replace(study, plan=replace(study.plan, slo=None))


@pytest.mark.parametrize("content", [b"\n", b"[1]\n", b"{}\n", b"\xff\n"])
def test_a_file_that_is_no_state_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(LoadError, match="the state of another study"):
        Runner(study_plan(Access(url=None), tmp_path), Stop(), quiet, lambda now: None)  # type: ignore[arg-type]


def test_a_state_with_a_broken_line_names_it(tmp_path: Path) -> None:
    study = study_plan(Access(url=None), tmp_path)  # type: ignore[arg-type]
    Runner(study, Stop(), quiet, lambda now: None)
    with (tmp_path / "state").open("ab") as out:
        out.write(b"{broken\n{}\n")
    with pytest.raises(LoadError, match=r"state:2: "):
        Runner(study, Stop(), quiet, lambda now: None)


def test_a_state_that_cannot_be_written_is_a_line(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "state")
    with pytest.raises(LoadError, match="cannot use the state file"):
        Runner(study_plan(Access(url=None), tmp_path), Stop(), quiet, lambda now: None)  # type: ignore[arg-type]


def test_a_generator_that_spoils_every_run_ends_the_search_without_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run breaks the SLO by the generator's own lag alone."""
    runs = 0

    async def spoilt(plan: Plan, stop: Stop, tell: object) -> Outcome:
        nonlocal runs
        runs += 1
        from tests.loadgen.making import context, noisy
        from trieway.loadgen.reports.summary import summarise

        late = [replace(r, due_s=r.due_s - 20 + 0.1) for r in noisy(50, seed=1)]
        return Outcome(report=summarise(late, context(slo=plan.slo)), records=late)

    async def main() -> None:
        async with serving() as url:
            stop = Stop()
            runner = Runner(study_plan(Access(url=url), tmp_path), stop, quiet, lambda now: None)
            await runner.run()
            found = runner.result()
        assert found.partial
        assert "cannot keep up" in (found.partial_reason or "")
        assert not found.capacities
        assert all(point.inconclusive for point in found.points)

    monkeypatch.setattr(studying, "run_once", spoilt)
    asyncio.run(main())
    assert runs == studying.BLAMED_MAX + 1


def test_an_interrupted_study_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(Options(gap_ms=1)) as url:
            stop = Stop()

            def say(text: str) -> None:
                if text.startswith("  "):
                    stop.set("interrupted")

            runner = Runner(study_plan(Access(url=url), tmp_path), stop, say, lambda now: None)
            await runner.run()
            found = runner.result()
        assert found.partial
        assert len(found.points) == 1

    asyncio.run(main())
