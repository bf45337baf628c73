"""Traces as calls: shared exactly as in the trace, timed, shortened; and files of the user's own requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.shared import traces_dir
from tests.loadgen.test_oracle import common
from tests.loadgen.test_traces import agent, chat, lines, step
from trieway.loadgen.errors import LoadError, TraceError, WorkloadError
from trieway.loadgen.oracle import Use, reuse_bound, trace_bound
from trieway.loadgen.prompts import prompt_bytes
from trieway.loadgen.replay import replay
from trieway.loadgen.requests_file import parse_requests
from trieway.loadgen.sources import load
from trieway.loadgen.traces import Trace, parse_trace, read_trace
from trieway.loadgen.vocabulary import Workload


def prompts(workload: Workload) -> list[bytes]:
    return [prompt_bytes(call, {}) for call in workload.calls]


def assert_shared_alike(trace: Trace, workload: Workload, block_words: int) -> None:
    made = prompts(workload)
    for i, one in enumerate(trace.rows):
        for j, other in enumerate(trace.rows[:i]):
            blocks = common(one.block_ids, other.block_ids)
            words = common(tuple(made[i]), tuple(made[j])) // 4
            least = min(blocks * block_words, len(made[i]) // 4, len(made[j]) // 4)
            assert least <= words < least + 4 or words == min(len(made[i]), len(made[j])) // 4


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=8),
    st.sampled_from(["mooncake", "agentic"]),
    st.sampled_from([1, 2]),
    st.integers(0, 15),
    st.integers(0, 1 << 40),
)
def test_prompts_share_what_the_ids_share(
    paths: list[tuple[int, ...]], kind: str, shrink: int, rest: int, seed: int
) -> None:
    numbers: dict[tuple[int, ...], int] = {}
    rows = []
    for path in paths:
        ids = [numbers.setdefault(path[: depth + 1], len(numbers)) for depth in range(len(path))]
        if kind == "mooncake":
            rows.append(chat(0, 16 * len(ids) - rest, ids))
        else:
            rows.append(agent(0, 16 * len(ids) + rest, ids, "s"))
    trace = parse_trace("t", lines(*rows), block_tokens=16)
    workload = replay(trace, seed=seed, shrink=shrink)
    workload.check()
    assert_shared_alike(trace, workload, 16 // shrink)
    for row, call, text in zip(trace.rows, workload.calls, prompts(workload), strict=True):
        assert len(text) == 4 * (call.prompt_tokens or 0)
        assert call.prompt_tokens == row.input_tokens if shrink == 1 else True


def test_calls_keep_their_times_and_lengths() -> None:
    workload = replay(parse_trace("t", lines(chat(0, 512, [1]), chat(1500, 512, [2]))))
    assert [call.due_s for call in workload.calls] == [0.0, 1.5]
    assert {call.output_tokens for call in workload.calls} == {5}
    assert {call.prompt_tokens for call in workload.calls} == {512}
    assert all(not call.after and call.forced for call in workload.calls)
    assert replay(parse_trace("t", lines(chat(0, 512, [1]))), form="chat").calls[0].messages[0].role == "user"


def test_a_session_waits_for_its_answers_if_asked() -> None:
    trace = parse_trace("t", lines(agent(0, 64, [1], "a"), agent(1, 64, [2], "b"), agent(2, 130, [1, 3], "a")))
    waiting = replay(trace)
    assert [call.after for call in waiting.calls] == [(), (), ("row-0",)]
    assert [call.session for call in waiting.calls] == ["session-a", "session-b", "session-a"]
    assert all(not call.after for call in replay(trace, wait=False).calls)


def test_shared_heads_make_sessions_share() -> None:
    rows = [agent(0, 200, [s * 10 + n for n in range(3)], str(s), head_key="k", head_blocks=2) for s in range(2)]
    trace = parse_trace("t", lines(*rows))
    apart, together = (prompts(replay(trace, share_head=share)) for share in (False, True))
    assert apart[0][:16] != apart[1][:16]
    assert together[0][: 128 * 4] == together[1][: 128 * 4]
    assert together[0][128 * 4 :] != together[1][128 * 4 :]


def test_text_is_replayed_as_it_is() -> None:
    trace = parse_trace("t", lines(step(0, 0, 0, "Grüße"), step(9, 1, 3, "n")))
    assert prompts(replay(trace)) == ["Grüße".encode(), b"Gr\xc3\xbcn"]
    with pytest.raises(WorkloadError, match="shrink"):
        replay(trace, shrink=2)


def test_unusable_options_are_refused() -> None:
    trace = parse_trace("t", lines(chat(0, 512, [1])))
    with pytest.raises(WorkloadError, match="shrink"):
        replay(trace, shrink=0)
    with pytest.raises(WorkloadError, match="one row"):
        replay(trace, rows_max=0)
    assert len(replay(parse_trace("t", lines(chat(0, 512, [1]), chat(0, 512, [1]))), rows_max=1).calls) == 1


def test_the_bytes_of_a_shared_trace_can_be_reused_as_its_ids_can() -> None:
    trace = read_trace(str(traces_dir() / "mooncake_synthetic_head.jsonl.gz"))
    part = Trace(name="t", kind=trace.kind, block_tokens=512, rows=trace.rows[:250])
    texts = prompts(replay(part, shrink=8))
    uses = [Use(units=text, prompt_units=len(text), start=n, end=n) for n, text in enumerate(texts)]
    assert reuse_bound(uses, None).share == pytest.approx(trace_bound(part, None).share, abs=0.002)


def asked(*rows: object) -> Workload:
    workload = parse_requests("r", lines(*rows))
    workload.check()
    return workload


def test_a_line_is_a_request() -> None:
    (call,) = asked(
        {"prompt": "Once", "max_tokens": 9, "timestamp": 2000, "tenant": "t", "cache_salt": "s", "ignore_eos": True}
    ).calls
    assert (call.form, call.max_tokens, call.due_s, call.tenant, call.salt) == ("completion", 9, 2.0, "t", "s")
    assert call.forced
    (chatting,) = asked({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}).calls
    assert prompt_bytes(chatting, {}) == b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert not chatting.forced


def test_lines_of_a_session_wait_and_may_quote() -> None:
    said = [{"role": "user", "content": "Hi"}]
    again = [*said, {"role": "assistant", "answer_of": "a"}, {"role": "user", "content": "So?"}]
    workload = asked(
        {"id": "a", "session_id": "s", "messages": said},
        {"messages": said},
        {"id": "b", "session_id": "s", "messages": again, "think_s": 2},
        {"id": "c", "after": ["b"], "messages": again},
    )
    assert [call.after for call in workload.calls] == [(), (), ("a",), ("b",)]
    assert workload.calls[3].session == "s"
    assert b"assistant\nYes<|" in prompt_bytes(workload.calls[2], {"a": "Yes"})


def test_batch_files_are_taken() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 7}
    (call,) = asked({"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": body}).calls
    assert (call.id, call.max_tokens) == ("x", 7)


BAD = (
    (b"{", "broken"),
    (b"\xff", "broken"),
    ({}, "needs `messages` or `prompt`"),
    ({"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "not both"),
    ({"prompt": ""}, "empty"),
    ({"messages": []}, "empty"),
    ({"messages": [{"role": "user"}]}, "needs `content`"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "other than text"),
    ({"prompt": 5}, "str"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "think_s": -1}, "think_s"),
    ({"prompt": "a", "id": "first"}, "came before"),
    ({"prompt": "a", "after": ["none"]}, "does not come before"),
    ({"prompt": "a", "after": ["first"], "session_id": "other"}, "another session"),
    ({"messages": [{"role": "assistant", "answer_of": "first"}]}, "does not wait"),
)


@pytest.mark.parametrize(("bad", "says"), BAD)
def test_a_broken_request_is_named_by_its_line(bad: object, says: str) -> None:
    line = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
    with pytest.raises(TraceError, match=says) as caught:
        parse_requests("r", [(1, b'{"prompt": "x", "id": "first"}'), (7, line)])
    assert caught.value.line == 7
    assert "\n" not in str(caught.value)


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_whatever_is_named_becomes_a_workload(tmp_path: Path) -> None:
    assert load("chat-short", 4, turns="2").seed == 4
    trace = write(tmp_path / "t.jsonl", chat(0, 512, [1]), chat(5, 1024, [1, 2]))
    loaded = load(trace, 4, shrink="4", rows_max="1", wait="no", form="chat")
    assert [call.prompt_tokens for call in loaded.calls] == [128]
    assert load(write(tmp_path / "r.jsonl", {"prompt": "x"})).calls[0].form == "completion"


def test_questions_and_answers_become_few_shot_prompts(tmp_path: Path) -> None:
    rows = [{"question": f"Q{n}?", "answer": f"A{n}"} for n in range(9)]
    workload = load(write(tmp_path / "q.jsonl", *rows), 1, examples="2", samples=3)
    workload.check()
    assert len(workload.calls) == 7 * 3
    assert prompts(workload)[0] == b"Question: Q0?\nAnswer: A0\n\nQuestion: Q1?\nAnswer: A1\n\nQuestion: Q2?\nAnswer:"
    assert len({call.seed for call in workload.calls}) == 21
    assert len(load(str(tmp_path / "q.jsonl"), examples=2, rows_max=3).calls) == 3
    with pytest.raises(WorkloadError, match="nothing to ask"):
        load(str(tmp_path / "q.jsonl"), examples=9)
    with pytest.raises(TraceError, match=r"q\.jsonl:2: broken pair"):
        load(write(tmp_path / "q.jsonl", rows[0], {"question": 1}))


@pytest.mark.parametrize(
    ("row", "settings", "says"),
    [
        ({"question": "?", "answer": "!"}, {"shrink": 1}, "no setting 'shrink'"),
        (chat(0, 512, [1]), {"turns": 1}, "no setting 'turns'"),
        (chat(0, 512, [1]), {"shrink": "x"}, "whole number"),
        (chat(0, 512, [1]), {"wait": "x"}, "true or false"),
        (chat(0, 512, [1]), {"form": "x"}, "completion or chat"),
        ({"prompt": "x"}, {"shrink": 1}, "no settings"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, row: object, settings: dict[str, str | int], says: str
) -> None:
    with pytest.raises(LoadError, match=says):
        load(write(tmp_path / "t.jsonl", row), **settings)  # type: ignore[arg-type]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="neither a file nor a workload"):
        load(str(tmp_path / "none"))
    with pytest.raises(TraceError, match="no rows"):
        load(write(tmp_path / "empty.jsonl"))
    with pytest.raises(TraceError, match="no requests"):
        parse_requests("r", [])
