"""The values that go in and out of RouterCore.

Everything is as good as frozen: what is made for every request is not frozen in name, since that triples the cost of
making it, and nobody changes it. Tokens are counts, never ids; prompts are seen only as block hashes and lengths.
Times called `*_ms` are predicted or measured milliseconds; `now` everywhere is float seconds of one monotone clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import GroupId, Reject, WorkerId


class Rng(Protocol):
    """The one thing asked of a random source; `random.Random` has it."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


class Rejection(StrEnum):
    """Values of `Reject.reason` that `choose` gives."""

    UNKNOWN_MODEL = "unknown_model"
    """There are workers, and none names this model: 404."""
    NO_WORKER = "no_worker"
    """No worker of the model is up and not excluded, or no worker is known at all: 503."""
    QUEUES_FULL = "queues_full"
    """Every worker that could serve is at its bound: 429."""
    TOO_LONG = "too_long"
    """Longer than the context of every worker of the model: 400."""


class Outcome(StrEnum):
    """How a booking ended."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    """The worker answered 4xx, 429 excepted: never counts against it."""
    WORKER_ERROR = "worker_error"
    """Connect error, 5xx, broken stream."""
    BUSY = "busy"
    """The worker answered 429: it works, its queue is full."""
    CANCELLED = "cancelled"
    """The client went away, or the router gave up on its own account."""
    TIMEOUT = "timeout"


class WorkerState(StrEnum):
    """What the router knows of a worker's life."""

    UP = "up"
    SUSPECT = "suspect"
    """Its feed is silent: chosen only when nobody else can serve."""
    DRAINING = "draining"
    """Finishes what it has, gets nothing new."""
    GONE = "gone"
    """Its process is dead: holds nothing, gets nothing until it is back."""


@dataclass(kw_only=True, slots=True)
class Query:
    """What the decision needs to know of a request."""

    model: str
    """A model name or alias as the client wrote it."""
    group: GroupId | None = None
    """The group in whose namespace `hashes` were made; None: any worker of the model, nothing is matched."""
    hashes: Sequence[int] = ()
    """Chain hashes of the prompt's whole 64-byte blocks."""
    prompt_bytes: int = 0
    """Length of the rendered prompt (of all prompts, if the request has several)."""
    prompt_tokens: int | None = None
    """Exact length where the prompt came as token ids."""
    reuse_max: int | None = None
    """Most tokens that may be reused: 0 for echo with logprobs; None: all but the last one."""
    priority: int = 0
    """Lower is sooner."""
    session: str | None = None
    max_tokens: int | None = None
    """Most tokens that may be generated, over all choices of the request."""
    exclude: frozenset[WorkerId] = frozenset()
    """Workers already tried for this request."""


@dataclass(kw_only=True, slots=True)
class CostRow:
    """One candidate worker as `choose` saw it. `cost_ms` is made of its terms. Nobody changes it once it is out of
    `choose`; it is not frozen because a hundred are made per request, and a frozen one takes three times as long."""

    worker: WorkerId
    usable: tuple[int, int, int]
    """Reusable tokens held per tier (cumulative best at device, host, external), capped by the request."""
    speculative_tokens: int
    """Reusable tokens once the requests already on their way have been computed; never below usable[0]."""
    cached_tokens: int
    """What this request is predicted to reuse here."""
    uncached_tokens: int
    queue_ms: float
    prefill_ms: float
    reload_ms: float
    interference_ms: float
    """What running decodes add to the time to first token."""
    decode_ms: float
    """Weighted slow-down of the answer's tokens compared with an idle worker; no part of the time to first token."""
    spread_ms: float
    """What recent new work in excess of the peers' counts; no part of the time to first token."""
    work_ms: float
    """Weighted uncached work, for it is taken from everybody; no part of the time to first token."""
    copied_ms: float
    """Part of the prefill that later requests for the same hot prefix will be spared; taken off the cost."""
    displaced_ms: float
    """What the worker must evict to hold this prompt; no part of the time to first token."""
    ttft_ms: float
    """queue + prefill + reload + interference."""
    cost_ms: float
    """ttft + decode + work + displaced + spread - copied: what cache_aware minimises."""
    error_ms: float
    """One standard error of `cost_ms`."""
    booked: int
    """Requests of this router that are open at the worker, plus those that its own report adds."""
    last_booked: int
    """Sequence number of this router's latest booking there; 0 if none."""
    held_tokens: int
    """Tokens of cache the worker holds in all, by its own report or the view's estimate."""
    inflow_tokens: float
    """Uncached tokens sent there lately, decayed."""
    probability: float = 0.0
    """Chance that the policy picks this row."""


