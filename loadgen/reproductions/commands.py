"""`trieway sim reproduce`: plays the parts, prints their tables as one, writes what was asked for.

Keeps true: results go to standard output, progress to standard error; files hold no time of this machine unless
`--times` asks for it; an interrupt still prints and writes what was found before.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trieway import __version__
from trieway.loadgen.errors import LoadError, RunFailed
from trieway.loadgen.reports.files import check_writable, write_bytes
from trieway.loadgen.reproductions import parts, published
from trieway.loadgen.reproductions.html import html_of
from trieway.loadgen.reproductions.parts import Asked
from trieway.loadgen.reproductions.playing import Interrupted
from trieway.loadgen.reproductions.results import HitRateRow, PublishedCurveRow, Results, encode
from trieway.loadgen.reproductions.text import lines
from trieway.loadgen.reproductions.variants import BATCH_TOKENS, MACHINE, SHIPPED
from trieway.loadgen.runs.progress import Watcher, watcher
from trieway.loadgen.simulations.playing import interruptible

PARTS = ("hit-rates", "ablations", "curve", "scaling", "overhead")


def reproduce(asked: argparse.Namespace) -> int:
    """What the command does; the exit code."""
    chosen = _chosen(asked.parts)
    check_writable((asked.json, asked.report))
    found: dict[str, list[Any]] = {name: [] for name in PARTS}
    partial = False
    with interruptible() as stop, _watching() as watching:
        one = Asked(seed=asked.seed, quick=asked.quick, stop=stop, say=watching.line)
        try:
            for part in chosen:
                for row in getattr(parts, part.replace("-", "_"))(one):
                    found[part].append(row)
        except Interrupted:
            partial = True
    results = gathered(found, seed=asked.seed, quick=asked.quick, partial=partial)
    for line in lines(results):
        print(line)
    kept = results if asked.times else without_times(results)
    if asked.json is not None:
        write_bytes(asked.json, encode(kept))
    if asked.report is not None:
        write_bytes(asked.report, html_of(kept).encode())
    for path in (asked.json, asked.report):
        if path is not None:
            print(f"wrote {path}")
    if partial:
        raise RunFailed("interrupted; what was found before is above")
    return 0


def _chosen(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in PARTS:
            raise LoadError(f"there is no part named {name!r}; there are {', '.join(PARTS)}")
    if not names:
        raise LoadError(f"name a part: {', '.join(PARTS)}")
    return names


def gathered(found: dict[str, list[Any]], *, seed: int, quick: bool, partial: bool) -> Results:
    """The parts' rows as one result."""
    compared = [row for row in found["hit-rates"] if row.published_hit_rate is not None]
    return Results(
        version=__version__,
        paper=published.PAPER,
        seed=seed,
        quick=quick,
        partial=partial,
        machine=machine(),
        hit_rates=found["hit-rates"],
        share_mean=_mean([row.share for row in compared]),
        shipped_share_mean=_mean([row.shipped_hit_rate / row.optimum for row in compared]),
        published_share_mean=published.SHARE_MEAN.value,
        published_share_mean_of_these=_mean([_published_share(row) for row in compared]),
        ablations=found["ablations"],
        curve=found["curve"],
        published_curve=[
            PublishedCurveRow(
                hit_rate=point.hit_rate,
                batch=point.batch,
                output_tokens_per_s=point.tokens_per_s,
                run_s=point.run_s,
                ttft_s=point.ttft_s,
            )
            for point in published.CURVE
        ],
        scaling=found["scaling"],
        published_scaling=published.SCALING,
        overhead=[row for row, _ in found["overhead"]],
        times=[times for _, times in found["overhead"]],
    )


def without_times(results: Results) -> Results:
    """What the seed alone decides."""
    return type(results)(**{**_fields(results), "times": []})


def _fields(results: Results) -> dict[str, Any]:
    return {name: getattr(results, name) for name in results.__struct_fields__}


def machine() -> dict[str, str | int | float]:
    """The simulated one, by its cost model."""
    return {
        "name": "A10G with Llama-7B",
        "kv_tokens": MACHINE.kv_tokens,
        "page_size": SHIPPED.page_size,
        "batch_tokens": BATCH_TOKENS,
        "flops": MACHINE.gpu.flops,
        "bytes_per_s": MACHINE.gpu.bytes_per_s,
        "compute_share": MACHINE.compute_share,
        "memory_share": MACHINE.memory_share,
        "step_overhead_s": MACHINE.step_overhead_s,
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _published_share(row: HitRateRow) -> float:
    assert row.published_hit_rate is not None
    assert row.published_optimum
    return row.published_hit_rate / row.published_optimum


@contextmanager
def _watching() -> Iterator[Watcher]:
    watching = watcher()
    try:
        yield watching
    finally:
        watching.close()
