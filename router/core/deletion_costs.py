"""What Kubernetes is told of each worker's cache, so that a smaller Deployment loses the cheapest one. Pure.

A pod's cost is the worth of its cache as a share of the dearest one of its model, 0 to 1000: Kubernetes compares the
costs of one Deployment's pods and nothing else, and shares stay as they are while all caches grow or cool alike.
Keeps true: only what is off by a step or more is written, the most wrong first and a bounded number at once, so that
worths that stay are soon told and then cause no writes; a cost below zero is somebody's own word and is left alone.
Does not know pods' addresses, what worth is made of, or clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SCALE = 1000
STEP = 50
"""Two caches whose worths differ by less than two steps of the dearest may be told in either order."""
WORTH_LEAST_TOKENS = 1024.0
"""The dearest cache counts as at least this: what nearly empty ones are worth is noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """A pod's cache: what it is worth now in tokens (None: it did not say), and the cost it has (None: none)."""

    pod: str
    model: str
    worth_tokens: float | None
    cost: int | None


def wanted(caches: Iterable[Cache]) -> dict[str, int]:
    """By pod, the cost that tells the truth; pods that did not say their worth are left out."""
    known = [(cache.pod, cache.model, cache.worth_tokens) for cache in caches if cache.worth_tokens is not None]
    dearest: dict[str, float] = {}
    for _, model, worth in known:
        dearest[model] = max(dearest.get(model, WORTH_LEAST_TOKENS), worth)
    return {pod: round(SCALE * max(worth, 0.0) / dearest[model]) for pod, model, worth in known}


def changes(caches: Iterable[Cache], *, writes_max: int) -> dict[str, int]:
    """By pod, the costs to write now, the most wrong first: at most `writes_max`."""
    caches = list(caches)
    truth = wanted(caches)
    present = {cache.pod: cache.cost or 0 for cache in caches}  # Kubernetes reads an absent cost as 0
    off = {pod: abs(cost - present[pod]) for pod, cost in truth.items() if present[pod] >= 0}
    worst = sorted((pod for pod in off if off[pod] >= STEP), key=lambda pod: (-off[pod], pod))
    return {pod: truth[pod] for pod in worst[:writes_max]}
