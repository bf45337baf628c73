"""Many replays, in several processes: each trace on each fleet, by the reference's rules and by simulated policies.

Keeps true: results come in the order of traces and sizes, whichever process is done first; an interrupt ends the
processes, and what was whole before it stands. A trace with heads comes twice, as on a reference page: with ids as in
the source, and with shared heads. Does not know how results look.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from trieway.loadgen.errors import LoadError
from trieway.loadgen.reference import Reference
from trieway.loadgen.reference_tables import has_heads, trace_files
from trieway.loadgen.sim.cost import CostModel
from trieway.loadgen.simulations.playing import Stop
from trieway.loadgen.simulations.replaying import Counted, Simulated, Size, count, play_trace
from trieway.loadgen.traces import Trace, read_trace

LOOK_S = 0.2
"""How soon an interrupt is noticed while processes are at work."""


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
    tasks = [(source, size) for source in wanted.sources for size in wanted.sizes]
    if wanted.processes == 1:
        yield from _here(wanted, tasks, stop)
        return
    with ProcessPoolExecutor(wanted.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        counted = [pool.submit(_count, *task) for task in tasks]
        played = [[pool.submit(_play, *task, policy, wanted) for policy in wanted.policies] for task in tasks]
        for (_, size), first, others in zip(tasks, counted, played, strict=True):
            every: list[Future[Any]] = [first, *others]
            if not all(_awaited(future, stop) for future in every):
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                return
            trace, rules = first.result()
            yield Found(trace=trace, size=size, counted=rules, simulated=tuple(one.result() for one in others))


def _here(wanted: Wanted, tasks: Sequence[tuple[Source, Size]], stop: Stop) -> Iterator[Found]:
    for source, size in tasks:
        trace, counted = _count(source, size)
        simulated = []
        for policy in wanted.policies:
            simulated.append(_play(source, size, policy, wanted, stop))
            if stop.asked:
                return
        yield Found(trace=trace, size=size, counted=counted, simulated=tuple(simulated))


def _awaited(future: Future[Any], stop: Stop) -> bool:
    """False: interrupted meanwhile."""
    while not stop.asked:
        try:
            future.exception(LOOK_S)
        except NotYet:
            continue
        return True
    return False


# In any process.


@lru_cache(maxsize=1)
def _reference(source: Source) -> tuple[Trace, Reference]:
    trace = source.read()
    return trace, Reference(trace)


def _count(source: Source, size: Size) -> tuple[About, Counted]:
    trace, reference = _reference(source)
    about = About(
        name=trace.name,
        requests=len(trace.rows),
        span_s=float(reference.span_s),
        prompt_tokens=reference.prompt_tokens,
    )
    return about, count(reference, trace, size)


def _play(source: Source, size: Size, policy: str, wanted: Wanted, stop: Stop | None = None) -> Simulated:
    trace, _ = _reference(source)
    return play_trace(trace, size, policy, wanted.cost, seed=wanted.seed, speed=wanted.speed, stop=stop)
