"""`make bench-load`: what one client process of the load generator carries, against a mock server on another core.

Beside each run another process on the client's core does nothing but sleep, and tells how late it is woken: what the
machine adds to any lag. Quote the best of the rounds on a machine that others use. Exit code 1 if no round reaches the
aim, or the sleeper's own lateness where that is beyond it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from trieway.loadgen.arrivals import ClosedLoop, parse, schedule, users_of
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.driver import Pace
from trieway.loadgen.client.loop import run_loop
from trieway.loadgen.client.messages import Job
from trieway.loadgen.client.processes import Processes
from trieway.loadgen.client.url import parse_url
from trieway.loadgen.records import Record
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.stats import Sorted
from trieway.loadgen.reports.summary import Client, Context, summarise
from trieway.loadgen.vocabulary import Call, Filler, Message, Workload

EVENTS = 10
AIM_PER_S = 2000
AIM_LAG_MS = 2.0
WORDS = 50
"""A prompt of 200 bytes; each is another one."""


@dataclass(frozen=True)
class Measured:
    report: Report
    cpu_s: float
    mock_cpu_s: float
    sleeper_ms: float
    """The p99 by which a process that only sleeps was woken late meanwhile."""

    @property
    def lag_ms(self) -> float:
        """The p99."""
        assert self.report.generator is not None
        return self.report.generator.lag_ms.p99 or 0.0

    def line(self, name: str) -> str:
        rates, generator = self.report.rates, self.report.generator
        assert generator is not None
        count = self.report.requests.ok
        lag = generator.lag_ms
        return (
            f"{name:<24}{rates.achieved_per_s or 0:10.0f}{rates.output_tokens_per_s or 0:10.0f}"
            f"{self.cpu_s / max(count, 1) * 1e6:10.0f}{generator.cpu_share_max or 0:8.2f}{lag.p50 or 0:10.2f}"
            f"{lag.p99 or 0:10.2f}{self.sleeper_ms:10.2f}{self.report.requests.failed:8d}"
            f"{self.mock_cpu_s / max(count, 1) * 1e6:10.0f}"
        )


def calls(count: int) -> Workload:
    """Chats of one message, streamed, EVENTS tokens each."""
    return Workload(
        name="bench",
        seed=0,
        calls=tuple(
            Call(
                id=f"c{number}",
                session=f"s{number}",
                messages=(Message("user", (Filler(number, WORDS),)),),
                output_tokens=EVENTS,
                max_tokens=EVENTS,
            )
            for number in range(count)
        ),
    )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Cores = set[int]


def cores() -> tuple[Cores, Cores]:
    """One for the client process alone, the others for the mock and us; on a single core all share it."""
    every = os.sched_getaffinity(0)
    first = {min(every)}
    return first, every - first or first


async def measure(arrivals_text: str, seconds: float, apart: tuple[Cores, Cores]) -> Measured:
    """One run of one client process, on a core of its own."""
    mine, others = apart
    arrivals = parse(arrivals_text)
    closed = isinstance(arrivals, ClosedLoop)
    rate = 4 * AIM_PER_S if closed else float(arrivals_text.split(":")[1])
    workload = schedule(calls(int(rate * seconds)), arrivals, seed=1)
    mock = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.tools.mock_openai", "--gap-ms", "5", stdin=-1, stdout=-1
    )
    assert mock.stdin is not None
    assert mock.stdout is not None
    os.sched_setaffinity(mock.pid, others)
    processes = Processes()
    records: list[Record] = []
    try:
        url = parse_url((await mock.stdout.readline()).decode().split()[-1])
        pace = Pace(users_max=users_of(arrivals), stop_s=seconds if closed else None, timeout_s=30)
        dialect = Dialect(url=url, model="mock")
        os.sched_setaffinity(0, mine)  # which the client process inherits, and the sleeper
        sleeper = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.tools.bench_load", "--sleep", str(seconds), stdout=-1
        )
        await processes.start([Job(workload=workload, pace=pace, dialect=dialect, connections_max=2000)])
        os.sched_setaffinity(0, others)
        async for _, batch in processes.batches():
            records += batch.records
        mock_cpu_s = cpu_seconds(mock.pid)
        sleeper_ms = float((await sleeper.communicate())[0])
    finally:
        await processes.close()
        mock.stdin.close()
        await mock.wait()
    told = processes.finished[0]
    client = Client(processes=1, cpu_s=told.cpu_s, cpu_share_max=told.cpu_s / told.wall_s)
    context = Context(kind="load", version="bench", workload="bench", seed=0, client=client)
    return Measured(summarise(records, context), told.cpu_s, mock_cpu_s, sleeper_ms)


def lateness_ms(seconds: float, nap_s: float = 0.002) -> float:
    """The p99 by which this process wakes up late from naps, by the moments at which it should have."""
    late: list[float] = []
    due = monotonic()
    end = due + seconds
    while due < end:
        due += nap_s
        sleep(max(due - monotonic(), 0.0))
        late.append(monotonic() - due)
    return (Sorted.of(late).quantile(0.99) or 0.0) * 1e3


async def whole(rounds: int, seconds: float) -> bool:
    """All runs; whether the best reach the aims."""
    apart = cores()
    print(f"load average {os.getloadavg()[0]:.1f}, {len(apart[0] | apart[1])} cores")
    print(f"{EVENTS} events per request, each written alone, 5 ms apart; us: of CPU; lag in ms; sleeper: its p99")
    columns = ("req/s", "events/s", "us/req", "core", "lag p50", "lag p99", "sleeper", "failed", "mock us")
    print(f"{'':<24}" + "".join(f"{name:>{8 if name in ('core', 'failed') else 10}}" for name in columns), flush=True)
    dearest = 0.0
    best: Measured | None = None
    for _ in range(rounds):
        for name, text in (
            ("half the aim", f"poisson:{AIM_PER_S // 2}"),
            ("the aim", f"poisson:{AIM_PER_S}"),
            ("as fast as it goes", "closed:400"),
        ):
            found = await measure(text, seconds, apart)
            print(found.line(name), flush=True)
            dearest = max(dearest, found.cpu_s / max(found.report.requests.ok, 1))
            if name == "half the aim" and (best is None or found.lag_ms < best.lag_ms):
                best = found
    assert best is not None
    carries = 1 / dearest
    print(
        f"a core carries {carries:.0f} requests/s with {carries * EVENTS:.0f} events/s "
        f"(aim {AIM_PER_S} with {AIM_PER_S * EVENTS})"
    )
    print(
        f"lag p99 {best.lag_ms:.2f} ms at {AIM_PER_S // 2}/s (aim under {AIM_LAG_MS:g}); "
        f"a process that only slept was {best.sleeper_ms:.2f} ms late"
    )
    return carries >= AIM_PER_S and best.lag_ms < max(AIM_LAG_MS, best.sleeper_ms)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sleep", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.sleep is not None:
        print(lateness_ms(asked.sleep))
        return 0
    return 0 if run_loop(whole(asked.rounds, asked.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
