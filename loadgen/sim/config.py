"""What a simulated fleet is made of, with the same words and defaults as the real processes where they have them.

Keeps true: values only; everything random comes from `seed`. Does not know workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trieway.loadgen.sim.cost import CostModel, roofline
from trieway.worker.core.policies import Rng
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import PolicyName, SchedulerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """One kind of worker."""

    kv_tokens: int = 65_536
    page_size: int = 16
    batch_tokens_max: int = 2048
    running_max: int = 256
    waiting_max: int = 512
    context_max: int = 131_072
    policy: PolicyName = "lpm"
    wait_max_s: float = 5.0
    prefix_cache: bool = True
    memory_bytes_max: int = 16 << 20
    """For the exact tokens of generated text; 0: answers that come back are tokenised anew."""
    ring_events_max: int = 65_536
    cost: CostModel = field(default_factory=lambda: roofline("h100", "llama-3.1-8b"))

    def scheduler(self) -> SchedulerConfig:
        """ValueError: a combination that could not serve."""
        return SchedulerConfig(
            page_size=self.page_size,
            kv_tokens=self.kv_tokens,
            context_max=self.context_max,
            batch_tokens_max=self.batch_tokens_max,
            running_max=self.running_max,
            waiting_max=self.waiting_max,
            policy=self.policy,
            wait_max_s=self.wait_max_s,
            prefix_cache=self.prefix_cache,
        )

    def build(self, token_bytes: Sequence[bytes], rng: Rng) -> Scheduler:
        """The core of a new process."""
        return Scheduler(self.scheduler(), token_bytes, rng)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkSetup:
    """Every way between two processes. A stream is in order and whole unless a mishap befalls one of its messages."""

    delay_s: float = 0.0003
    jitter_s: float = 0.0002
    """Mean of what comes on top, exponential."""
    loss: float = 0.0
    """Chance that a feed's message is lost, and that an exchange breaks."""
    duplicate: float = 0.0
    reorder: float = 0.0
    """Chance that a feed's message comes again, or out of its turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterSetup:
    """Every router, by the names of its configuration."""

    policy: str = "cache_aware"
    tree_bytes_max: int = 512 << 20
    attempts_max: int = 3
    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 300.0
    probe_interval_s: float = 0.5
    heartbeat_timeout_s: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetSetup:
    """The whole fleet."""

    seed: int = 0
    workers: tuple[WorkerSetup, ...] = (WorkerSetup(), WorkerSetup())
    routers: int = 1
    router: RouterSetup = RouterSetup()
    network: NetworkSetup = NetworkSetup()
    check_every: int = 0
    """Steps between two checks of one process in turn; 1: of every process that a step touched, after each step; 0: at
    the end alone."""

    def __post_init__(self) -> None:
        if not self.workers or self.routers < 1:
            raise ValueError("a fleet needs a worker and a router")
