"""How fast the simulator is: simulated requests per second of processor time, by the size of the fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trieway.loadgen.arrivals import poisson, schedule
from trieway.loadgen.reports.text import number, percent
from trieway.loadgen.sim.config import FleetSetup, WorkerSetup
from trieway.loadgen.simulations.playing import Played, Stop, simulate
from trieway.loadgen.vocabulary import Workload
from trieway.loadgen.workloads import make

WORKER = WorkerSetup(memory_bytes_max=1 << 20)
CHECK_EVERY = 5000
"""Steps between two sampled checks."""


def scale_workload(requests: int, rate: float, seed: int) -> Workload:
    """Chats of eight turns over four system prompts, and few-shot groups of sixteen, at `rate` per second in all."""
    groups = max(requests // 80, 1)
    chats = max((requests - 16 * groups) // 8, 1)
    return schedule(make("mixed", seed, conversations=chats, groups=groups), poisson(rate), seed=seed)


def scale_of(workers: int, requests: int, rate: float, routers: int, seed: int, stop: Stop | None = None) -> Played:
    """One fleet of H100s with an 8B model, under sampled checks."""
    setup = FleetSetup(seed=seed, workers=(WORKER,) * workers, routers=routers, check_every=CHECK_EVERY)
    return simulate(setup, scale_workload(requests, rate * workers, seed), stop=stop)


def scale_lines(sizes: Sequence[int], requests: int, rate: float, routers: int, seed: int, stop: Stop) -> Iterator[str]:
    """A line per fleet size, as it is known."""
    for workers in sizes:
        if stop.asked:
            return
        played = scale_of(workers, requests, rate, routers, seed, stop)
        ended = [record for record in played.records if record.ok]
        prompt = sum(record.prompt_tokens or 0 for record in ended)
        cached = sum(record.cached_tokens or 0 for record in ended)
        yield (
            f"{workers:>5} workers: {number(len(ended) / max(played.cpu_s, 1e-9))} requests/s of processor time "
            f"({len(ended):,} requests, {played.virtual_s:,.0f} simulated s, {played.steps:,} steps, "
            f"{played.cpu_s:,.1f} s; hit rate {percent(cached / prompt if prompt else None)})"
        )
