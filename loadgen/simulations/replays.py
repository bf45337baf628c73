"""Many replays, in several processes: each trace on each fleet, by the reference's rules and by simulated policies.

Keeps true: results come in the order of traces and sizes, whichever process is done first; an interrupt ends the
processes, and what was whole before it stands. A trace with heads comes twice, as on a reference page: with ids as in
the source, and with shared heads. Does not know how results look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from trieway.loadgen.errors import LoadError
from trieway.loadgen.reference import Reference
from trieway.loadgen.reference_tables import has_heads, trace_files
from trieway.loadgen.sim.cost import CostModel
from trieway.loadgen.simulations.playing import Stop
from trieway.loadgen.simulations.pools import each
from trieway.loadgen.simulations.replaying import Counted, Simulated, Size, count, play_trace
from trieway.loadgen.traces import Trace, read_trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A trace in one of its variants."""

    path: str
    shared_head: bool = False
    rows_max: int | None = None

    def read(self) -> Trace:
        """TraceError: it cannot be used."""
        trace = read_trace(self.path)
        if self.rows_max is not None:
            trace = replace(trace, rows=trace.rows[: self.rows_max])
        return replace(trace.with_shared_head(), name=f"{trace.name} +head") if self.shared_head else trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What to replay, on which fleets. No `policies`: the rules alone."""

    sources: tuple[Source, ...]
    sizes: tuple[Size, ...]
    policies: tuple[str, ...]
    cost: CostModel
    seed: int = 0
    speed: float = 1.0
    processes: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a trace is."""

    name: str
    requests: int
    span_s: float
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One trace on one fleet."""

    trace: About
    size: Size
    counted: Counted
    simulated: tuple[Simulated, ...]


def sources_of(paths: Sequence[str], rows_max: int | None) -> tuple[Source, ...]:
    """Of files and folders. LoadError: no trace, or a broken one, which is found here and not after an hour."""
    if rows_max is not None and rows_max < 2:
        raise LoadError(f"at least two rows are replayed, not {rows_max}")
    found = []
    for path in trace_files(paths):
        heads = (False, True) if has_heads(read_trace(path)) else (False,)
        found += [Source(path=path, rows_max=rows_max, shared_head=shared) for shared in heads]
    return tuple(found)


def results(wanted: Wanted, stop: Stop) -> Iterator[Found]:
    """Each as soon as it and those before it are there. Ends early once `stop` is asked."""
    cells = [(source, size) for source in wanted.sources for size in wanted.sizes]
    tasks = [_Task(*cell, policy, wanted) for cell in cells for policy in (None, *wanted.policies)]
    done = map(_here(stop), tasks) if wanted.processes == 1 else each(_done, tasks, wanted.processes, stop)
    for _, size in cells:
        parts = list(islice(done, 1 + len(wanted.policies)))
        if stop.asked or not parts:
            return
        (trace, counted), *simulated = parts
        yield Found(trace=trace, size=size, counted=counted, simulated=tuple(simulated))


# In any process.


@dataclass(frozen=True, slots=True)
class _Task:
    """No `policy`: the rules."""

    source: Source
    size: Size
    policy: str | None
    wanted: Wanted


def _here(stop: Stop) -> Callable[[_Task], Any]:
    return lambda task: None if stop.asked else _done(task, stop)


def _done(task: _Task, stop: Stop | None = None) -> Any:
    """(About, Counted), or Simulated."""
    trace, reference = _reference(task.source)
    if task.policy is not None:
        wanted = task.wanted
        return play_trace(trace, task.size, task.policy, wanted.cost, seed=wanted.seed, speed=wanted.speed, stop=stop)
    about = About(
        name=trace.name,
        requests=len(trace.rows),
        span_s=float(reference.span_s),
        prompt_tokens=reference.prompt_tokens,
    )
    return about, count(reference, trace, task.size)


@lru_cache(maxsize=1)
def _reference(source: Source) -> tuple[Trace, Reference]:
    trace = source.read()
    return trace, Reference(trace)
