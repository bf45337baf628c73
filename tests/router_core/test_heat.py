"""Heat: shared prefixes grow hot, chats stay cold, the table is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router_core.clockwork import chain
from trieway.router.core.chooser import fork
from trieway.router.core.heat import Heat


def test_counts_fade() -> None:
    heat = Heat(halflife_s=60.0, forks_max=10)
    assert heat.at(7, 0.0) == 0.0
    for _ in range(4):
        heat.used(7, 0.0)
    assert heat.at(7, 0.0) == 4.0
    assert heat.at(7, 60.0) == pytest.approx(2.0)
    heat.used(7, 60.0)
    assert heat.at(7, 60.0) == pytest.approx(3.0)
    assert len(heat) == 1


def test_a_system_prompt_grows_hot_and_a_chat_does_not() -> None:
    heat = Heat(halflife_s=60.0, forks_max=1000)
    for user in range(30):
        heat.used(fork(chain([1, 2, 3, 100 + user]), 3), 0.0)
    history = [1, 2, 3]
    for turn in range(30):
        held = len(history)
        history += [1000 + turn, 2000 + turn]
        heat.used(fork(chain(history), held), 0.0)
    assert heat.at(fork(chain([1, 2, 3]), 3), 0.0) == 31.0
    assert heat.at(fork(chain(history), len(history) - 2), 0.0) <= 1.0


def test_nothing_shared_is_no_fork() -> None:
    assert fork([1, 2], 0) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 100)), max_size=200), st.integers(1, 8))
def test_the_table_is_bounded_and_the_one_used_longest_ago_goes(
    uses: list[tuple[int, float]], most: int
) -> None:  # fmt: skip
    heat, now, order = Heat(halflife_s=60.0, forks_max=most), 0.0, []
    for fork_, passed in uses:
        now += passed
        heat.used(fork_, now)
        heat.check()
        order = [other for other in order if other != fork_] + [fork_]
        order = order[-most:]
        assert [other for other in range(31) if heat.at(other, now) > 0.0] == sorted(order)
