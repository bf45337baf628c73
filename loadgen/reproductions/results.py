"""What a reproduction found, as values that are written to JSON as they are.

Keeps true: nothing in it depends on the machine it ran on but `times`, which is left out unless asked for, so that the
same seed writes the same bytes. Does not know how anything is played or shown.
"""

from __future__ import annotations

import msgspec

SCHEMA = "trieway.reproductions/1"


class HitRateRow(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark on one worker. Shares are 0 to 1; published values None where the paper has none."""

    benchmark: str
    workload: str
    settings: dict[str, str | int | float | bool | None]
    programs: int
    calls: int
    hit_rate: float
    optimum: float
    share: float
    shipped_hit_rate: float
    """With a worker's defaults."""
    programs_per_s: float
    over_no_cache: float
    """Throughput over that of a worker that keeps nothing."""
    published_hit_rate: float | None
    published_optimum: float | None
    published_error: float | None


class AblationRow(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of a variant over that with everything on."""

    benchmark: str
    variant: str
    about: str
    throughput: float
    hit_rate: float
    published: float | None
    published_error: float | None


class CurveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A forced hit rate and what follows from it; `published` at the nearest rate that was read off."""

    reuse_share: float
    hit_rate: float
    batch: float
    output_tokens_per_s: float
    run_s: float
    ttft_s: float


class PublishedCurveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Figures 8(a) and 8(b), read off."""

    hit_rate: float
    batch: float
    output_tokens_per_s: float
    run_s: float
    ttft_s: float


class ScalingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The same questions on more workers. `order`: by subject, or shuffled."""

    order: str
    workers: int
    policy: str
    programs_per_s: float
    speedup: float
    """Over one worker, in the same order."""
    hit_rate: float
    optimum: float
    share: float
    busiest: float
    """Requests of the busiest worker over the mean."""


class OverheadRow(msgspec.Struct, frozen=True, kw_only=True):
    """Managing the cache where nothing is shared. `run_s` is simulated."""

    machine: str
    requests: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    evicted_tokens: int
    operations: int
    run_s: float


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time on the machine that ran this, for one row of overhead: differs from run to run."""

    machine: str
    managing_cpu_s: float
    core_cpu_s: float
    share_of_run: float
    """Of managing, in the simulated run."""
    core_share_of_run: float
    share_of_published_run: float | None
    """Of managing, in the run time that the paper measured; None where the machine is another one."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    schema: str = SCHEMA
    version: str
    paper: str
    seed: int
    quick: bool
    partial: bool = False
    machine: dict[str, str | int | float]
    hit_rates: list[HitRateRow] = []
    share_mean: float | None = None
    """Of the optimum, over the benchmarks that the paper has too."""
    shipped_share_mean: float | None = None
    """The same with a worker's defaults."""
    published_share_mean: float
    published_share_mean_of_these: float | None = None
    """Over the same benchmarks, from figure 13."""
    ablations: list[AblationRow] = []
    curve: list[CurveRow] = []
    published_curve: list[PublishedCurveRow] = []
    scaling: list[ScalingRow] = []
    published_scaling: str
    overhead: list[OverheadRow] = []
    times: list[Times] = []


def encode(results: Results) -> bytes:
    """JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"


def decode(data: bytes) -> Results:
    """What `encode` wrote. msgspec.DecodeError: it is not that."""
    return msgspec.json.decode(data, type=Results)