@dataclass(kw_only=True, slots=True)
class Choice:
    """Where a request should go, and why. Nothing has been counted yet: pass it to `book`."""

    worker: WorkerId
    predicted_tokens: int
    """Prompt tokens that the worker is expected to reuse."""
    prompt_tokens: int
    """Length of the prompt, estimated unless the query stated it."""
    predicted_ttft_ms: float
    reason: str
    """Short and enumerable, fit for a metric's label: `prefix`, `tie`, `cold`, `only`, or the policy's name."""
    available_tokens: int
    """Most tokens that any candidate holds."""
    matched: tuple[int, int]
    """(blocks, usable tokens) of the longest match anywhere."""
    rows: tuple[CostRow, ...]

    @property
    def row(self) -> CostRow:
        """The chosen worker's row."""
        return next(row for row in self.rows if row.worker == self.worker)


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What `choose` would do, with each candidate's costs; `rows` is empty if nobody can serve."""

    decision: Choice | Reject
    rows: tuple[CostRow, ...]
    prompt_tokens: int
    blocks: int


@dataclass(kw_only=True, slots=True)
class Booking:
    """A promise of work at one worker. Whoever holds it calls `release` exactly once."""

    id: int
    worker: WorkerId
    uncached_tokens: int
    predicted_tokens: int
    available_tokens: int
    prompt_tokens: int
    predicted_ttft_ms: float
    booked_at: float


@dataclass(kw_only=True, slots=True)
class FirstByte:
    """The receipt on an answer's first byte. A foreign engine fills in nothing: the time alone is told."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    epoch: int | None = None
    number: int | None = None
    """Feed number by which the prompt's blocks are announced."""
    queue_ms: float | None = None
    prefill_ms: float | None = None
    waiting: int | None = None


@dataclass(kw_only=True, slots=True)
class Settled:
    """What a receipt showed, for metrics."""

    worker: WorkerId
    ttft_ms: float
    predicted_ttft_ms: float
    available_tokens: int
    chosen_tokens: int
    delivered_tokens: int | None
    """None where the engine does not say."""
    regret_ms: float
    """How much later the first token came than the best alternative had promised; 0 if none was better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskBuckets:
    """Effect: fetch these digest buckets from the worker and feed the answering frame in."""

    worker: WorkerId
    indices: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resubscribe:
    """Effect: close the worker's feed and subscribe again from `since` and `epoch` (both None: whole snapshot)."""

    worker: WorkerId
    reason: str
    since: int | None
    epoch: int | None


CoreEffect = AskBuckets | Resubscribe


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRow:
    """One worker as the registry, the dashboard and the metrics show it."""

    worker: WorkerId
    url: str
    model: str
    aliases: tuple[str, ...]
    group: GroupId | None
    state: WorkerState
    has_feed: bool
    synced: bool
    """The feed's snapshot has been applied since the worker's present epoch began."""
    approximate: bool
    """The view learns from routing history, not from a feed."""
    epoch: int | None
    number: int | None
    """Last feed event applied."""
    lag_events: int
    gaps: int
    resyncs: int
    drift_blocks: int | None
    """Blocks by which view and worker disagree; None: unknown."""
    blocks: int
    booked: int
    booked_tokens: int
    pending_tokens: int
    """Uncached tokens booked here whose first byte has not come."""
    load: WorkerLoad | None
    load_age_s: float | None
    prefill_tokens_per_s: float
    overhead_ms: float
    breaker: str
    """`closed`, `open` or `half_open`."""
    errors: int
    """Consecutive worker errors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """How much of the fleet the router knows."""

    ready: bool
    share: float
    """Feeds loaded of feeds expected, 0 to 1; 1 where no worker has a feed."""
    workers: int
    up: int
    reason: str
