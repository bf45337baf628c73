"""The calculator: against a literal reading of its rules, and the shared reference page cell by cell."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loadgen.shared import traces_dir
from tests.loadgen.test_traces import agent, chat, lines
from trieway.loadgen.reference import RULES, Cache, Outcome, Reference, imbalance
from trieway.loadgen.reference_tables import main, tables
from trieway.loadgen.traces import Trace, parse_trace, read_trace

PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple), min_size=1, max_size=14)


def trace_of(paths: list[tuple[int, ...]], short: int = 0, gap_ms: int = 20_000) -> Trace:
    numbers: dict[tuple[int, ...], int] = {}
    rows = []
    for index, path in enumerate(paths):
        ids = [numbers.setdefault(path[: depth + 1], len(numbers)) for depth in range(len(path))]
        rows.append(chat(index * gap_ms, 16 * len(ids) - short, ids))
    return parse_trace("t", lines(*rows), block_tokens=16)


class Literal:
    """The rules word for word: a list of blocks per worker, oldest first."""

    def __init__(self, trace: Trace, workers: int, slots: int | None) -> None:
        self.trace, self.slots = trace, slots
        self.caches: list[list[int]] = [[] for _ in range(workers)]
        self.work = [0] * workers

    def hit(self, worker: int, row: int) -> int:
        depth = 0
        for block in self.trace.rows[row].block_ids:
            if block not in self.caches[worker]:
                break
            depth += 1
        return min(16 * depth, self.trace.rows[row].input_tokens)

    def serve(self, worker: int, row: int) -> int:
        hit = self.hit(worker, row)
        cache = self.caches[worker]
        for block in reversed(self.trace.rows[row].block_ids):
            if block in cache:
                cache.remove(block)
            cache.append(block)
        if self.slots is not None:
            del cache[: max(0, len(cache) - self.slots)]
        self.work[worker] += self.trace.rows[row].input_tokens - hit
        return hit

    def pick(self, rule: str, row: int, session: int) -> int:
        workers = range(len(self.caches))
        tokens = self.trace.rows[row].input_tokens
        least = min(workers, key=lambda w: (self.work[w], w))
        if rule == "rr":
            return row % len(self.caches)
        if rule == "sticky":
            return session % len(self.caches)
        if rule == "cost":
            return min(workers, key=lambda w: (self.work[w] + tokens - self.hit(w, row), w))
        longest = min(workers, key=lambda w: (-self.hit(w, row), self.work[w], w))
        if rule == "longest" or 2 * self.hit(longest, row) >= tokens:
            return longest
        return least


@given(PATHS, st.sampled_from(RULES[1:]), st.integers(1, 3), st.none() | st.integers(0, 6), st.sampled_from([0, 5]))
def test_every_rule_is_what_it_says(
    paths: list[tuple[int, ...]], rule: str, workers: int, slots: int | None, short: int
) -> None:
    trace = trace_of(paths, short)
    literal = Literal(trace, workers, slots)
    sessions = trace.sessions()
    hits = sum(literal.serve(literal.pick(rule, row, sessions[row]), row) for row in range(len(paths)))
    found = Reference(trace).run(rule, workers, None if slots is None else slots * 16 + 15)
    assert found.hit_share == hits / sum(row.input_tokens for row in trace.rows)
    assert found.imbalance == imbalance(literal.work)


@given(PATHS, st.integers(0, 6))
def test_a_cache_never_holds_more_than_it_has_room_for(paths: list[tuple[int, ...]], slots: int) -> None:
    cache, endless = Cache(slots), Cache(None)
    for prompt in Reference(trace_of(paths)).prompts:
        blocks = sum(length for _, length in prompt.stretches)
        assert 0 <= cache.depth(prompt) <= endless.depth(prompt) <= blocks
        cache.insert(prompt)
        endless.insert(prompt)
        assert cache.blocks <= slots
        assert cache.depth(prompt) == min(blocks, slots)
        assert endless.depth(prompt) == blocks


def test_windows_are_of_a_minute_and_count_alike() -> None:
    trace = trace_of([(0,), (1,), (0,), (1,), (0, 0)], gap_ms=25_000)
    # Work by window: 16 and 16 in the first minute, 0 and 16 in the second.
    assert Reference(trace).run("rr", 2, None) == Outcome(hit_share=48 / 96, imbalance=32 / 24, win60=(1.0 + 2.0) / 2)


def test_imbalance_of_nothing_is_even() -> None:
    assert imbalance([0, 0]) == 1.0
    assert imbalance([3, 1]) == 1.5


def cells(text: str) -> dict[tuple[str, str], list[str]]:
    """(heading of the table, name of the trace) -> the cells of its row."""
    found: dict[tuple[str, str], list[str]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("|"):
            name, *row = [cell.strip() for cell in line.strip("|").split("|")]
            if name != "trace" and not name.startswith("---"):
                table = f"{len(row)} columns" if len(row) > 7 else heading
                found[table, name] = row
        elif "workers," in line:
            heading = line
    return found


def test_the_page_is_reproduced() -> None:
    folder = traces_dir()
    expected = cells((folder / "REFERENCE.md").read_text())
    names = ("miniswe_text", "mooncake_conversation_head", "mooncake_synthetic_head", "agentic_coding_a")
    found = cells("\n".join(tables([read_trace(str(folder / f"{name}.jsonl.gz")) for name in names])))
    assert len(expected) == 35
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        random = slice(0, 1) if len(row) == len(RULES) else slice(0, 0)
        assert found[key][random.stop :] == row[random.stop :], key
        for ours, theirs in zip(found[key][random], row[random], strict=True):
            assert abs(float(ours.split()[0]) - float(theirs.split()[0])) <= 0.5, key


def write(path: Path, rows: list[tuple[int, bytes]]) -> None:
    path.write_bytes(b"\n".join(line for _, line in rows))


def test_the_command_prints_tables_with_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.jsonl", lines(chat(0, 600, [1, 2]), chat(1, 600, [1, 2])))
    write(tmp_path / "b.jsonl", lines(agent(0, 70, [1], "s", head_key="k", head_blocks=1), agent(1, 70, [2], "t")))
    write(tmp_path / "other.jsonl", [(1, b'{"question": 1}')])
    assert main(["--bound", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "| a | 2 | 0 | 1200 | 2 (0) | 50.00 |" in text
    assert "| b +head |" in text
    groups = defaultdict(set)
    for line in text.splitlines():
        if re.match(r"\| [ab] ", line):
            groups[line.count("|")].add(line)
    assert set(groups) == {11, 9}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [([], 2, "usage"), (["--wrong"], 2, "usage"), (["/nowhere/x.jsonl"], 2, "No such file"), (["."], 2, "no traces")],
)
def test_the_command_refuses_in_one_line(
    arguments: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path) if one == "." else one for one in arguments]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
