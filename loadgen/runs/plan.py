"""Everything that one run is told, once it is known to make sense.

Keeps true: a plan that was made can be carried out as far as this side can tell; what a report shows of it holds no
key. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trieway.loadgen.arrivals import Arrivals, ClosedLoop, OpenLoop, Per, schedule, users_of
from trieway.loadgen.client.driver import Pace
from trieway.loadgen.client.target import Access
from trieway.loadgen.errors import LoadError
from trieway.loadgen.reports.slo import Slo
from trieway.loadgen.vocabulary import Workload

PROCESSES_MAX = 64
CONNECTIONS = 4096
"""Most connections of one client process, as far as its open files allow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One run. `workload` as it was made: without due times of an arrival process."""

    access: Access
    workload: Workload
    arrivals: Arrivals
    arrivals_text: str
    """As it was given, for reports."""
    seed: int
    per_session: bool = False
    """Rates count sessions."""
    model: str | None = None
    tenant_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    extensions: bool = True
    duration_s: float | None = None
    warmup_s: float = 0.0
    warmup_requests: int = 0
    timeout_s: float = 600.0
    processes: int = 1
    connections: int = CONNECTIONS
    flush: bool = False
    hints: bool = False
    usage_needed: bool = True
    slo: Slo | None = None
    cache_tokens: int | None = None
    """Size of all caches together, where the server cannot tell."""
    bound: bool = True
    scrape_s: float = 1.0
    """0: no scraping."""

    def __post_init__(self) -> None:
        if not self.workload.calls:
            raise LoadError(f"{self.workload.name} has no calls")
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise LoadError(f"client processes are 1 to {PROCESSES_MAX}, not {self.processes}")
        users = users_of(self.arrivals)
        if users is not None and users < self.processes:
            raise LoadError(f"{users} users cannot be shared by {self.processes} client processes; use fewer")
        if self.duration_s is not None and self.warmup_s >= self.duration_s:
            raise LoadError(f"a warm-up of {self.warmup_s:g} s leaves nothing of {self.duration_s:g} s")

    def scheduled(self) -> Workload:
        """The workload with due times. LoadError: nothing would arrive within the duration."""
        until = None if isinstance(self.arrivals, ClosedLoop) else self.duration_s
        per: Per = "session" if self.per_session else "call"
        made = schedule(self.workload, self.arrivals, seed=self.seed, per=per, until_s=until)
        if not made.calls:
            raise LoadError(f"nothing arrives within {self.duration_s:g} s; take longer or a higher rate")
        return made

    def paces(self) -> list[Pace]:
        """One for each client process; users are dealt out evenly."""
        users = users_of(self.arrivals)
        shares = [
            None if users is None else users // self.processes + (number < users % self.processes)
            for number in range(self.processes)
        ]
        return [
            Pace(users_max=share, timeout_s=self.timeout_s, stop_s=self.duration_s, hints=self.hints)
            for share in shares
        ]

    def config(self) -> dict[str, Any]:
        """For the report."""
        return {
            "url": str(self.access.url),
            "model": self.model,
            "arrivals": self.arrivals_text,
            "open_loop": isinstance(self.arrivals, OpenLoop),
            "rate_counts": "sessions" if self.per_session else "calls",
            "seed": self.seed,
            "duration_s": self.duration_s,
            "warmup_s": self.warmup_s,
            "warmup_requests": self.warmup_requests,
            "timeout_s": self.timeout_s,
            "processes": self.processes,
            "connections": self.connections,
            "flush": self.flush,
            "hints": self.hints,
            "extensions": self.extensions,
            "cache_tokens": self.cache_tokens,
            "scrape_s": self.scrape_s,
            "slo": None if self.slo is None else str(self.slo),
            "api_key": "given" if self.access.key else None,
        }
