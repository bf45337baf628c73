"""What is played on both sides: workloads of a minute that SmolLM2 on a core can serve, and how the workers are set.

Keeps true: whatever decides a run is in here, for the real side and for the simulated one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from trieway.loadgen.arrivals import Arrivals, ClosedLoop, parse, schedule, users_of
from trieway.loadgen.vocabulary import Setting, Workload
from trieway.loadgen.workloads import make

SEED = 7
"""Of prompts, lengths and arrivals."""
MODEL = "smollm2-135m"
CONTEXT_TOKENS = 8192
"""SmolLM2's."""
KV_TOKENS = 16_384
PAGE_SIZE = 1
BATCH_TOKENS = 512
RUNNING_MAX = 64
WAITING_MAX = 512
WORKER_FLAGS = (
    *("--kv-tokens", str(KV_TOKENS), "--page-size", str(PAGE_SIZE), "--batch-tokens-max", str(BATCH_TOKENS)),
    *("--running-max", str(RUNNING_MAX), "--waiting-max", str(WAITING_MAX)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One workload. The first `warmup` requests count for nothing: caches fill, and the router learns its rates."""

    name: str
    about: str
    arrivals_text: str
    warmup: int
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def arrivals(self) -> Arrivals:
        """As parsed."""
        return parse(self.arrivals_text)

    @property
    def saturated(self) -> bool:
        """Whether throughput is the fleet's own, not that of the arrivals."""
        return isinstance(self.arrivals, ClosedLoop)

    @property
    def users(self) -> int | None:
        """Of a closed loop."""
        return users_of(self.arrivals)

    def workload(self) -> Workload:
        """The calls, with their due times."""
        return _workload(self.name, self.arrivals_text, tuple(self.settings.items()))

    def bare_workload(self) -> Workload:
        """The same without due times: a real run schedules by itself."""
        return make(self.name, SEED, **self.settings)


@cache
def _workload(name: str, arrivals: str, settings: tuple[tuple[str, Setting], ...]) -> Workload:
    return schedule(make(name, SEED, **dict(settings)), parse(arrivals), seed=SEED)


CASES = (
    Case(
        name="system-prompts",
        about="chats of two turns under shared system prompts, open loop at some 60 % of what the fleet can carry",
        arrivals_text="poisson:3.5",
        warmup=30,
        settings={"conversations": 105, "turns": 2, "system_tokens": 400},
    ),
    Case(
        name="mixed",
        about="long chats and few-shot questions among them, 12 users without pause: saturated",
        arrivals_text="closed:12",
        warmup=30,
        settings={"conversations": 32, "turns": 4, "groups": 8, "group_size": 12, "pause": "none"},
    ),
    Case(
        name="rag",
        about="questions over documents that are partly cached, 8 users without pause: saturated, much prefill",
        arrivals_text="closed:8",
        warmup=30,
        settings={"questions": 170, "scale": 0.5},
    ),
)
