"""The order of calls in time: against a plain oracle, with failures, closed loops and shards."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.flow import Flow, Ready, State, shard
from trieway.loadgen.vocabulary import AnswerOf, Call, Hint, Text, Workload


def call(name: str, session: str = "s", after: tuple[str, ...] = (), **more: object) -> Call:
    quotes = tuple(AnswerOf(one) for one in after)
    return Call(id=name, session=session, form="completion", prompt=(Text(name), *quotes), after=after, **more)  # type: ignore[arg-type]


def names(ready: list[Ready]) -> list[str]:
    return [one.call.id for one in ready]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    sessions = draw(st.integers(1, 4))
    calls: list[Call] = []
    for number in range(draw(st.integers(1, 12))):
        session = f"s{draw(st.integers(0, sessions - 1))}"
        earlier = [one.id for one in calls if one.session == session]
        after = tuple(draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True))) if earlier else ()
        think = draw(st.sampled_from([0.0, 2.0])) if after else 0.0
        due = draw(st.sampled_from([None, 0.0, 5.0]))
        calls.append(call(f"c{number}", session, after, think_s=think, due_s=due))
    return Workload(name="w", seed=0, calls=tuple(calls))


@given(workloads(), st.none() | st.integers(1, 3), st.integers(0, 1000), st.sampled_from([0.0, 0.3]))
def test_every_call_ends_once_and_none_goes_early(
    workload: Workload, users_max: int | None, seed: int, failing: float
) -> None:
    workload.check()
    rng = random.Random(seed)
    flow = Flow(workload, users_max=users_max)
    by_id = {one.id: one for one in workload.calls}
    ended: dict[str, float] = {}
    gone: set[str] = set()
    open_: dict[str, float] = {}
    now = 10.0

    def take(ready: list[Ready]) -> None:
        assert [one.due_s for one in ready] == sorted(one.due_s for one in ready)
        for one in ready:
            assert one.call.id not in open_ | ended | dict.fromkeys(gone)
            assert all(name in ended for name in one.call.after)
            last = max((ended[name] + one.call.think_s for name in one.call.after), default=0.0)
            assert one.due_s >= max(last, 10.0 + (one.call.due_s or 0.0))
            open_[one.call.id] = one.due_s

    take(flow.start(now))
    flow.check()
    while open_:
        users = {by_id[name].session for name in open_}
        assert users_max is None or len(users) <= users_max
        name = rng.choice(sorted(open_))
        now = max(now, open_.pop(name)) + rng.random()
        if rng.random() < failing:
            fallout = flow.failed(name, now)
            gone |= {name} | {one.id for one in fallout.abandoned}
            take(fallout.ready)
        else:
            ended[name] = now
            take(flow.answered(name, f"answer of {name}", now))
        assert all(flow.answers[part] == f"answer of {part}" for one in open_ for part in by_id[one].after)
        flow.check()
    assert flow.unfinished == 0
    assert set(ended) | gone == set(by_id)
    assert not flow.answers


def test_think_time_counts_from_the_last_answer() -> None:
    flow = Flow(Workload(name="w", seed=0, calls=(call("a"), call("b"), call("c", after=("a", "b"), think_s=3.0))))
    assert names(flow.start(0.0)) == ["a", "b"]
    assert flow.answered("a", "A", 1.0) == []
    (last,) = flow.answered("b", "B", 2.0)
    assert (last.call.id, last.due_s) == ("c", 5.0)
    assert flow.answers == {"a": "A", "b": "B"}


def test_due_times_are_offsets_from_the_start() -> None:
    flow = Flow(Workload(name="w", seed=0, calls=(call("a", due_s=4.0), call("b", session="t"))))
    assert [(one.call.id, one.due_s) for one in flow.start(100.0)] == [("b", 100.0), ("a", 104.0)]


def test_a_trace_time_holds_back_a_call_that_has_its_answers() -> None:
    flow = Flow(Workload(name="w", seed=0, calls=(call("a"), call("b", after=("a",), due_s=9.0))))
    flow.start(0.0)
    assert flow.answered("a", "", 1.0)[0].due_s == 9.0


def test_a_user_takes_the_next_session_when_one_ends() -> None:
    calls = tuple(call(f"{s}{n}", s, (f"{s}{n - 1}",) if n else ()) for s in "xyz" for n in range(2))
    flow = Flow(Workload(name="w", seed=0, calls=calls), users_max=2)
    assert names(flow.start(0.0)) == ["x0", "y0"]
    assert names(flow.answered("y0", "", 1.0)) == ["y1"]
    assert names(flow.answered("y1", "", 2.0)) == ["z0"]
    assert flow.failed("x0", 3.0).abandoned == (calls[1],)
    assert flow.state("x1") is State.ABANDONED


@pytest.mark.parametrize("misuse", ["twice", "unknown", "unready"])
def test_misuse_is_our_bug(misuse: str) -> None:
    flow = Flow(Workload(name="w", seed=0, calls=(call("a"), call("b", after=("a",)))))
    flow.start(0.0)
    with pytest.raises((AssertionError, KeyError)):
        _ = flow.start(1.0) if misuse == "twice" else flow.answered({"unknown": "q", "unready": "b"}[misuse], "", 1.0)


def test_shards_are_whole_sessions_and_make_up_the_workload() -> None:
    calls = tuple(call(f"{s}{n}", s, (f"{s}{n - 1}",) if n else ()) for s in "vwxyz" for n in range(2))
    hints = (Hint(session=None, form="completion", prompt=(Text("x"),)), Hint(session="w", form="completion"))
    whole = Workload(name="w", seed=0, calls=calls, hint_prefixes=hints)
    pieces = [shard(whole, index, 3) for index in range(3)]
    for piece in pieces:
        piece.check()
    assert sorted(one.id for piece in pieces for one in piece.calls) == sorted(one.id for one in calls)
    assert [len(piece.hint_prefixes) for piece in pieces] == [1, 1, 0]
