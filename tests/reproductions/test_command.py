"""`trieway sim reproduce` as a user meets it: tables next to published figures, files by seed, mistakes in one line."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import msgspec
import pytest

from trieway.cli import main
from trieway.loadgen.reproductions import commands, parts
from trieway.loadgen.reproductions.benchmarks import BENCHMARKS, benchmark
from trieway.loadgen.reproductions.results import Results, decode
from trieway.loadgen.reproductions.text import lines, reading, tables
from trieway.loadgen.reproductions.variants import VARIANTS

Output = pytest.CaptureFixture[str]


FEW = ("MMLU", "HellaSwag", "Multi-turn chat (short)")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All parts but overhead, of a few benchmarks, played once."""
    folder = tmp_path_factory.mktemp("quick")
    files = ("--json", str(folder / "a.json"), "--report", str(folder / "a.html"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "BENCHMARKS", tuple(benchmark(name) for name in FEW))
        patch.setattr(parts, "ABLATED", FEW[-1:])
        patch.setattr(parts, "SCALED", parts.SCALED[:3:2])
        assert main(["sim", "reproduce", "--quick", "--parts", "hit-rates,ablations,curve,scaling", *files]) == 0
    return folder


@pytest.fixture(scope="module")
def found(quick: Path) -> Results:
    return decode((quick / "a.json").read_bytes())


def test_benchmarks_reach_most_of_what_can_be_reached(found: Results) -> None:
    assert [row.benchmark for row in found.hit_rates] == list(FEW)
    for row in found.hit_rates:
        assert 0.0 < row.hit_rate <= row.optimum, row.benchmark
        assert row.share > 0.6, row.benchmark
        assert row.over_no_cache > 1.0, row.benchmark
    assert found.share_mean is not None
    assert found.share_mean > 0.85
    assert found.shipped_share_mean is not None
    assert found.shipped_share_mean < found.share_mean
    chat = found.hit_rates[-1]
    assert chat.published_hit_rate is not None
    assert chat.hit_rate == pytest.approx(chat.published_hit_rate, abs=0.05)
    assert chat.shipped_hit_rate < chat.hit_rate - 0.1, "what it takes away is not spared by default"


def test_ablations_cost_what_they_take_away(found: Results) -> None:
    chat = {row.variant: row for row in found.ablations}
    assert chat["no-cache"].throughput < chat["fcfs"].throughput < chat["random"].throughput < 1.0
    assert chat["no-cache"].published == 0.45
    assert set(chat) == set(VARIANTS) - {"full", "no-parallelism", "no-hints", "late-no-hints"}, "a chat has neither"


def test_more_hits_mean_larger_batches_more_tokens_and_less_waiting(found: Results) -> None:
    first, middle, last = found.curve
    assert first.hit_rate == 0.0 < middle.hit_rate < last.hit_rate
    assert middle.hit_rate < 0.5
    assert first.output_tokens_per_s < middle.output_tokens_per_s < last.output_tokens_per_s
    assert first.run_s > middle.run_s > last.run_s
    assert first.batch < last.batch


def test_four_workers_do_nearly_four_times_the_work(found: Results) -> None:
    rows = {(row.order, row.workers, row.policy): row for row in found.scaling}
    assert rows["by subject", 1, "cache_aware"].speedup == 1.0
    assert 2.0 < rows["by subject", 4, "cache_aware"].speedup <= 4.2
    assert rows["by subject", 4, "cache_aware"].share > 0.9
    assert all(row.busiest < 1.3 for row in found.scaling)


def test_the_page_is_whole(quick: Path) -> None:
    page = (quick / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 4 + 1 + 1
    assert "A quick run" in page
    assert "read off" in page
    for word in ("Ablations", "Hit rate and batch", "MMLU", "arXiv 2312.07104"):
        assert word in page
    assert not re.search(r'(?:src|href)="', page), "nothing outside is referred to"


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BENCHMARKS", (benchmark(FEW[-1]),))
    written = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        files = [tmp_path / f"{name}.{kind}" for kind in ("json", "html")]
        flags = ("--quick", "--parts", "hit-rates", "--seed", seed, "--json", str(files[0]), "--report", str(files[1]))
        assert main(["sim", "reproduce", *flags]) == 0
        written.append([file.read_bytes() for file in files])
    assert written[0] == written[1]
    assert decode(written[2][0]).seed == 6
    assert decode(written[2][0]).hit_rates != decode(written[0][0]).hit_rates


def test_overhead_is_small_and_only_written_when_asked(tmp_path: Path, capsys: Output) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for file, more in zip(files, ([], [], ["--times"]), strict=True):
        assert main(["sim", "reproduce", "--quick", "--parts", "overhead", *more, "--json", str(file)]) == 0
    said = capsys.readouterr().out
    assert "overhead without sharing, A10G, Llama-7B" in said
    assert "section 6.3" in said
    assert files[0].read_bytes() == files[1].read_bytes(), "no time of this machine"
    plain, timed = decode(files[0].read_bytes()), decode(files[2].read_bytes())
    assert plain.times == []
    assert plain.overhead == timed.overhead
    for row, times in zip(timed.overhead, timed.times, strict=True):
        assert row.cached_tokens == 0, "nothing is shared"
        assert row.operations > row.requests
        assert 0.0 < times.share_of_run < 0.05
        assert times.managing_cpu_s < times.core_cpu_s * 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--parts", "hit-rates,speed"), "no part named 'speed'; there are hit-rates,"),
        (("--parts", ","), "name a part: hit-rates,"),
        (("--json", "/nowhere/at/all.json"), "there is no folder /nowhere/at"),
    ],
)
def test_a_mistake_is_one_line(flags: tuple[str, ...], words: str, capsys: Output) -> None:
    assert main(["sim", "reproduce", *flags]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_an_interrupt_leaves_what_was_found(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = parts.measure
    calls = [0]

    def interrupted(*arguments: object, **named: object) -> object:
        calls[0] += 1
        if calls[0] == 3:
            signal.raise_signal(signal.SIGINT)
        return measure(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(parts, "measure", interrupted)
    file = tmp_path / "a.json"
    assert main(["sim", "reproduce", "--quick", "--parts", "scaling", "--json", str(file)]) == 1
    said = capsys.readouterr()
    assert "PARTIAL" in said.out
    assert "interrupted" in said.err
    kept = decode(file.read_bytes())
    assert kept.partial
    assert [row.workers for row in kept.scaling] == [1, 2]


def test_a_published_value_says_how_well_it_was_read() -> None:
    assert reading(0.5, 0.02) == "50 ±2 %"
    assert reading(0.3, 0.1, shares=False) == "0.30 ±0.10"
    assert reading(None, None) == "-"


def test_headlines_stand_beside_the_published_ones(found: Results) -> None:
    said = "\n".join(lines(found))
    assert "mean of 3 benchmarks" in said
    assert "published: 96.0 % of eleven, section 6.2" in said
    assert "scaling, MMLU by subject: " in said
    assert "appendix A.4" in said
    for header in ("Hit rates on one worker", "Ablations:", "figures 8a and 8b", "MMLU on several workers"):
        assert header in said


def test_parts_without_rows_make_no_table(found: Results) -> None:
    empty = msgspec.structs.replace(found, hit_rates=[], ablations=[], curve=[], scaling=[], share_mean=None)
    assert list(tables(empty)) == []
    assert list(lines(empty)) == [""]
    assert commands.without_times(found) == found


@pytest.mark.verify
def test_the_whole_quick_run(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "a.json"
    assert main(["sim", "reproduce", "--quick", "--json", str(file)]) == 0
    print(capsys.readouterr().out)
    found = decode(file.read_bytes())
    assert [row.benchmark for row in found.hit_rates] == [one.name for one in BENCHMARKS]
    assert found.share_mean is not None
    assert found.share_mean > 0.9
    assert found.published_share_mean_of_these == pytest.approx(0.95, abs=0.01)
    assert [row.benchmark for row in found.hit_rates if row.published_hit_rate is None] == ["Self-consistency"]
