"""Workloads: sound, seeded, and with the sharing that each is meant to have."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.errors import WorkloadError
from trieway.loadgen.filler import filler
from trieway.loadgen.flow import Flow
from trieway.loadgen.oracle import Use, reuse_bound
from trieway.loadgen.prompts import prompt_bytes
from trieway.loadgen.vocabulary import AnswerOf, Workload, parts
from trieway.loadgen.workloads import RECIPES, describe, make
from trieway.loadgen.workloads.common import Pause, Popularity

PAPER = (
    *("few-shot-5", "few-shot-20", "react-agent", "generative-agents", "tree-of-thought", "self-consistency"),
    *("chat-short", "chat-long", "rag"),
)


def served(workload: Workload) -> list[Use]:
    """Every call answered by text of its own, one after the other in the flow's order."""
    flow, uses = Flow(workload), []
    queue = flow.start(0.0)
    while queue:
        call = queue.pop(0).call
        prompt = prompt_bytes(call, flow.answers)
        answer = filler(1_000_000 + len(uses), call.output_tokens)
        units = prompt + answer.encode()
        at = float(len(uses))
        uses.append(Use(units=units, prompt_units=len(prompt), start=at, end=at))
        queue += flow.answered(call.id, answer, at)
    flow.check()
    assert flow.unfinished == 0
    return uses


def reusable(name: str, **settings: object) -> float:
    return reuse_bound(served(make(name, 3, **settings)), None).share  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RECIPES)
def test_a_workload_is_sound_and_its_seed_says_all(name: str) -> None:
    one = make(name, 5)
    one.check()
    assert one == make(name, 5)
    assert [prompt_bytes(c, {}) for c in one.calls if not c.after][:3] != [
        prompt_bytes(c, {}) for c in make(name, 6).calls if not c.after
    ][:3]
    assert one.name == name
    assert one.seed == 5
    assert one.settings.keys() == {key for key, _, _ in describe(name)} | {"scale"}
    assert all(about for _, _, about in describe(name))
    assert RECIPES[name].about


@pytest.mark.parametrize("name", RECIPES)
def test_a_scale_shortens_everything(name: str) -> None:
    whole, tenth = (sum(use.prompt_units for use in served(make(name, 1, scale=scale))) for scale in (1.0, 0.1))
    assert tenth < whole / 2


@pytest.mark.parametrize("name", PAPER)
def test_workloads_of_the_paper_share_as_there(name: str) -> None:
    assert 0.5 <= reusable(name) <= 0.99


@pytest.mark.parametrize(
    ("name", "settings", "least", "most"),
    [
        ("unique", {}, 0.0, 0.01),
        ("unique", {"kind": "near"}, 0.0, 0.08),
        ("unique", {"kind": "late"}, 0.0, 0.01),
        ("system-prompts", {}, 0.7, 0.95),
        ("hot-prefix", {}, 0.8, 0.97),
        ("tenants", {}, 0.7, 0.95),
        ("mixed", {}, 0.8, 0.97),
        ("chat-long", {"turns": 1}, 0.0, 0.05),
    ],
)
def test_other_workloads_share_what_they_are_for(
    name: str, settings: dict[str, object], least: float, most: float
) -> None:
    assert least <= reusable(name, **settings) <= most


def test_sorted_passages_share_more_than_ranked_ones() -> None:
    settings = {"documents": 6, "instruction_tokens": 10, "questions": 60}
    assert reusable("rag", order="sorted", **settings) > reusable("rag", order="ranked", **settings) + 0.02


def test_choices_share_their_question_and_samples_their_whole_prompt() -> None:
    calls = make("few-shot-20", 1, questions=1).calls
    prompts = [prompt_bytes(call, {}) for call in calls]
    assert len(set(prompts)) == 4
    assert len({call.session for call in calls}) == 1
    samples = make("self-consistency", 1, questions=1).calls
    assert len({prompt_bytes(call, {}) for call in samples}) == 1
    assert len({call.seed for call in samples}) == len(samples) == 8


def test_a_tree_forks_at_every_level_and_ends_in_a_vote() -> None:
    calls = make("tree-of-thought", 1, questions=1, branches=3, depth=2).calls
    assert Counter(len(call.after) for call in calls) == {0: 3, 1: 9, 8: 1}
    assert all(call.seed is not None for call in calls[:-1])
    roles = [message.role for message in calls[5].messages]
    assert roles == ["system", "user", "assistant", "user"]


