"""Reading traces: what is taken, what is refused and how, shared heads, sessions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.shared import traces_dir
from trieway.loadgen.errors import TraceError
from trieway.loadgen.traces import Trace, parse_trace, read_trace


def lines(*rows: object) -> list[tuple[int, bytes]]:
    return [(number, json.dumps(row).encode()) for number, row in enumerate(rows, 1)]


def chat(timestamp: float, tokens: int, ids: list[int], **more: object) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": tokens, "output_length": 5, "hash_ids": ids} | more


def agent(timestamp: float, tokens: int, ids: list[int], session: str, **more: object) -> dict[str, object]:
    return chat(timestamp, tokens, ids, session_id=session, **more)


def step(timestamp: float, number: int, keep: int, append: str, session: str = "s") -> dict[str, object]:
    return {
        "timestamp": timestamp,
        "session_id": session,
        "step": number,
        "keep_chars": keep,
        "append": append,
        "output": "ok",
    }


def test_mooncake_rows_have_an_id_for_each_started_block() -> None:
    trace = parse_trace("t", lines(chat(0, 1000, [1, 2]), chat(5, 513, [1, 3])))
    assert (trace.kind, trace.block_tokens) == ("mooncake", 512)
    assert [row.block_ids for row in trace.rows] == [(1, 2), (1, 3)]
    assert [row.timestamp_ms for row in trace.rows] == [0, 5]
    assert trace.rows[1].line == 2


def test_agentic_rows_have_an_id_for_each_full_block() -> None:
    trace = parse_trace("t", lines(agent(0, 130, [1, 2], "a", head_key="k", head_blocks=1)))
    assert (trace.kind, trace.block_tokens) == ("agentic", 64)
    assert (trace.rows[0].session, trace.rows[0].head_key, trace.rows[0].head_blocks) == ("a", "k", 1)


def test_text_rows_keep_a_part_of_the_prompt_before() -> None:
    first = "x" * 100
    trace = parse_trace("t", lines(step(0, 0, 0, first), step(1, 1, 80, "y" * 60)))
    assert [row.text for row in trace.rows] == [first, "x" * 80 + "y" * 60]
    assert [row.input_tokens for row in trace.rows] == [25, 35]
    assert [len(row.block_ids) for row in trace.rows] == [2, 3]
    assert trace.rows[0].block_ids[0] == trace.rows[1].block_ids[0]
    assert trace.rows[0].block_ids[1] not in trace.rows[1].block_ids


@given(st.lists(st.text(st.sampled_from("ab"), min_size=1, max_size=200), min_size=2, max_size=6))
def test_text_blocks_agree_exactly_where_the_bytes_do(prompts: list[str]) -> None:
    trace = parse_trace("t", lines(*(step(0, 0, 0, text, f"s{n}") for n, text in enumerate(prompts))))
    for one in trace.rows:
        for other in trace.rows:
            assert one.text is not None
            assert other.text is not None
            for block in range(min(len(one.block_ids), len(other.block_ids))):
                same = one.text[: 64 * block + 64] == other.text[: 64 * block + 64]
                assert (one.block_ids[block] == other.block_ids[block]) == same


def test_block_size_can_be_told() -> None:
    assert parse_trace("t", lines(chat(0, 33, [1, 2, 3])), block_tokens=16).block_tokens == 16


GOOD = chat(0, 600, [1, 2])
BROKEN = {
    "not json": (b"{", "broken row: .* truncated"),
    "other fields": (b'{"question": "?"}', "neither"),
    "a list": (b"[]", "broken row: Expected `object`, got `array`"),
    "no length": ({"timestamp": 1, "hash_ids": [1], "output_length": 1}, "input_length"),
    "wrong type": (chat(0, 600, ["x", "y"]), "int"),  # type: ignore[list-item]
    "negative time": (chat(-1, 600, [1, 2]), "timestamp"),
    "no tokens": (chat(0, 0, []), "input_length"),
    "ids too few": (chat(0, 2000, [1, 2]), "2 `hash_ids`, but 2000 tokens have 4"),
    "two parents": (chat(0, 600, [3, 2]), "block 2 follows 3 here and 1 before"),
    "twice": (chat(0, 1200, [1, 2, 1]), "block 1 follows 2 here"),
    "back in time": (chat(-0.0, 600, [1, 2]), "goes back"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_named_by_its_number(name: str) -> None:
    bad, says = BROKEN[name]
    line = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
    before = lines(GOOD | {"timestamp": 9 if name == "back in time" else 0})
    rows = [(1, line)] if isinstance(bad, bytes) else [*before, (4, line)]
    with pytest.raises(TraceError, match=says) as caught:
        parse_trace("t", rows, source="t.jsonl")
    assert caught.value.line == rows[-1][0]
    assert str(caught.value).startswith(f"t.jsonl:{rows[-1][0]}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (step(1, 2, 0, "y"), "step 2 of session s comes after step 0"),
        (step(1, 1, 4, "y"), "has 3 characters"),
        (step(1, 1, 0, ""), "empty prompt"),
        ({"timestamp": 1, "session_id": "s", "step": 1, "append": "y"}, "keep_chars"),
    ],
)
def test_a_broken_text_row_is_named(bad: object, says: str) -> None:
    with pytest.raises(TraceError, match=says) as caught:
        parse_trace("t", lines(step(0, 0, 0, "xyz"), bad))
    assert caught.value.line == 2


def test_a_lone_surrogate_is_an_error_not_a_crash() -> None:
    row = json.dumps(step(0, 0, 0, "x")).replace('"x"', '"\\ud800"').encode()
    with pytest.raises(TraceError):
        parse_trace("t", [(1, row)])


def test_an_agentic_row_without_session_is_refused() -> None:
    with pytest.raises(TraceError, match="session_id"):
        parse_trace("t", lines(agent(0, 64, [1], "a"), chat(1, 64, [1])))


def test_files_plain_and_packed_with_blank_lines(tmp_path: Path) -> None:
    text = json.dumps(GOOD) + "\n\n" + json.dumps(GOOD) + "\n"
    (tmp_path / "a.jsonl").write_text(text)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(text)
    plain, packed = read_trace(str(tmp_path / "a.jsonl")), read_trace(str(tmp_path / "a.jsonl.gz"))
    assert plain == packed
    assert plain.name == "a"
    assert [row.line for row in plain.rows] == [1, 3]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(str(tmp_path / "none"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(TraceError, match="no rows"):
        read_trace(str(tmp_path / "empty"))
    whole = gzip.compress(json.dumps(GOOD).encode() * 50)
    (tmp_path / "cut.gz").write_bytes(whole[:-9])
    with pytest.raises(TraceError, match="gzip"):
        read_trace(str(tmp_path / "cut.gz"))


def test_a_shared_head_gives_rows_of_one_key_the_same_ids() -> None:
    rows = (
        agent(0, 200, [1, 2, 3], "a", head_key="k", head_blocks=2),
        agent(1, 200, [4, 5, 6], "b", head_key="k", head_blocks=2),
        agent(2, 200, [7, 8, 9], "c", head_key="other", head_blocks=9),
        agent(3, 64, [10], "d"),
    )
    found = [row.block_ids for row in parse_trace("t", lines(*rows)).with_shared_head().rows]
    assert found[0][:2] == found[1][:2]
    assert (found[0][2], found[1][2]) == (3, 6)
    assert len({block for ids in found for block in ids}) == 8
    assert found[3] == (10,)


def test_sessions_are_those_of_the_trace() -> None:
    rows = (agent(0, 64, [1], "b"), agent(1, 64, [2], "a"), agent(2, 64, [1], "b"))
    assert parse_trace("t", lines(*rows)).sessions() == [0, 1, 0]


def inferred(trace: Trace) -> list[int]:
    """The rule as it is written, in quadratic time."""
    found: list[int] = []
    for index, row in enumerate(trace.rows):
        for before in reversed(range(index)):
            full = trace.rows[before].block_ids[: trace.rows[before].input_tokens // trace.block_tokens]
            if len(full) >= 2 and row.block_ids[: len(full)] == full:
                found.append(found[before])
                break
        else:
            found.append(max(found, default=-1) + 1)
    return found


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple), min_size=1, max_size=12), st.data())
def test_sessions_are_inferred_as_the_rule_says(paths: list[tuple[int, ...]], data: st.DataObject) -> None:
    numbers: dict[tuple[int, ...], int] = {}
    rows = []
    for path in paths:
        ids = [numbers.setdefault(path[: depth + 1], len(numbers)) for depth in range(len(path))]
        rows.append(chat(0, 16 * len(ids) - data.draw(st.sampled_from([0, 3])), ids))
    trace = parse_trace("t", lines(*rows), block_tokens=16)
    assert trace.sessions() == inferred(trace)


def test_the_shared_files_are_read_whole() -> None:
    folder = traces_dir()
    rows = {"mooncake_conversation_head": 5606, "miniswe_text": 402, "agentic_coding_a": 1172}
    for name, count in rows.items():
        trace = read_trace(str(folder / f"{name}.jsonl.gz"))
        assert len(trace.rows) == count
