"""From the flags of `trieway sim replay` to what is wanted, each refused in one line where it cannot be used."""

from __future__ import annotations

import argparse
import os
import re

from trieway.loadgen.errors import LoadError
from trieway.loadgen.runs.options import whole_numbers
from trieway.loadgen.sim.cost import roofline
from trieway.loadgen.simulations.replaying import PAGE_TOKENS, Size
from trieway.loadgen.simulations.replays import Wanted, sources_of
from trieway.loadgen.simulations.setups import FLEET_MAX, KV_TOKENS_MAX
from trieway.router.core import POLICIES

SPEED_LEAST, SPEED_MOST = 1e-3, 1e6
"""Slower, and heartbeats alone would be all that is simulated."""
_CACHE = re.compile(r"(\d+)([kM]?)\Z")
_UNITS = {"": 1, "k": 1 << 10, "M": 1 << 20}


def replay_of(asked: argparse.Namespace) -> Wanted:
    """LoadError: something in it cannot be used."""
    workers = whole_numbers(asked.workers, "workers")
    if max(workers) > FLEET_MAX:
        raise LoadError(f"a simulated fleet has 1 to {FLEET_MAX} workers")
    caches = [_cache(part) for part in asked.cache.split(",")]
    policies = _policies(asked.policies)
    if not SPEED_LEAST <= asked.speed <= SPEED_MOST:
        raise LoadError(f"--speed is {SPEED_LEAST:g} to {SPEED_MOST:g}, not {asked.speed:g}")
    if asked.processes < 1:
        raise LoadError("--processes is at least 1")
    try:
        cost = roofline(asked.gpu, asked.model, asked.gpus)
    except ValueError as error:
        raise LoadError(f"such a worker cannot be: {error}") from None
    return Wanted(
        sources=sources_of(asked.paths, asked.rows),
        sizes=tuple(Size(workers=count, cache_tokens=cache) for count in workers for cache in dict.fromkeys(caches)),
        policies=policies,
        cost=cost,
        seed=asked.seed,
        speed=asked.speed,
        processes=min(asked.processes, 4 * (os.cpu_count() or 1)),
    )


def _cache(text: str) -> int | None:
    """`256k`, `1M`, `262144`, `endless`."""
    if text == "endless":
        return None
    found = _CACHE.match(text)
    tokens = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if not PAGE_TOKENS <= tokens <= KV_TOKENS_MAX:
        raise LoadError(f"--cache {text!r} is no size of a cache; give tokens like 262144, 256k, 1M, or endless")
    return tokens


def _policies(text: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise LoadError(f"no policy named {name!r}; there are {', '.join(POLICIES)}, or none")
    return tuple(dict.fromkeys(names))