def test_an_agent_reads_its_own_answers() -> None:
    calls = make("react-agent", 1, tasks=1, steps=3).calls
    quoted = [part.call for part in parts(calls[2]) if isinstance(part, AnswerOf)]
    assert quoted == [calls[0].id, calls[1].id]
    assert calls[2].after == (calls[1].id,)
    assert calls[2].think_s > 0.0


def test_two_hops_wait_for_the_query() -> None:
    calls = make("rag", 1, questions=1, hops=2).calls
    assert [call.after for call in calls] == [(), (calls[0].id,)]


def test_tenants_come_by_weight_and_may_be_salted() -> None:
    workload = make("tenants", 1, conversations=600, turns=1, weights="3,1", salted=True)
    counts = Counter(call.tenant for call in workload.calls)
    assert counts["tenant-0"] / 600 == pytest.approx(0.75, abs=0.06)
    assert all(call.salt == call.tenant for call in workload.calls)
    assert all(call.salt is None for call in make("tenants", 1).calls)


def test_the_heat_moves() -> None:
    calls = make("hot-prefix", 1, requests=100, phases=2, hot_share=1.0).calls
    assert [call.share_group for call in calls] == ["hot-0"] * 50 + ["hot-1"] * 50


def test_popular_system_prompts_come_more_often() -> None:
    counts = Counter(call.share_group for call in make("system-prompts", 1, conversations=900).calls)
    assert counts["system-0"] > 3 * counts["system-7"] > 0


@pytest.mark.parametrize("name", ["few-shot-5", "self-consistency", "tree-of-thought"])
def test_hints_announce_what_calls_begin_with(name: str) -> None:
    workload = make(name, 1, hints=True)
    workload.check()
    assert workload.hint_prefixes
    sessions = {call.session for call in workload.calls}
    for hint in workload.hint_prefixes:
        begins = prompt_bytes(hint, {})
        same = [call for call in workload.calls if hint.session in (None, call.session) and not call.after]
        assert any(prompt_bytes(call, {}).startswith(begins) for call in same)
        assert hint.session is None or hint.session in sessions


BAD: tuple[tuple[str, dict[str, object], str], ...] = (
    ("nothing", {}, "no workload named"),
    ("rag", {"speed": 1}, "no setting 'speed'"),
    ("rag", {"questions": 0}, "questions is 1 to"),
    ("rag", {"questions": "many"}, "whole number"),
    ("rag", {"questions": 1.5}, "whole number"),
    ("rag", {"popularity": "nan"}, "popularity is 0 to 5"),
    ("rag", {"popularity": "x"}, "is a number"),
    ("rag", {"order": "random"}, "one of ranked, sorted"),
    ("rag", {"found": 50}, "cannot be found among 40"),
    ("rag", {"scale": 0}, "scale is"),
    ("chat-short", {"pause": "often"}, "no pause"),
    ("chat-short", {"pause": 3}, "pause is text"),
    ("tenants", {"weights": "1,x"}, "weights are numbers"),
    ("tenants", {"weights": "1,0"}, "weights are numbers"),
    ("tenants", {"salted": "maybe"}, "true or false"),
    ("tree-of-thought", {"branches": 100, "depth": 9}, "calls, over"),
)


@pytest.mark.parametrize(("name", "settings", "says"), BAD)
def test_what_cannot_be_made_is_refused_in_one_line(name: str, settings: dict[str, object], says: str) -> None:
    with pytest.raises(WorkloadError, match=says) as caught:
        make(name, 1, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_settings_may_be_text() -> None:
    assert make("tenants", 1, turns="2", salted="yes") == make("tenants", 1, turns=2, salted=True)


@pytest.mark.parametrize(
    ("text", "mean"),
    [("none", 0.0), ("constant:2", 2.0), ("uniform:1:3", 2.0), ("exponential:2", 2.0), ("lognormal:2:0.1", 2.0)],
)
def test_pauses_have_their_mean(text: str, mean: float) -> None:
    rng, pause = Random(1), Pause.parse(text)
    drawn = [pause.draw(rng) for _ in range(4_000)]
    assert min(drawn) >= 0.0
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.06)


@pytest.mark.parametrize("text", ["", "2", "constant", "constant:-1", "uniform:1", "exponential:inf", "none:1", "x:1"])
def test_other_pauses_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="no pause"):
        Pause.parse(text)


@given(st.integers(1, 8), st.sampled_from([0.0, 1.0, 3.0]), st.integers(0, 99))
def test_distinct_draws_are_distinct(count: int, exponent: float, seed: int) -> None:
    found = Popularity(count, exponent).distinct(Random(seed), count)
    assert sorted(found) == list(range(count))
    assert Popularity(count, exponent).draw(Random(seed)) in range(count)
