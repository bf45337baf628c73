"""The report of `load` and `sim`: one versioned schema, written as JSON and read back.

Keeps true: what is written reads back equal; unknown fields of a later minor version are passed over; another major
version is refused. Fields are only added within a version; a change of meaning is a new one. Times end in `_ms` or
`_s`, shares are 0 to 1, None is "nobody said". docs/report.schema.json is made from here (`make report-schema`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trieway.loadgen.reports.slo import Slo

SCHEMA: Literal["trieway.report/1"] = "trieway.report/1"


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of one quantity; the unit is in the name of the field that holds it. None of nothing."""

    count: int
    mean: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """How many calls came to what. measured = ok + failed + abandoned; warm-up and interrupted ones are outside."""

    total: int
    warmup: int
    interrupted: int
    """In flight or not yet sent when the run was cut short."""
    measured: int
    ok: int
    failed: int
    abandoned: int
    """Never sent, since a call that they wait for failed."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second of the measured window. `offered`: by due times."""

    window_s: float
    offered_per_s: float | None
    achieved_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """TTFT and end to end count from the due time. `itl`: each wait between two arrivals of text; `tpot`:
    (last - first) / (output tokens - 1) of each request. Answered requests only."""

    ttft_ms: Distribution
    itl_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution
    curves_ms: dict[str, list[float]]
    """ttft, itl, tpot, e2e at `quantiles`; absent of nothing."""
    quantiles: list[float]


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Under the SLO. A request is good if it was answered and itself held each limit (whatever the percentile)."""

    slo: Slo
    good: int
    share: float | None
    per_s: float | None
    holds: bool
    """Each percentile and the error rate within its limit."""
    broken: list[str]
    """What did not hold, in words."""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens that servers said they reused, against the most that any placement could have reused."""

    reported: bool
    """False: no server said what it reused."""
    input_tokens: int
    cached_tokens: int | None
    hit_rate: float | None
    bound_tokens: int | None
    """The oracle bound (docs/oracle-bound.md)."""
    bound_rate: float | None
    share_of_bound: float | None
    predicted_tokens: int | None
    """What the router expected, over requests for which it said so."""
    prediction_error: float | None
    """Sum of |predicted - cached| over the cached tokens of those requests."""


class WorkerShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker was given and gave."""

    worker: str
    requests: int
    input_tokens: int
    cached_tokens: int
    uncached_tokens: int
    output_tokens: int
    hit_rate: float | None
    ttft_ms: Distribution


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """Busiest over mean, 1 is even. `work`: uncached input tokens. None: no worker is named."""

    workers: list[WorkerShare]
    requests: float | None
    work: float | None


class TenantShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant asked and got."""

    tenant: str
    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    hit_rate: float | None
    ttft_ms: Distribution


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """The load generator on itself. `lag`: how much later than due it sent."""

    processes: int
    lag_ms: Distribution
    late_share: float | None
    """Share of requests sent over `late_ms` after their due time."""
    late_ms: float
    lagged: bool
    """True: the offered load was not what was asked for; the figures are those of a slower arrival."""
    cpu_s: float | None = None
    cpu_share_max: float | None = None
    """Of the busiest process, of one core."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One worker along the timeline, one value per step."""

    worker: str
    in_flight: list[float]
    finished: list[int]
    input_tokens: list[int]
    cached_tokens: list[int]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The run in steps of `step_s` from its start."""

    step_s: float
    lanes: list[Lane]
    ttft_p50_ms: list[float | None]
    ttft_p95_ms: list[float | None]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One server metric as scraped."""

    name: str
    times_s: list[float]
    values: list[float]


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """What one server's /metrics said during the run. `deltas`: counters, end minus start."""

    source: str
    scrapes: int
    failed: int
    series: list[Series]
    deltas: dict[str, float]


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A run of blocks in the meta-tree without a fork, held by the same workers."""

    hash: str
    blocks: int
    workers: list[str]
    children: list[Branch] = []
    usable: int = 0
    forks: int = 0


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One headline number with its 95 % interval; None: too little was measured to judge."""

    value: float
    low: float | None = None
    high: float | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or the last of `repeats` equal ones."""

    schema: Literal["trieway.report/1"] = SCHEMA
    kind: Literal["load", "sim"]
    version: str
    started: str | None = None
    """ISO 8601, UTC; None for a simulation."""
    partial: bool = False
    partial_reason: str | None = None
    notes: list[str] = []
    """Whatever a reader must know before believing the figures."""
    workload: str
    seed: int
    settings: dict[str, Any] = {}
    """The workload's effective parameters."""
    config: dict[str, Any] = {}
    """The run's full effective configuration, without secrets."""
    requests: Requests
    errors: dict[str, int]
    rates: Rates
    latency: Latency
    goodput: Goodput | None = None
    cache: Cache
    balance: Balance
    tenants: list[TenantShare] = []
    generator: Generator | None = None
    timeline: Timeline | None = None
    scrapes: list[Scrape] = []
    tree: dict[str, list[Branch]] = {}
    """The meta-tree at the end, by group."""
    figures: dict[str, Figure] = {}
    """Headlines; intervals within the run, or over `repeats` where there are two and more."""
    repeats: list[dict[str, float]] = []
    """The headlines of each repeat, this one included."""


def json_schema(kind: type[msgspec.Struct] = Report) -> dict[str, Any]:
    """The JSON Schema of a report, or of another document."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(kind)}
