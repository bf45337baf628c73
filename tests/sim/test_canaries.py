"""Each planted bug is caught by some check, within a few seeds that are sound without it."""

from __future__ import annotations

import pytest

from trieway.loadgen.sim.canaries import CANARIES
from trieway.loadgen.sim.seeds import play, world_of

SEEDS = 12


@pytest.mark.parametrize("name", CANARIES)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(SEEDS):
        try:
            play(world_of(seed), CANARIES[name])
        except AssertionError:
            return
    pytest.fail(f"{SEEDS} seeds have not seen it")
