"""Workloads repeated until they last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.errors import LoadError
from trieway.loadgen.runs import filling
from trieway.loadgen.runs.filling import calls_of, filled, renamed, sessions_of
from trieway.loadgen.vocabulary import Workload
from trieway.loadgen.workloads import make

NAMES = ("chat-short", "react-agent", "tree-of-thought", "few-shot-5")


def small(name: str, seed: int) -> Workload:
    return make(name, seed, scale=0.01)


@given(st.sampled_from(NAMES), st.integers(0, 400), st.booleans())
def test_a_filled_workload_is_long_enough_whole_and_begins_as_it_was(name: str, least: int, sessions: bool) -> None:
    count = sessions_of if sessions else calls_of
    base = small(name, 3)
    made = filled(base, lambda seed: small(name, seed), count, least)
    made.check()
    assert count(made) >= least
    assert made.calls[: len(base.calls)] == base.calls
    assert len(made.calls) % len(base.calls) == 0 or name != "chat-short"


def test_copies_are_other_texts() -> None:
    base = small("chat-short", 3)
    made = filled(base, lambda seed: small("chat-short", seed), calls_of, 2 * len(base.calls))
    first, second = made.calls[0], made.calls[len(base.calls)]
    assert second.session.startswith("1:")
    assert second.messages != first.messages


def test_renaming_keeps_what_waits_for_what() -> None:
    base = small("tree-of-thought", 1)
    made = renamed(base, "x")
    made.check()
    assert [len(call.after) for call in made.calls] == [len(call.after) for call in base.calls]
    assert not {call.id for call in made.calls} & {call.id for call in base.calls}


def test_what_would_take_too_many_copies_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "COPIES_MAX", 3)
    base = small("chat-short", 1)
    with pytest.raises(LoadError, match="too short to fill"):
        filled(base, lambda seed: small("chat-short", seed), calls_of, 1e9)
