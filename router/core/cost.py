"""The cost of sending a request to a worker, in predicted milliseconds, term by term.

`ttft = queue + prefill + reload + interference`. The cost adds what others and later requests will feel: running
decodes lengthen the answer, work keeps the worker from others, a full cache must evict, an uneven flow of new work
fills one cache; and it takes off what a copy of a hot prefix will spare them. Keeps true: every term is finite and at
least 0, more cached tokens never cost more, and there is no threshold at which affinity is dropped. Does not choose
(policies.py) and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import WorkerId
from trieway.router.core.config import CoreConfig
from trieway.router.core.ledger import Book
from trieway.router.core.rates import Line
from trieway.router.core.values import CostRow


@dataclass(kw_only=True, slots=True)
class Job:
    """A request, sized."""

    prompt_tokens: int
    reuse_max: int
    """Most tokens that may be reused; below prompt_tokens."""
    output_tokens: int
    shared_tokens: int = 0
    """Tokens of the longest match anywhere, where other prompts lately forked too."""
    heat: float = 0.0
    """How many did."""


@dataclass(kw_only=True, slots=True)
class Candidate:
    """A worker that could serve, with all that the cost depends on. Not frozen, for the reason that CostRow gives."""

    worker: WorkerId
    usable: tuple[int, int, int]
    speculative_tokens: int
    book: Book
    load: WorkerLoad | None
    held_tokens: int
    prefill: Line
    """Milliseconds over uncached prompt tokens, per request."""
    decode: Line
    """Milliseconds of a decode step over running requests."""
    page_size: int
    running_max: int | None


def size_job(
    config: CoreConfig,
    *,
    prompt_bytes: int,
    prompt_tokens: int | None,
    reuse_max: int | None,
    max_tokens: int | None,
    matched: tuple[int, int],
    heat: float,
    bytes_per_token: float,
) -> Job:
    """matched: (blocks, usable tokens) of the longest match anywhere; it says exactly how long that part is."""
    blocks, usable = matched
    rest_bytes = max(prompt_bytes - blocks * BLOCK_BYTES, 0)
    if prompt_tokens is None:
        # At least one token lies beyond a match that ends before the prompt does.
        prompt_tokens = usable + max(round(rest_bytes / bytes_per_token), 1 if rest_bytes else 0)
    prompt_tokens = max(prompt_tokens, 1)
    cap = prompt_tokens - 1 if reuse_max is None else min(max(reuse_max, 0), prompt_tokens - 1)
    output = config.prior_output_tokens if max_tokens is None else min(max_tokens, config.prior_output_tokens)
    return Job(
        prompt_tokens=prompt_tokens,
        reuse_max=cap,
        output_tokens=max(output, 0),
        shared_tokens=min(usable, cap),
        heat=heat,
    )


def cost_rows(config: CoreConfig, job: Job, candidates: Sequence[Candidate], now: float) -> list[CostRow]:
    """One row per candidate, in their order."""
    # A copy made now serves this worker's part of the requests to come.
    shared_by = 1.0 + config.heat_weight * job.heat / max(len(candidates), 1)
    rows = [_row(config, job, candidate, shared_by, now) for candidate in candidates]
    return _with_spread(config, job, candidates, rows)


def _row(config: CoreConfig, job: Job, candidate: Candidate, shared_by: float, now: float) -> CostRow:
    page, book = candidate.page_size, candidate.book
    cap = job.reuse_max // page * page
    device, host, external = candidate.usable
    if external > cap:
        device, host, external = min(device, cap), min(host, cap), cap
    speculative = max(min(candidate.speculative_tokens, cap), device)
    slope = candidate.prefill.ms_per_unit
    cached, reload_ms = speculative, 0.0
    if external > cached:
        reload_ms = (external - cached) * min(1e3 / config.reload_tokens_per_s, slope)
        cached = external
    uncached = job.prompt_tokens - cached
    queue_ms, resting = _queue_ms(config, candidate, uncached, now)
    prefill_ms = candidate.prefill.at(uncached)
    decoding = max(len(book.open) - len(book.pending), 0) + book.foreign_requests
    interference_ms = 0.0
    if decoding:
        steps = 0.5 + (uncached + resting) / config.step_tokens
        interference_ms = candidate.decode.at(decoding) * steps
    # Each decode alongside lengthens every step of this answer, and this answer every step of each of them.
    decode_ms = config.decode_weight * job.output_tokens * candidate.decode.ms_per_unit * decoding
    ttft_ms = queue_ms + prefill_ms + reload_ms + interference_ms
    copied_ms = max(job.shared_tokens - cached, 0) * slope * (1.0 - 1.0 / shared_by)
    work_ms = config.work_weight * (slope * uncached - copied_ms)
    displaced_ms = 0.0
    if candidate.load is not None:
        displaced_ms = config.displaced_weight * max(uncached - candidate.load.kv_free_tokens, 0) * slope
    error = candidate.prefill.error
    variance = (error * (prefill_ms - copied_ms)) ** 2 + (
        config.queue_error * (queue_ms + interference_ms + decode_ms)
    ) ** 2
    return CostRow(
        worker=candidate.worker,
        usable=(device, host, external),
        speculative_tokens=speculative,
        cached_tokens=cached,
        uncached_tokens=uncached,
        queue_ms=queue_ms,
        prefill_ms=prefill_ms,
        reload_ms=reload_ms,
        interference_ms=interference_ms,
        decode_ms=decode_ms,
        work_ms=work_ms,
        copied_ms=copied_ms,
        displaced_ms=displaced_ms,
        spread_ms=0.0,
        ttft_ms=ttft_ms,
        cost_ms=ttft_ms + decode_ms + work_ms + displaced_ms - copied_ms,
        error_ms=(variance + config.cost_error_ms**2) ** 0.5,
        booked=len(book.open) + book.foreign_requests,
        last_booked=book.last_booked,
        held_tokens=candidate.held_tokens,
        inflow_tokens=book.inflow(now, config.inflow_halflife_s),
    )


def _queue_ms(config: CoreConfig, candidate: Candidate, uncached: int, now: float) -> tuple[float, float]:
    """(wait until the prompt is next, uncached tokens ahead of it)."""
    book, line = candidate.book, candidate.prefill
    if not book.pending and not book.foreign_tokens:
        return _slot_ms(candidate, uncached), 0
    per_s = 1e3 / line.ms_per_unit
    foreign = book.foreign_left(now, per_s)
    owed = book.owed_tokens()
    # Short prompts share steps, so that each pays only a part of a step's overhead.
    half_step_ms = 0.5 * line.overhead_ms if book.pending else 0.0
    overhead_ms = min(len(book.pending) * line.overhead_ms, half_step_ms + line.overhead_ms * owed / config.step_tokens)
    done_ms = min(book.working_s(now) * 1e3, half_step_ms + book.head_tokens() * line.ms_per_unit)
    queue_ms = max(overhead_ms + (owed + foreign) * line.ms_per_unit - done_ms, 0.0)
    return max(queue_ms, _slot_ms(candidate, uncached)), owed + foreign


def _slot_ms(candidate: Candidate, uncached: int) -> float:
    """Wait for a running request to end, where slots or pages rather than prefill are the bound."""
    book, load = candidate.book, candidate.load
    if candidate.running_max is None and (load is None or not load.waiting):
        return 0.0
    over = 0
    present = len(book.open) + book.foreign_requests
    if candidate.running_max is not None:
        over = max(present + 1 - candidate.running_max, 0)
    if load is not None and load.waiting and load.kv_free_tokens + load.kv_cached_tokens < uncached:
        over = max(over, load.waiting + 1)
    if not over:
        return 0.0
    return over * book.residence_ms.value / max(present - over, 1)


def _with_spread(config: CoreConfig, job: Job, candidates: Sequence[Candidate], rows: list[CostRow]) -> list[CostRow]:
    """Charge recent new work in excess of the peers' mean; see CoreConfig.spread_weight."""
    if len(rows) < 2 or not config.spread_weight:
        return rows
    fair = sum(row.inflow_tokens for row in rows) / len(rows) * (1.0 + config.spread_tolerance)
    fair += config.inflow_softness_tokens
    least_cached = min(row.cached_tokens for row in rows)
    for row, candidate in zip(rows, candidates, strict=True):
        excess = row.inflow_tokens - fair
        if excess > 0.0:
            slope = candidate.prefill.ms_per_unit
            most = config.spread_share_max * job.prompt_tokens
            # It may undo what the prefix draws, and beyond that only tilt a tie: a past flow never bars a worker.
            drawn_ms = (row.cached_tokens - least_cached) * slope + config.spread_tilt * row.error_ms
            spread_ms = min(min(config.spread_weight * excess, most) * slope, drawn_ms)
            row.spread_ms = spread_ms
            row.cost_ms += spread_ms
    return rows
