"""Traces by the rules and on the simulated fleet: the same measures, the same order, one line for every mistake."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen.making import record
from tests.loadgen.shared import traces_dir
from trieway.cli import main
from trieway.loadgen.lines import numbered_lines
from trieway.loadgen.reference import RULES, Reference, imbalance
from trieway.loadgen.sim.cost import roofline
from trieway.loadgen.simulations import replays
from trieway.loadgen.simulations.playing import Stop
from trieway.loadgen.simulations.replay_tables import size_name
from trieway.loadgen.simulations.replaying import Size, count, outcome_of, play_trace
from trieway.loadgen.simulations.replays import Source, Wanted, results, sources_of
from trieway.loadgen.traces import parse_trace, read_trace

H100 = roofline("h100", "llama-3.1-8b")
SMALL = ("--workers", "2", "--cache", "64k", "--processes", "1")


def chats(sessions: int = 6, turns: int = 4, gap_ms: int = 4000) -> list[dict[str, Any]]:
    """Agentic rows: each turn is the one before and four blocks more; all share their first two blocks."""
    rows = []
    for turn in range(turns):
        for session in range(sessions):
            blocks = [0, 1, *(1000 * (session + 1) + block for block in range(4 * (turn + 1)))]
            rows.append(
                {
                    "timestamp": turn * gap_ms + session * 200,
                    "session_id": f"s{session}",
                    "input_length": 64 * len(blocks) + 5,
                    "output_length": 20,
                    "hash_ids": blocks,
                }
            )
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return write(tmp_path / "chats.jsonl", chats())


def test_an_endless_cache_gives_all_that_the_trace_shares(trace: str) -> None:
    rows = read_trace(trace)
    size = Size(workers=1, cache_tokens=None)
    counted = count(Reference(rows), rows, size)
    played = play_trace(rows, size, "cache_aware", H100, seed=0)
    assert counted.rules["half"].hit_share == counted.bound_share
    # Blocks of the trace are whole pages and whole blocks of text, so nothing of them is lost.
    assert played.outcome.hit_share == pytest.approx(counted.bound_share, abs=1e-9)
    assert played.bound_share >= played.outcome.hit_share
    assert played.outcome.imbalance == played.outcome.win60 == 1.0
    assert (played.requests, played.failed) == (24, 0)


def test_a_cache_that_holds_less_gives_less_and_never_more_than_the_bound(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path / "t.jsonl", chats(sessions=12, turns=5)))
    shares = []
    for tokens in (2048, 8192, 65_536):
        size = Size(workers=2, cache_tokens=tokens)
        played = play_trace(rows, size, "cache_aware", H100, seed=0)
        assert played.failed == 0
        assert played.outcome.hit_share <= played.bound_share + 1e-9
        shares.append(played.outcome.hit_share)
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_the_measures_are_the_references_own() -> None:
    """By hand: work and windows of three workers, of which one got nothing."""
    rows = parse_trace(
        "t",
        enumerate(
            json.dumps({"timestamp": at, "input_length": 512, "output_length": 1, "hash_ids": [at]}).encode()
            for at in (0, 59_999, 60_000, 200_000)
        ),
    ).rows
    work = [("a", 100, 50), ("b", 300, 0), ("a", 100, 100), ("b", 40, 20)]
    ok = [
        record(call=f"row-{at}", worker=worker, prompt_tokens=prompt, cached_tokens=cached)
        for at, (worker, prompt, cached) in enumerate(work)
    ]
    found = outcome_of(rows, ok, workers=3)
    assert found.hit_share == 170 / 540
    assert found.imbalance == imbalance([50, 320, 0])
    # The window in which everything was cached has no work, and is no part of the mean.
    assert found.win60 == (imbalance([50, 300, 0]) + imbalance([0, 20, 0])) / 2


def test_the_same_seed_plays_the_same_and_speed_changes_times_alone(trace: str) -> None:
    rows, size = read_trace(trace), Size(workers=2, cache_tokens=4096)
    first, again = (play_trace(rows, size, "cache_aware", H100, seed=3) for _ in range(2))
    assert (first.outcome, first.ttft_p95_ms, first.virtual_s) == (again.outcome, again.ttft_p95_ms, again.virtual_s)
    faster = play_trace(rows, size, "cache_aware", H100, seed=3, speed=4.0)
    assert faster.virtual_s < first.virtual_s
    assert faster.load > first.load > 0.0


def test_a_trace_with_heads_comes_twice(tmp_path: Path) -> None:
    rows = [row | {"head_key": "k", "head_blocks": 6} for row in chats(sessions=2)]
    path = write(tmp_path / "t.jsonl", rows)
    sources = sources_of([str(tmp_path)], None)
    assert sources == (Source(path=path), Source(path=path, shared_head=True))
    assert [source.read().name for source in sources] == ["t", "t +head"]
    assert len({row.block_ids[:6] for row in sources[1].read().rows if len(row.block_ids) > 5}) == 1


def test_processes_change_nothing(trace: str) -> None:
    def told(processes: int) -> list[object]:
        wanted = Wanted(
            sources=(Source(path=trace), Source(path=trace, rows_max=10)),
            sizes=(Size(workers=2, cache_tokens=8192), Size(workers=3, cache_tokens=None)),
            policies=("cache_aware", "round_robin"),
            cost=H100,
            processes=processes,
        )
        return [
            (one.trace, one.size, one.counted, [simulated.outcome for simulated in one.simulated])
            for one in results(wanted, Stop())
        ]

    assert told(1) == told(2)
    assert len(told(1)) == 4


def test_the_command_prints_rules_simulation_and_bound(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    assert main(["sim", "replay", trace, *SMALL, "--cache", "64k,endless", "--json", str(out)]) == 0
    told = capsys.readouterr()
    assert "### chats: 24 requests in 13 s" in told.out
    assert "| 2 x 64k |" in told.out
    assert "| 2 x endless |" in told.out
    assert "### Against `half`" in told.out
    assert "2 of 2: chats" in told.err
    written = json.loads(out.read_bytes())
    assert written["format"] == "trieway.replay/1"
    assert not written["partial"]
    (first, endless) = written["results"]
    assert set(first["counted"]["rules"]) == set(RULES)
    assert endless["size"]["cache_tokens"] is None
    (simulated,) = first["simulated"]
    assert f"{100 * simulated['outcome']['hit_share']:.2f}" in told.out


def test_the_rules_alone_need_no_simulation(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "replay", trace, *SMALL, "--policies", "none", "--rows", "12"]) == 0
    told = capsys.readouterr().out
    assert "### chats: 12 requests" in told
    assert "simulated" not in told
    assert "Against" not in told


def test_an_interrupt_tells_what_is_whole(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = replays.play_trace
    done: list[object] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if done:
            signal.raise_signal(signal.SIGTERM)
        done.append(None)
        return play(*arguments, **named)

    monkeypatch.setattr(replays, "play_trace", interrupted)
    out = tmp_path / "r.json"
    assert main(["sim", "replay", trace, *SMALL, "--cache", "64k,128k", "--json", str(out)]) == 1
    told = capsys.readouterr()
    assert "interrupted; 1 of 2 are above" in told.err
    assert "2 x 64k" in told.out
    assert "2 x 128k" not in told.out
    written = json.loads(out.read_bytes())
    assert written["partial"]
    assert len(written["results"]) == 1


def test_sizes_are_called_as_they_are_given() -> None:
    sizes = {262_144: "4 x 256k", 1 << 20: "4 x 1M", 1000: "4 x 1000", None: "4 x endless", 3 << 19: "4 x 1536k"}
    assert {tokens: size_name(Size(workers=4, cache_tokens=tokens)) for tokens in sizes} == sizes


def test_the_shared_traces_replay_as_they_are_counted() -> None:
    """The first rows of two: nothing fails, hits are below the bound, and not far from what the rules reach."""
    paths = [str(traces_dir() / f"{name}.jsonl.gz") for name in ("miniswe_text", "mooncake_synthetic_head")]
    for source in sources_of(paths, 60):
        trace, size = source.read(), Size(workers=4, cache_tokens=262_144)
        counted, played = count(Reference(trace), trace, size), play_trace(trace, size, "cache_aware", H100, seed=0)
        assert (played.requests, played.failed) == (60, 0), source
        assert played.outcome.hit_share <= played.bound_share + 1e-9
        assert played.outcome.hit_share > counted.rules["half"].hit_share - 0.01, source
        assert next(numbered_lines(source.path))[0] == 1
