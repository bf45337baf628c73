"""In which order waiting requests are tried for admission.

Keeps true: a request that has waited `wait_max_s` is ranked by arrival alone, before all others. Does not know the
cache: how long each request's hit is comes in as a function.
"""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """The part of random.Random that is used; the caller seeds it."""

    def random(self) -> float: ...
