"""Client processes: shares, deaths, orphans; and whole runs against the mock in its own loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.making import record
from tests.loadgen.serving import after, call, serving, workload
from tests.tools.mock_openai import Options
from trieway.loadgen.arrivals import parse
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.driver import Pace
from trieway.loadgen.client.messages import (
    Batch,
    Finished,
    Frames,
    Go,
    Job,
    Stop,
    decode_job,
    encode,
    encode_job,
    from_child,
    to_child,
)
from trieway.loadgen.client.processes import Processes
from trieway.loadgen.client.target import Access
from trieway.loadgen.client.url import Url, parse_url
from trieway.loadgen.errors import RunFailed
from trieway.loadgen.reports.slo import parse_slo
from trieway.loadgen.runs import once as running
from trieway.loadgen.runs.once import Now, run_once, with_head, with_warmup
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.runs.study import hopeless
from trieway.loadgen.vocabulary import Hint, Message, Text, Workload

URL = parse_url("127.0.0.1:1")


def job(*names: str, url: Url = URL, pace: Pace | None = None, tokens: int = 2) -> Job:
    made = workload(*(call(name, tokens=tokens) for name in names))
    return Job(workload=made, pace=pace or Pace(), dialect=Dialect(url=url, model="mock"), connections_max=10)


def plan(url: Url, made: Workload, text: str = "closed:4", **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "access": Access(url=url), "workload": made, "arrivals": parse(text), "arrivals_text": text, "seed": 1,
    }  # fmt: skip
    return Plan(**(values | changes))


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 7))
def test_frames_come_out_whole_however_they_are_cut(bodies: list[bytes], size: int) -> None:
    from trieway.loadgen.client.messages import frame

    data = b"".join(map(frame, bodies))
    frames = Frames()
    found = [one for at in range(0, len(data), size) for one in frames.feed(data[at : at + size])]
    assert found == bodies


def test_messages_read_back() -> None:
    batch = Batch([record(), record(1, worker=None, tenant="t")], ["a", "b"], 3, 1)
    done = Finished(unsent=1, cpu_s=0.5, wall_s=1.0, connections=2, messages={"x": "y"}, hints=0, hints_failed=0)
    for up in (batch, done):
        (body,) = Frames().feed(encode(up))
        assert from_child(body) == up
    for down in (Go(1.5), Stop()):
        (body,) = Frames().feed(encode(down))
        assert to_child(body) == down


def test_a_job_goes_over_without_its_settings() -> None:
    first = call("a")
    made = Job(
        workload=workload(first, after("b", first)), pace=Pace(users_max=3), connections_max=1,
        dialect=Dialect(url=URL, model="m", key="k"),
    )  # fmt: skip
    (body,) = Frames().feed(encode_job(made))
    back = decode_job(body)
    assert back.workload.calls == made.workload.calls
    assert (back.pace, back.dialect) == (made.pace, made.dialect)
    assert "k" not in repr(back.dialect), "keys are not shown"


@pytest.mark.fleet
def test_all_processes_start_at_once_and_bring_their_share() -> None:
    async def main() -> None:
        async with serving() as url:
            processes = Processes()
            seen: dict[int, list[str]] = {}
            try:
                await processes.start([job("a", "b", url=url), job("c", url=url)])
                async for number, batch in processes.batches():
                    seen.setdefault(number, []).extend(one.call for one in batch.records if one.ok)
            finally:
                await processes.close()
        assert {number: sorted(calls) for number, calls in seen.items()} == {0: ["a", "b"], 1: ["c"]}
        assert not processes.died
        assert all(one.cpu_s > 0 and not one.unsent for one in processes.finished.values())

    run(main())


@pytest.mark.fleet
def test_a_process_that_dies_is_named_and_the_others_go_on() -> None:
    async def main() -> None:
        async with serving(Options(gap_ms=30)) as url:
            processes = Processes()
            ok: list[str] = []
            try:
                await processes.start([job("a", url=url, tokens=600), job("b", url=url)])
                async for number, batch in processes.batches():
                    ok += [one.call for one in batch.records if one.ok]
                    if number == 0 and not processes.died:
                        processes._children[0].kill()
            finally:
                await processes.close()
        assert processes.died == [0]
        assert ok == ["b"]

    run(main())


@pytest.mark.fleet
def test_a_process_that_cannot_start_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        processes = Processes()
        try:
            await processes.start([job("a")])
        finally:
            await processes.close()

    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunFailed, match="client process 0 did not start"):
        run(main())


@pytest.mark.fleet
@pytest.mark.parametrize("before_the_job", [True, False])
def test_a_process_ends_with_its_parent(before_the_job: bool) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "trieway.loadgen.client.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    if not before_the_job:
        child.stdin.write(encode_job(job("a")))
        child.stdin.flush()
        child.stdout.read(5)
        os.kill(child.pid, signal.SIGINT)  # a terminal's interrupt is the parent's to judge
    child.stdin.close()
    assert child.wait(20) == 0
    child.stdout.close()


@pytest.mark.fleet
def test_a_whole_run() -> None:
    async def main() -> None:
        first = call("a", text="shared beginning " * 20)
        made = workload(first, after("b", first), *(call(f"c{n}", text="shared beginning " * 20) for n in range(10)))
        early, late = (Message("user", (Text(text),)) for text in ("early", "late"))
        hints = (Hint(session=None, messages=(early,)), Hint(session="a", messages=(late,)))
        made = replace(made, hint_prefixes=hints)
        told: list[Now] = []
        options = Options(gap_ms=1)
        async with serving(options) as url:
            outcome = await run_once(
                plan(url, made, processes=2, flush=True, hints=True, warmup_requests=1, slo=parse_slo("ttft_p95=10s")),
                running.Stop(), told.append,
            )  # fmt: skip
        report = outcome.report
        assert (report.requests.ok, report.requests.warmup, report.partial) == (11, 1, False)
        assert options.stats["hints"] == 2
        assert options.stats["flushes"] == 2
        assert report.cache.share_of_bound is not None
        assert report.cache.bound_rate is not None
        assert report.cache.bound_rate > 0.5
        assert told[-1].sent == 12
        assert told[-1].in_flight == 0
        assert report.scrapes

    run(main())


@pytest.mark.fleet
def test_a_stop_makes_a_partial_report() -> None:
    async def main() -> None:
        made = workload(*(call(f"c{n}", tokens=3) for n in range(500)))
        async with serving() as url:
            stop = running.Stop()

            def tell(now: Now) -> None:
                if now.records:
                    stop.set("told to")

            outcome = await run_once(plan(url, made, "constant:50"), stop, tell)
        report = outcome.report
        assert report.partial
        assert report.partial_reason is not None
        assert report.partial_reason.startswith("told to after")
        assert 0 < report.requests.ok < 500
        assert report.requests.failed == 0

    run(main())


@pytest.mark.fleet
def test_a_duration_leaves_the_rest_unsent_and_says_so() -> None:
    async def main() -> None:
        made = workload(*(call(f"c{n}") for n in range(2000)))
        async with serving(Options(gap_ms=5)) as url:
            outcome = await run_once(plan(url, made, "closed:2", duration_s=0.5), running.Stop())
        assert not outcome.report.partial
        assert any("left unsent" in note for note in outcome.report.notes)

    run(main())


def test_warm_up_is_by_time_or_by_number() -> None:
    records = [record(2), record(0), record(1)]
    assert [one.warmup for one in with_warmup(records, 1.5, 0)] == [True, True, False]
    assert [one.warmup for one in with_warmup(records, 0.0, 1)] == [True, False, False]
    assert [one.call for one in with_warmup(records, 0.0, 0)] == ["c0", "c1", "c2"]


def test_a_templates_own_system_text_is_shared_by_chats_without_one() -> None:
    has = call("a", messages=(Message("system", (Text("mine"),)), Message("user", (Text("x"),))))
    made = with_head(workload(has, call("b"), call("c", form="completion", messages=(), prompt=(Text("p"),))), "yours")
    assert made.calls[0].messages[0].parts == (Text("mine"),)
    assert made.calls[1].messages[0] == Message("system", (Text("yours"),))
    assert made.calls[2].messages == ()


def test_users_are_dealt_out_to_processes() -> None:
    made = workload(call("a"))
    assert [pace.users_max for pace in plan(URL, made, "closed:7", processes=3).paces()] == [3, 2, 2]
    assert [pace.users_max for pace in plan(URL, made, "poisson:7", processes=2).paces()] == [None, None]


def test_what_a_report_shows_of_a_plan_holds_no_key() -> None:
    secret = "sk-very-secret"
    made = plan(
        URL, workload(call("a")), access=Access(url=URL, key=secret, admin_key=secret), tenant_keys={"t": secret}
    )
    assert secret not in str(made.config())


@pytest.mark.parametrize(
    ("slow", "failed", "is_hopeless"), [(5, 0, False), (8, 0, True), (0, 1, False), (0, 2, True), (0, 0, False)]
)
def test_a_run_is_given_up_only_when_nothing_can_save_it(slow: int, failed: int, is_hopeless: bool) -> None:
    """Of 100 calls: five may be late for a p95 (interpolated: and a bit), one may fail."""
    slo = parse_slo("ttft_p95=200ms,errors=1%")
    records = [record(n, first_s=n + 0.5, last_s=n + 0.6) for n in range(slow)]
    records += [record(50 + n, status="http_500", first_s=None) for n in range(failed)]
    records += [record(70 + n) for n in range(20)]
    assert hopeless(records, 100, slo) == is_hopeless


def test_the_source_of_child_output_is_clean() -> None:
    """Nothing may print in a child: its standard output is a wire."""
    folder = Path(running.__file__).parent.parent / "client"
    assert not [path for path in folder.glob("*.py") if "print(" in path.read_text()]
