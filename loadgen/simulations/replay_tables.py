"""What replays found, as tables in Markdown, and as JSON.

Keeps true: a cell is hit % (imbalance, win60), as on a reference page. Does not know how it was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from trieway import __version__
from trieway.loadgen.reference import RULES
from trieway.loadgen.reference_tables import cell, head, row
from trieway.loadgen.reports.text import number, percent
from trieway.loadgen.simulations.replaying import Simulated, Size
from trieway.loadgen.simulations.replays import About, Found, Wanted

FORMAT = "trieway.replay/1"
YARDSTICK = "half"
ALIKE, EVEN = 0.05, 0.05
"""Hit rates (in points) and imbalances that differ by less are the same."""


def tables(found: Iterable[Found], policies: Sequence[str]) -> Iterator[str]:
    """A table for each trace, a row for each size."""
    for trace, rows in groupby(found, key=lambda one: one.trace):
        yield from _heading(trace, policies)
        for one in rows:
            cells = [cell(one.counted.rules[rule]) for rule in RULES]
            yield row(size_name(one.size), *cells, _percent(one.counted.bound_share), *_simulated(one.simulated))


def _heading(trace: About, policies: Sequence[str]) -> Iterator[str]:
    about = f"{trace.requests:,} requests in {trace.span_s:,.0f} s, {trace.prompt_tokens:,} prompt tokens"
    yield from ("", f"### {trace.name}: {about}", "")
    more = [
        title for policy in policies for title in (f"**{policy}**, simulated", "its bound", "TTFT p50, p95 ms", "load")
    ]
    yield from head("fleet", *RULES, "bound", *more)


def _simulated(simulated: Sequence[Simulated]) -> Iterator[str]:
    for one in simulated:
        failed = f", {one.failed} failed" if one.failed else ""
        yield f"**{cell(one.outcome)}**{failed}"
        yield _percent(one.bound_share)
        yield f"{number(one.ttft_p50_ms)}, {number(one.ttft_p95_ms)}"
        yield percent(one.load)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def size_name(size: Size) -> str:
    """Such as 4 x 256k."""
    tokens = size.cache_tokens
    if tokens is None:
        return f"{size.workers} x endless"
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if tokens % unit == 0:
            return f"{size.workers} x {tokens // unit}{name}"
    return f"{size.workers} x {tokens}"


def against(found: Sequence[Found]) -> Iterator[str]:
    """Each policy beside the yardstick among the rules."""
    compared = [(one, simulated) for one in found for simulated in one.simulated]
    if not compared:
        return
    yield from ("", f"### Against `{YARDSTICK}`: points of hit rate more, and imbalance more", "")
    yield from head("trace", "fleet", "policy", "hits", "imbalance", "win60", "")
    for one, simulated in compared:
        rule, outcome = one.counted.rules[YARDSTICK], simulated.outcome
        more = 100 * (outcome.hit_share - rule.hit_share)
        uneven = outcome.imbalance - rule.imbalance
        said = "as many" if abs(more) < ALIKE else "more" if more > 0.0 else "fewer"
        said += ", less even" if uneven > EVEN else ", more even" if uneven < -EVEN else ""
        yield row(
            one.trace.name, size_name(one.size), simulated.policy,
            f"{more:+.2f}", f"{uneven:+.2f}", f"{outcome.win60 - rule.win60:+.2f}", said,
        )  # fmt: skip


def json_of(found: Sequence[Found], wanted: Wanted, *, partial: bool) -> bytes:
    """Everything, indented."""
    whole = {"format": FORMAT, "version": __version__, "partial": partial, "wanted": wanted, "results": found}
    return msgspec.json.format(msgspec.json.encode(whole), indent=1)
