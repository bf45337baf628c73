"""The tables of the reference calculator, in Markdown.

Keeps true: rows and columns are those of a reference page, so that two pages can be compared cell by cell.
Does not know the rules (reference.py) nor the bound's proof (docs/oracle-bound.md).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from trieway.loadgen.errors import LoadError, TraceError
from trieway.loadgen.lines import numbered_lines
from trieway.loadgen.oracle import trace_bound
from trieway.loadgen.reference import RULES, Outcome, Reference
from trieway.loadgen.traces import Trace, kind_of, read_trace

K = 1024
ONE_CACHE: tuple[tuple[str, int | None], ...] = (
    ("inf", None), ("64k", 64 * K), ("256k", 256 * K), ("1M", K * K), ("4M", 4 * K * K)
)  # fmt: skip
FLEETS: tuple[int, ...] = (4, 8)
FLEET_CACHES: tuple[int | None, ...] = (None, 256 * K, K * K)


def main(arguments: Sequence[str]) -> int:
    """`[--bound] PATH ...`: files, or folders whose traces are taken in order of name. Exit code 0, 1 or 2."""
    bound = "--bound" in arguments
    paths = [one for one in arguments if one != "--bound"]
    if not paths or any(one.startswith("-") for one in paths):
        print("usage: python -m trieway.loadgen.reference [--bound] FILE_OR_FOLDER ...", file=sys.stderr)
        return 2
    try:
        for line in tables_of(paths, bound=bound):
            print(line, flush=True)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def tables_of(paths: Sequence[str], *, bound: bool = False) -> Iterator[str]:
    """Of files and folders. LoadError: something in them cannot be used; nothing is told before all are read."""
    return tables([read_trace(path) for path in trace_files(paths)], bound=bound)


def tables(traces: Sequence[Trace], *, bound: bool = False) -> Iterator[str]:
    """Lines of Markdown; a trace with heads comes twice. `bound`: with the oracle bound of reuse in a last column."""
    yield "# Reference numbers"
    plain = [trace for trace in traces if not has_heads(trace)]
    if plain:
        yield from _section("## Traces", [("", trace) for trace in plain], bound)
    for trace in traces:
        if has_heads(trace):
            yield from _section(f"### {trace.name}, block ids as in the source", [("", trace)], bound)
            title = f"### {trace.name}, tools and system prompt shared between sessions"
            yield from _section(title, [(" +head", trace.with_shared_head())], bound)


def _section(title: str, traces: Sequence[tuple[str, Trace]], bound: bool) -> Iterator[str]:
    rows = [(trace.name + mark, trace, Reference(trace)) for mark, trace in traces]
    yield from ("", title, "")
    yield from head(
        "trace", "requests", "span s", "prompt tokens", "sessions (multi)", *(name for name, _ in ONE_CACHE)
    )
    for name, _, one in rows:
        sessions, multi = one.sessions
        shares = [f"{100 * one.one_cache(size):.2f}" for _, size in ONE_CACHE]
        yield row(name, len(one.prompts), one.span_s, one.prompt_tokens, f"{sessions} ({multi})", *shares)
    for workers in FLEETS:
        for size in FLEET_CACHES:
            yield from ("", f"{workers} workers, {size or 'inf'} tokens each: hit % (imbalance, win60)", "")
            yield from head("trace", *RULES, *(["bound"] if bound else []))
            for name, trace, one in rows:
                cells = [cell(one.run(rule, workers, size)) for rule in RULES]
                if bound:
                    total = None if size is None else workers * size
                    cells.append(f"{100 * trace_bound(trace, total).share:.2f}")
                yield row(name, *cells)


def cell(outcome: Outcome) -> str:
    """hit % (imbalance, win60)."""
    return f"{100 * outcome.hit_share:.2f} ({outcome.imbalance:.2f}, {outcome.win60:.2f})"


def head(*cells: str) -> Iterator[str]:
    """The two lines above a table."""
    yield row(*cells)
    yield "|---" * len(cells) + "|"


def row(*cells: object) -> str:
    """One line of a table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def has_heads(trace: Trace) -> bool:
    """Whether it says which rows share their tools and system prompt."""
    return any(row.head_key is not None for row in trace.rows)


def trace_files(paths: Sequence[str]) -> Iterator[str]:
    """The files named, and of folders those that hold a trace. TraceError: a folder without any."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        names = sorted(name for name in os.listdir(path) if name.endswith((".jsonl", ".jsonl.gz")))
        found = [file for file in (os.path.join(path, name) for name in names) if _is_trace(file)]
        if not found:
            raise TraceError(path, "no traces (*.jsonl, *.jsonl.gz) in this folder")
        yield from found


def _is_trace(path: str) -> bool:
    first = next(iter(numbered_lines(path)), None)
    return first is not None and kind_of(first[1]) is not None
