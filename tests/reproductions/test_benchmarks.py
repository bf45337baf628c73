"""The benchmarks' workloads, and what is done to them: hints as calls, none, one call at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from trieway.loadgen.prompts import prompt_bytes
from trieway.loadgen.reproductions.benchmarks import (
    BENCHMARKS,
    Benchmark,
    benchmark,
    is_hint,
    one_by_one,
    unhinted,
)
from trieway.loadgen.vocabulary import Workload


@pytest.mark.parametrize("what", BENCHMARKS, ids=lambda what: what.name)
@pytest.mark.parametrize("quick", [True, False])
def test_a_benchmark_is_a_workload(what: Benchmark, quick: bool) -> None:
    made = what.workload(3, quick=quick)
    made.check()
    assert made == what.workload(3, quick=quick) != what.workload(4, quick=quick)
    for change in (unhinted, one_by_one):
        change(made).check()


def test_mmlu_goes_subject_by_subject() -> None:
    made = benchmark("MMLU").workload(0, quick=True)
    groups = [call.share_group for call in made.calls]
    assert groups == sorted(groups, key=lambda group: int(group.split("-")[1]))
    hints = [call for call in made.calls if is_hint(call.id)]
    assert [hint.share_group for hint in hints] == ["subject-0", "subject-1", "subject-2", "subject-3"]
    for hint in hints:
        waits = [call for call in made.calls if hint.id in call.after]
        assert len(waits) == 1, "the subject's first question brings its examples"
        group = [call for call in made.calls if call.share_group == hint.share_group]
        assert group[0] is hint
        assert all(prompt_bytes(call, {}).startswith(prompt_bytes(hint, {})) for call in group)


def free(workload: Workload) -> set[str]:
    return {call.id for call in workload.calls if not call.after}


def test_a_fork_waits_for_its_hint() -> None:
    made = benchmark("Tree of thought").workload(0, quick=True)
    hints = [call for call in made.calls if is_hint(call.id)]
    assert len(hints) == 8
    assert not made.hint_prefixes
    assert free(made) == {hint.id for hint in hints}
    for hint in hints:
        branches = [call for call in made.calls if hint.id in call.after]
        assert len(branches) == 2
        for branch in branches:
            assert prompt_bytes(branch, {}).startswith(prompt_bytes(hint, {})[:-40])
            assert branch.session == hint.session


def test_choices_wait_for_their_question() -> None:
    made = benchmark("HellaSwag").workload(0, quick=True)
    for call in made.calls:
        if not is_hint(call.id):
            (name,) = call.after
            hint = next(one for one in made.calls if one.id == name)
            assert prompt_bytes(call, {}).startswith(prompt_bytes(hint, {}))
            assert len(prompt_bytes(call, {})) > len(prompt_bytes(hint, {}))


def test_without_hints_the_calls_stay() -> None:
    made = benchmark("Tree of thought").workload(0, quick=True)
    bare = unhinted(made)
    assert [call.id for call in bare.calls] == [call.id for call in made.calls if not is_hint(call.id)]
    assert len(free(bare)) == 16, "two branches of each question"
    assert unhinted(bare) == bare
    assert not unhinted(benchmark("MMLU").workload(0, quick=True)).hint_prefixes


def test_one_by_one_leaves_one_call_free_in_each_session() -> None:
    made = one_by_one(benchmark("HellaSwag").workload(0, quick=True))
    assert len(free(made)) == 50
    for before, call in pairwise(made.calls):
        if before.session == call.session:
            assert before.id in call.after
    chat = benchmark("Multi-turn chat (short)").workload(0)
    assert one_by_one(chat) == chat, "a chat has no parallelism to take away"
