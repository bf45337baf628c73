"""Hypothesis strategies: cache events on a small forest of texts, so that paths, forks and copies meet often."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.meta_tree.oracle import DEPTH, TEXT_ALPHABET, chain_hashes
from trieway.meta_tree.events import Cleared, Removed, Stored
from trieway.meta_tree.ids import Tier

ROOT = 77
HASH = st.integers(0, 2**64 - 1)
COUNT = st.integers(0, 2**32 - 1)
TIERS = st.sampled_from(list(Tier))
PATHS = st.lists(st.integers(0, TEXT_ALPHABET - 1), min_size=1, max_size=DEPTH).map(tuple)


@st.composite
def stored(draw: st.DrawFn, revalued: bool = True) -> Stored:
    """A run that ends a path: from any depth on, so that parents may be unknown."""
    hashes = chain_hashes(draw(PATHS))
    start = draw(st.integers(0, len(hashes) - 1)) if draw(st.booleans()) else 0
    step = draw(st.sampled_from([16, 16, 16, 12])) if revalued else 16
    return Stored(
        namespace_id=ROOT,
        parent=hashes[start - 1] if start else ROOT,
        hashes=tuple(hashes[start:]),
        usable=tuple(step * (depth + 1) for depth in range(start, len(hashes))),
        tier=draw(TIERS),
    )


@st.composite
def removed(draw: st.DrawFn) -> Removed:
    hashes = chain_hashes(draw(PATHS))
    keep = draw(st.lists(st.sampled_from(hashes), min_size=1, unique=True))
    return Removed(namespace_id=ROOT, hashes=tuple(keep), tier=draw(TIERS))


EVENTS = st.one_of(stored(), stored(), stored(), removed(), removed(), st.just(Cleared()))

ANY_STORED = st.integers(0, 20).flatmap(
    lambda count: st.builds(
        Stored,
        namespace_id=HASH,
        parent=HASH,
        hashes=st.tuples(*[HASH] * count),
        usable=st.tuples(*[COUNT] * count),
        tier=TIERS,
    )
)
ANY_REMOVED = st.integers(0, 20).flatmap(
    lambda count: st.builds(
        Removed,
        namespace_id=HASH,
        hashes=st.tuples(*[HASH] * count),
        usable=st.tuples(*[COUNT] * count),
        tier=TIERS,
    )
)
ANY_EVENT = st.one_of(ANY_STORED, ANY_REMOVED, st.just(Cleared()))
