"""From flags to a simulated fleet and its workload, each refused in one line where it cannot be used."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trieway.loadgen.arrivals import Arrivals, ClosedLoop, Per, parse, schedule, users_of
from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.slo import Slo, parse_slo
from trieway.loadgen.runs.options import REPEATS_MAX, seconds, settings_of
from trieway.loadgen.sim.config import FleetSetup, NetworkSetup, RouterSetup, WorkerSetup
from trieway.loadgen.sim.cost import Rates, SharedMachine, calibrated, roofline
from trieway.loadgen.sources import load
from trieway.loadgen.vocabulary import Workload
from trieway.router.core import POLICIES

FLEET_MAX = 4096
KV_TOKENS_MAX = 1 << 28
DELAY_MAX_S = 1.0
BOUNDS = (
    *(("repeats", 1, REPEATS_MAX), ("warmup_requests", 0, 1 << 31), ("routers", 1, 256), ("gpus", 1, 1024)),
    *(
        ("kv_tokens", 1, KV_TOKENS_MAX),
        ("page_size", 1, 4096),
        ("batch_tokens", 1, 1 << 20),
        ("running_max", 1, 1 << 16),
    ),
)
"""Of flags that are whole numbers: (name, least, most)."""
CALIBRATED_KV_TOKENS = 32_768
"""A real worker's default."""
DELAY, JITTER = "0.3ms", "0.2ms"
"""Of messages; what a calibration measured holds the ways between the processes already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Play:
    """One simulation, or several that differ in their seeds. `config` is what a report shows of it."""

    fleet: FleetSetup
    source: str
    settings: Mapping[str, Any]
    arrivals: Arrivals
    per: Per
    seed: int
    duration_s: float | None
    warmup_s: float
    warmup_requests: int
    repeats: int
    hints: bool
    slo: Slo | None
    bound: bool
    config: Mapping[str, Any]

    def workload(self, seed: int) -> Workload:
        """With due times. LoadError: nothing arrives."""
        made = load(self.source, seed, **self.settings)
        until_s = None if isinstance(self.arrivals, ClosedLoop) else self.duration_s
        made = schedule(made, self.arrivals, seed=seed, per=self.per, until_s=until_s)
        if not made.calls:
            raise LoadError(f"{made.name} has no calls within the duration; take longer or a higher rate")
        return made if self.hints else replace(made, hint_prefixes=())

    def singly(self) -> list[Play]:
        """Its repeats, each on its own."""
        return [
            replace(self, repeats=1, seed=seed, fleet=replace(self.fleet, seed=seed))
            for seed in range(self.seed, self.seed + self.repeats)
        ]

    @property
    def users_max(self) -> int | None:
        """Of a closed loop."""
        return users_of(self.arrivals)


def play_of(asked: argparse.Namespace, *, policy: str, workers: int) -> Play:
    """LoadError: something in it cannot be used."""
    for name, least, most in BOUNDS:
        given = getattr(asked, name)
        if given is not None and not least <= given <= most:
            raise LoadError(f"--{name.replace('_', '-')} is {least} to {most}, not {given}")
    if not 1 <= workers <= FLEET_MAX:
        raise LoadError(f"a simulated fleet has 1 to {FLEET_MAX} workers")
    if policy not in POLICIES:
        raise LoadError(f"no policy named {policy!r}; there are {', '.join(POLICIES)}")
    worker = _worker(asked)
    delay, jitter = _ways(asked)
    network = NetworkSetup(delay_s=seconds(delay, "delay"), jitter_s=seconds(jitter, "jitter"))
    if max(network.delay_s, network.jitter_s) > DELAY_MAX_S:
        raise LoadError(f"--delay and --jitter are at most {DELAY_MAX_S:g} s: no fleet works over slower ways")
    fleet = FleetSetup(
        seed=asked.seed,
        workers=(worker,) * workers,
        routers=asked.routers,
        router=RouterSetup(policy=policy),
        network=network,
        check_every=1 if getattr(asked, "check", False) else 0,
    )
    return Play(
        fleet=fleet,
        source=asked.workload,
        settings=settings_of(asked.set),
        arrivals=parse(asked.arrivals),
        per="session" if asked.per_session else "call",
        seed=asked.seed,
        duration_s=None if asked.duration is None else seconds(asked.duration, "duration"),
        warmup_s=seconds(asked.warmup, "warmup"),
        warmup_requests=asked.warmup_requests,
        repeats=asked.repeats,
        hints=asked.hints,
        slo=None if asked.slo is None else parse_slo(asked.slo),
        bound=asked.bound,
        config=_config(asked, policy, workers, worker),
    )


def _ways(asked: argparse.Namespace) -> tuple[str, str]:
    """Delay and jitter, as given or by default."""
    delay, jitter = ("0", "0") if asked.calibration is not None else (DELAY, JITTER)
    return asked.delay or delay, asked.jitter or jitter


def _worker(asked: argparse.Namespace) -> WorkerSetup:
    try:
        if asked.calibration is not None:
            cost: Any = _calibration(asked.calibration)
            kv_tokens, page_size, batch_tokens, running_max = CALIBRATED_KV_TOKENS, 1, 512, 64
        else:
            cost = roofline(asked.gpu, asked.model, asked.gpus)
            kv_tokens, page_size, batch_tokens, running_max = cost.kv_tokens, 16, 2048, 256
        setup = WorkerSetup(
            kv_tokens=asked.kv_tokens or kv_tokens,
            page_size=asked.page_size or page_size,
            batch_tokens_max=asked.batch_tokens or batch_tokens,
            running_max=asked.running_max or running_max,
            policy=asked.worker_policy,
            prefix_cache=asked.prefix_cache,
            cost=cost,
        )
        setup.scheduler()
    except ValueError as error:
        raise LoadError(f"such a worker cannot be: {error}") from None
    return setup


def _calibration(path: Path) -> Rates | SharedMachine:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise LoadError(f"{path} is no JSON; give what `trieway calibrate URL` printed") from None
    if not isinstance(report, dict):
        raise LoadError(f"{path} is not what `trieway calibrate URL` prints")
    return calibrated(report)


def _config(asked: argparse.Namespace, policy: str, workers: int, worker: WorkerSetup) -> dict[str, Any]:
    named = {"calibration": str(asked.calibration)} if asked.calibration is not None else {}
    if not named:
        named = {"gpu": asked.gpu, "gpus": asked.gpus, "model": asked.model}
    delay, jitter = _ways(asked)
    return {
        **named,
        "workers": workers,
        "routers": asked.routers,
        "policy": policy,
        "kv_tokens": worker.kv_tokens,
        "page_size": worker.page_size,
        "batch_tokens_max": worker.batch_tokens_max,
        "running_max": worker.running_max,
        "worker_policy": worker.policy,
        "prefix_cache": worker.prefix_cache,
        "cache_tokens": worker.kv_tokens * workers,
        "delay": delay,
        "jitter": jitter,
        "arrivals": asked.arrivals,
        "rate_counts": "sessions" if asked.per_session else "calls",
        "duration": asked.duration,
        "warmup": asked.warmup,
        "warmup_requests": asked.warmup_requests,
        "hints": asked.hints,
        "seed": asked.seed,
        "slo": asked.slo,
    }
