"""One request's mutable state, from `add` to its end.

Keeps true: nothing by itself; kv.py and scheduler.py change it and check it. Does not know the cache.
"""

from __future__ import annotations

from array import array

from trieway.worker.core.cover import Cover
from trieway.worker.core.node import Receipt
from trieway.worker.core.sequence import Request


class Tracked:
    """One request's mutable state, waiting or running. `tokens` is prompt + output."""

    __slots__ = (
        "admitted_at",
        "arrived",
        "cached_tokens",
        "computed",
        "cover",
        "doomed",
        "first_said",
        "hit",
        "hit_version",
        "output_max",
        "prefill_end",
        "receipt",
        "request",
        "row",
        "serial",
        "shared",
        "tokens",
    )

    def __init__(self, request: Request, serial: int, arrived: float, output_max: int, cover: Cover) -> None:
        self.request = request
        self.serial = serial
        self.arrived = arrived
        self.output_max = output_max
        self.cover = cover
        self.tokens = array("i", request.tokens)
        self.computed = 0  # leading tokens whose KV is in `row`
        self.prefill_end = len(self.tokens)  # what to compute before the next token can be sampled
        self.row: list[int] = []
        self.shared = 0
        self.receipt: Receipt | None = None
        self.hit = 0  # tokens found cached when last looked at
        self.hit_version = -1
        self.cached_tokens = 0  # taken from the cache at the first admission
        self.admitted_at: float | None = None  # first admission
        self.first_said = False
        self.doomed = False  # cancelled or finished while a step computes it

    @property
    def reuse_max(self) -> int:
        """At least the last token is computed, for its logits."""
        most = len(self.tokens) - 1
        asked = self.request.reuse_max
        return most if asked is None else min(most, asked)

    @property
    def outputs(self) -> int:
        return len(self.tokens) - len(self.request.tokens)

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prefill_end

    @property
    def rank(self) -> tuple[int, int]:
        """Seniority: lower is sooner served and later preempted."""
        return self.request.priority, self.serial
