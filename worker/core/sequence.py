"""The scheduler's vocabulary: what comes in (Request), what a step computes (Plan), what a step gave (Committed).

Keeps true: these are values; nothing here holds state that changes, apart from the page tables that `Work.pages` may
alias until the step is committed. Does not know the cache, the pool, text, sampling or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from trieway.meta_tree.chain import Chain

PolicyName: TypeAlias = Literal["lpm", "fcfs", "random"]
FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """Bounds and choices of one scheduler. Raises ValueError for a combination that could not serve."""

    page_size: int = 1
    """Tokens per page; every match and every stored length is a multiple of it."""
    kv_tokens: int
    """Size of the pool in tokens; rounded down to pages."""
    context_max: int
    """Prompt and output together, in tokens."""
    batch_tokens_max: int = 512
    """Tokens of one step, decodes and prefill chunks together."""
    running_max: int = 64
    waiting_max: int = 512
    policy: PolicyName = "lpm"
    wait_max_s: float = 10.0
    """A request that has waited so long goes first, and none may pass it. With longer queues than this, lpm is fcfs."""
    prefix_cache: bool = True
    lpm_waiting_max: int = 128
    """With more waiting, lpm becomes fcfs: ranking would cost more than it gives."""
    share_tokens_min: int = 32
    """A request waits for a running prefill if that will lengthen its hit by at least this many tokens."""
    reserve_tokens: int = 32
    """Room kept at admission for the output of each running request, as far as it may still grow."""
    follow_up_s: float = 0.0
    """For so long after a request is complete nothing is evicted to admit another one while any runs: a chat's next
    turn, just on its way, finds its past. 0: no such wait. It costs a step without admissions in a full cache."""
    keep_warm: bool = False
    """A request with a hit that does not fit is passed only by such as need no eviction: those behind it cannot push
    out what it waits with."""

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.kv_tokens < self.page_size:
            raise ValueError(f"kv_tokens {self.kv_tokens} must hold at least one page of {self.page_size} tokens")
        if self.running_max < 1 or self.waiting_max < 1 or self.context_max < 2:
            raise ValueError("running_max and waiting_max must be at least 1, context_max at least 2")
        if self.batch_tokens_max < self.running_max + self.page_size:
            raise ValueError(
                f"batch_tokens_max {self.batch_tokens_max} must be at least running_max + page_size"
                f" ({self.running_max + self.page_size}), or decodes could starve every prefill"
            )
        if self.policy not in get_args(PolicyName):
            raise ValueError(f"unknown policy {self.policy!r}: choose one of {', '.join(get_args(PolicyName))}")
        if min(self.wait_max_s, self.lpm_waiting_max, self.reserve_tokens, self.follow_up_s) < 0:
            raise ValueError("wait_max_s, lpm_waiting_max, reserve_tokens and follow_up_s must not be negative")
        if self.share_tokens_min < 1:
            raise ValueError("share_tokens_min must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt to compute and continue. `id` is unique among the requests that wait or run."""

    id: str
    chain: Chain
    """The namespace: cached tokens are shared within one chain only."""
    tokens: Sequence[int]
    canonical: int
    """How many leading tokens a text would take; text blocks beyond them are not announced, nor is any output then."""
    max_new_tokens: int
    """0: compute and store the prompt only (a prefix hint)."""
    priority: int = 0
    """Lower is sooner."""
    reuse_max: int | None = None
    """Most tokens to take from the cache: None means prompt - 1 (which caps any value); 0 for prompt logprobs."""
    publish: bool = True
    """False: nothing of this request enters the cache."""
    stop_token_ids: frozenset[int] = frozenset()
    arrived: float = 0.0
    """Seconds, same clock as `now`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one sequence computes in one step.

    `pages` is its page table, exactly ceil((start + len(tokens)) / page_size) entries: token i lives in page
    pages[i // page_size] at offset i % page_size. It may be the scheduler's own list: read it before commit, keep no
    reference, and do not carry entries over to the next step (a page may be re-pointed to the cache's copy).
    """

    id: str
    tokens: tuple[int, ...]
    """Input ids of this step."""
    start: int
    """Tokens whose KV is already there."""
    pages: Sequence[int]
    samples: bool
    """True if the last position's logits must be sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One step. Decodes come first. `work` is empty when nothing can run."""

    number: int
    work: tuple[Work, ...]
    prefill_tokens: int = 0
    decode_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstToken:
    """What the receipt tells, known with the first token (or, for a hint, when the prompt is stored)."""

    cached_tokens: int
    prompt_tokens: int
    queue_ms: float
    prefill_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a step did for one request. `token` is None when it only computed a chunk (or a hint's last one)."""

    id: str
    token: int | None = None
    first: FirstToken | None = None
    finish: FinishReason | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """Outcomes by request id, in the plan's order. A request that was cancelled during the step is absent."""

    outcomes: Mapping[str, Outcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerStats:
    """Counters since the start (`*_total`) and gauges. Tokens unless named otherwise; kv_free + kv_cached +
    kv_running = kv_total, and kv_locked is the part of kv_cached that running requests hold."""

    running: int
    waiting: int
    kv_total: int
    kv_free: int
    kv_cached: int
    kv_locked: int
    kv_running: int
    nodes: int
    blocks: int
    namespaces: int
    requests_total: int
    rejected_total: int
    preempted_total: int
    cancelled_total: int
    finished_total: int
    prompt_tokens_total: int
    cached_tokens_total: int
    computed_tokens_total: int
    generated_tokens_total: int
    evicted_tokens_total: int
    flushes_total: int
