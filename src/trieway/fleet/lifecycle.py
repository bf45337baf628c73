"""The words of supervision: what a child can be, what can happen to it, what can be done about it, and every bound.

Values only. Times are seconds; an exit code is Python's, negative for the signal that ended the process.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a child is to the fleet."""

    WORKER = "worker"
    ROUTER = "router"


class Phase(Enum):
    """Where a child stands."""

    WAITING = "waiting"  # no process; to be started at `until`
    STARTING = "starting"  # a process that has not answered yet; killed at `until`
    READY = "ready"  # it answered its readiness probe
    STOPPING = "stopping"  # asked to leave; killed at `until`
    GONE = "gone"  # no process and none wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Every bound of supervision. Times in seconds.

    A child that ran `stable_s` is forgiven its past; `failures_max` failures in a row end a fleet that has not been
    complete yet, or one that has nothing left to serve with.
    """

    failures_max: int = 3
    backoff_first_s: float = 0.25
    backoff_max_s: float = 10.0
    stable_s: float = 30.0
    start_max_s: float = 300.0
    router_drain_max_s: float = 15.0
    worker_drain_max_s: float = 10.0

    def backoff_s(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure in a row (1 or more): doubling, bounded."""
        assert failures >= 1
        return min(self.backoff_max_s, self.backoff_first_s * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A process now runs for this name."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """The child's readiness probe succeeded."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Complete:
    """The router reports every worker of the fleet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited:
    """The child's process ended. `reason`: what the child itself said was wrong, if it did."""

    name: str
    code: int
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StopAsked:
    """The user wants the fleet to end; asked a second time: at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Nothing happened but time."""


Event = Started | Answered | Complete | Exited | StopAsked | Tick


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Start a process for this name. Answer with `Started` or `Exited`."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Ask (`hard` False) or force the child's process to end."""

    name: str
    hard: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Say:
    """A line for the person who watches."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnounceReady:
    """The fleet is complete for the first time: print the ready line."""


Effect = Start | Stop | Say | AnnounceReady


def describe_exit(code: int) -> str:
    """An exit status in words: Python's convention, negative is the signal that ended it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
