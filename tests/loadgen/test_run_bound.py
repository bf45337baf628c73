"""From a run to its bound: in units as in bytes, and what counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.test_traces import chat, lines
from trieway.loadgen.filler import WORDS, filler
from trieway.loadgen.flow import Flow
from trieway.loadgen.oracle import Bound, Use, reuse_bound, trace_bound
from trieway.loadgen.prompts import laid_out
from trieway.loadgen.records import Record
from trieway.loadgen.replay import replay
from trieway.loadgen.run_bound import run_bound
from trieway.loadgen.traces import parse_trace
from trieway.loadgen.vocabulary import AnswerOf, Call, Filler, Message, Text, Workload
from trieway.loadgen.workloads import RECIPES, make


def record(call: str, at: float, output_tokens: int = 1, **changes: object) -> Record:
    whole = Record(
        call=call, session="s", worker="w", due_s=at, sent_s=at, first_s=at, last_s=at, prompt_tokens=1,
        cached_tokens=0, predicted_tokens=None, output_tokens=output_tokens,
    )  # fmt: skip
    return replace(whole, **changes)  # type: ignore[arg-type]


def spelled(call: Call, answers: dict[str, str]) -> tuple[int, ...]:
    """The prompt written out: a unit for each word of a filler and each byte of other text."""
    found: list[int] = []
    for part in laid_out(call):
        match part:
            case Filler(key, words):
                found += [WORDS.index(word) for word in filler(key, words).split(" ")[1:]]
            case Text(text):
                found += [256 + byte for byte in text.encode()]
            case AnswerOf(name):
                found += [256 + byte for byte in answers[name].encode()]
    return tuple(found)


def serve(workload: Workload) -> tuple[list[Record], dict[str, str], list[Use]]:
    """All calls one after the other: records, answers, and the uses written out."""
    flow, records, answers, uses = Flow(workload), [], {}, []
    queue = flow.start(0.0)
    while queue:
        call, at = queue.pop(0).call, float(len(records))
        prompt = spelled(call, answers)
        answers[call.id] = filler(9_000_000 + len(records), call.output_tokens)
        units = prompt + tuple(256 + byte for byte in answers[call.id].encode())
        uses.append(Use(units=units, prompt_units=len(prompt), start=at, end=at, reusable_units=len(prompt) - 1))
        records.append(record(call.id, at, call.output_tokens))
        queue += flow.answered(call.id, answers[call.id], at)
    return records, answers, uses


TOKENS = {unit: 1.0 if unit < 256 else 0.25 for unit in range(512)}


def assert_near(one: Bound, other: Bound) -> None:
    assert one.prompt_tokens == pytest.approx(other.prompt_tokens)
    assert one.endless_tokens == pytest.approx(other.endless_tokens)
    assert one.reuse_tokens == pytest.approx(other.reuse_tokens)


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "tenants"])
@pytest.mark.parametrize("cache_tokens", [None, 3_000])
def test_units_are_as_good_as_text_written_out(name: str, cache_tokens: int | None) -> None:
    workload = make(name, 2, scale=0.3)
    records, answers, uses = serve(workload)
    found = run_bound(workload, records, cache_tokens, answers=answers)
    assert_near(found, reuse_bound(uses, cache_tokens, unit_tokens=TOKENS))


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=3), min_size=1, max_size=6)
)
def test_fillers_are_cut_wherever_they_part(pieces: list[list[tuple[int, int]]]) -> None:
    keys = (5, 5 + 256, 6, 5 + 256**3)  # alike in none, one, none, three of their words
    calls = tuple(
        Call(id=str(n), session=str(n), form="completion", prompt=tuple(Filler(keys[k], w) for k, w in piece))
        for n, piece in enumerate(pieces)
    )
    workload = Workload(name="w", seed=0, calls=calls)
    records, answers, uses = serve(workload)
    assert_near(run_bound(workload, records, None, answers=answers), reuse_bound(uses, None, unit_tokens=TOKENS))


def test_a_replayed_trace_has_the_bound_of_its_ids() -> None:
    rows = [chat(n, 512 * 3 - 100, [0, 1 + n % 3, 4 + n % 3]) for n in range(12)]
    trace = parse_trace("t", lines(*rows))
    workload = replay(trace)
    for size in (None, 2_000, 3_000):
        found = run_bound(workload, [record(call.id, n) for n, call in enumerate(workload.calls)], size)
        assert found.reuse_tokens == pytest.approx(trace_bound(trace, size).reuse_tokens, abs=12)


def two_turns() -> Workload:
    ask = Message("user", (Filler(1, 40),))
    again = (ask, Message("assistant", (AnswerOf("a"),)), Message("user", (Text("So?"),)))
    calls = (
        Call(id="a", session="s", messages=(ask,)),
        Call(id="b", session="s", messages=again, after=("a",)),
    )
    return Workload(name="w", seed=0, calls=calls)


def test_answers_count_where_nobody_kept_them() -> None:
    records = [record("a", 0.0, 100), record("b", 1.0)]
    kept = run_bound(two_turns(), records, None, answers={"a": " abc" * 100})
    unknown = run_bound(two_turns(), records, None)
    assert unknown.reuse_tokens == kept.reuse_tokens > 140
    # Answers said to be equal are; unknown ones are not.
    first, second = two_turns().calls
    third = replace(first, id="aa", session="t")
    quoting = (second.messages[0], Message("assistant", (AnswerOf("aa"),)), second.messages[2])
    fourth = replace(second, id="bb", session="t", after=("aa",), messages=quoting)
    both = Workload(name="w", seed=0, calls=(first, second, third, fourth))
    both.check()
    every = [record("a", 0.0, 100), record("b", 1.0), record("aa", 2.0, 100), record("bb", 3.0)]
    same = {"a": " abc" * 100, "aa": " abc" * 100}
    assert run_bound(both, every, None, answers=same).reuse_tokens > run_bound(both, every, None).reuse_tokens


def test_what_is_not_counted_still_fills_the_caches() -> None:
    calls = tuple(Call(id=n, session=n, form="completion", prompt=(Filler(1, 40),)) for n in "abc")
    workload = Workload(name="w", seed=0, calls=calls)
    warm = [record("a", 0.0, warmup=True), record("b", 1.0), record("c", 2.0)]
    found = run_bound(workload, warm, None)
    assert (found.prompt_tokens, found.reuse_tokens) == (80.0, 78.0)
    failed = [record("a", 0.0, status="timeout", first_s=None), record("b", 1.0), record("c", 2.0)]
    assert run_bound(workload, failed, None) == found
    unsent = [record("a", 0.0, sent_s=None, first_s=None, last_s=None, status="abandoned"), *warm[1:]]
    assert run_bound(workload, unsent, None).reuse_tokens == 39.0


def test_an_attempt_more_is_a_use_more() -> None:
    workload = Workload(
        name="w", seed=0, calls=(Call(id="a", session="a", form="completion", prompt=(Filler(1, 40),)),)
    )
    assert run_bound(workload, [record("a", 0.0)], None).reuse_tokens == 0.0
    assert run_bound(workload, [record("a", 0.0, attempts=2)], None).reuse_tokens == 39.0


def test_salts_and_tenants_share_nothing_where_they_are_apart() -> None:
    calls = tuple(
        Call(id=n, session=n, form="completion", prompt=(Filler(1, 40),), tenant=n, salt=salt)
        for n, salt in (("a", None), ("b", None), ("c", "x"))
    )
    workload = Workload(name="w", seed=0, calls=calls)
    records = [record(n, at) for at, n in enumerate("abc")]
    assert run_bound(workload, records, None).reuse_tokens == 39.0
    assert run_bound(workload, records, None, tenants_apart=True).reuse_tokens == 0.0


def test_a_hint_may_come_at_any_time() -> None:
    workload = make("few-shot-5", 1, subjects=1, questions=2, hints=True)
    records = [record(call.id, at) for at, call in enumerate(workload.calls)]
    bare = run_bound(replace(workload, hint_prefixes=()), records, None).reuse_tokens
    assert run_bound(workload, records, None).reuse_tokens > bare * 1.9
