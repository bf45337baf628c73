"""What a worker's cache is worth lately: its tokens, each the less the longer nobody used it. Pure.

A token used just now counts 1, one that was last used a half-life ago counts 1/2, and so on: what is likely to be
asked for again, and so would have to be computed again elsewhere, if this cache went.
Keeps true: reads only; worth lies between 0 and the tokens cached. The cache counts its uses, not seconds: `Ages` notes
what the count was when somebody looked, so a use counts as at the first look after it. Does not know what other workers
hold: a prefix that several hold counts at each.
"""

from __future__ import annotations

from bisect import bisect_left

from trieway.worker.core.radix import RadixCache

HALFLIFE_S = 300.0
"""Between one and ten minutes it hardly matters in simulation (docs/decisions/0014)."""
NOTE_EVERY_S = HALFLIFE_S / 16
NOTES_MAX = 256
"""Sixteen half-lives, beyond which a token counts for nothing."""


class Ages:
    """When uses of a cache took place, as far as it was looked at. `now` is in seconds and moves only forward."""

    def __init__(self) -> None:
        self._uses: list[int] = []
        self._times: list[float] = []

    def note(self, uses: int, now: float) -> None:
        """The cache had been used `uses` times by `now`. Looks that follow each other closely count as one."""
        if self._times and now - self._times[-1] < NOTE_EVERY_S:
            return
        self._uses.append(uses)
        self._times.append(now)
        excess = len(self._uses) - NOTES_MAX
        if excess > 0:
            del self._uses[:excess], self._times[:excess]

    def age_s(self, use: int, now: float) -> float:
        """How long ago the use with this number was, at least; 0 for one that came after the last note."""
        at = bisect_left(self._uses, use)
        return max(0.0, now - self._times[at]) if at < len(self._times) else 0.0

    def check(self) -> None:
        """Notes are in order and bounded."""
        assert self._uses == sorted(self._uses)
        assert self._times == sorted(self._times)
        assert len(self._uses) == len(self._times) <= NOTES_MAX


def worth_tokens(cache: RadixCache, ages: Ages, now: float) -> float:
    """The cache's tokens, halved for each half-life since their last use. O(nodes), 2 us each."""
    ages.note(cache.uses, now)
    weights: dict[int, float] = {}
    worth = 0.0
    for node in cache.walk():
        rest = 0  # the youngest mark is the last one, and the shortest
        for length, use in reversed(node.marks):
            weight = weights.get(use)
            if weight is None:
                weight = weights[use] = 2.0 ** -(ages.age_s(use, now) / HALFLIFE_S)
            worth += (length - rest) * weight
            rest = length
    return worth
