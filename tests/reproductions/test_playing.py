"""What a played benchmark says of itself: sums over calls that are no hints, the optimum, variants that matter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trieway.loadgen.errors import RunFailed
from trieway.loadgen.records import Record
from trieway.loadgen.reproductions.benchmarks import HINT, benchmark
from trieway.loadgen.reproductions.playing import Interrupted, added_up, figures_of, measure
from trieway.loadgen.reproductions.variants import FULL, MACHINE, SHIPPED, VARIANTS
from trieway.loadgen.simulations.playing import Stop
from trieway.loadgen.vocabulary import Call, Filler, Workload

TREES = replace(benchmark("Tree of thought"), quick={"questions": 3, "depth": 3})


def call(name: str, words: int) -> Call:
    return Call(id=name, session=name.split("/")[0], form="completion", prompt=(Filler(7, words),), output_tokens=2)


def record(name: str, prompt: int, cached: int, first_s: float, last_s: float) -> Record:
    return Record(
        call=name, session=name.split("/")[0], worker="w0", due_s=0.0, sent_s=0.0, first_s=first_s, last_s=last_s,
        prompt_tokens=prompt, cached_tokens=cached, predicted_tokens=None, output_tokens=2, status="ok", attempts=1,
    )  # fmt: skip


def test_hints_take_time_and_fill_caches_but_are_no_prompts() -> None:
    workload = Workload(name="w", seed=0, calls=(call("a" + HINT, 40), call("a", 100), call("b", 100)))
    played = [record("a" + HINT, 40, 0, 1.0, 1.0), record("a", 100, 40, 2.0, 4.0), record("b", 100, 99, 3.0, 5.0)]
    found = figures_of(workload, played, 0)
    assert (found.programs, found.calls, found.prompt_tokens, found.cached_tokens) == (2, 2, 200, 139)
    assert found.run_s == 5.0
    assert found.batch == pytest.approx(4.0 / 5.0)
    assert found.ttft_s == pytest.approx(2.5)
    assert found.optimal_tokens == 40 + 99, "a's first 40 words, all of b's but the last"
    assert found.share == 1.0


def test_runs_are_added_up_one_after_the_other() -> None:
    one = figures_of(Workload(name="w", seed=0, calls=(call("a", 100),)), [record("a", 100, 10, 1.0, 2.0)], 0)
    two = added_up([one, one, one])
    assert (two.calls, two.run_s, two.hit_rate) == (3, 6.0, one.hit_rate)
    assert two.programs_per_s == pytest.approx(one.programs_per_s)
    assert two.busiest == 1.0


def test_the_machine_is_the_papers() -> None:
    assert MACHINE.model.kv_bytes_per_token == 512 * 1024
    assert 15_000 < MACHINE.kv_tokens < 16_000, "24 GB, a tenth free, 13.5 GB of weights"
    assert SHIPPED.page_size == 1
    assert SHIPPED.scheduler().wait_max_s == 10.0
    assert FULL.scheduler().wait_max_s > 1e9


def test_variants_do_to_trees_what_they_say() -> None:
    found = {name: measure(TREES, one, 0, Stop(), quick=True) for name, one in VARIANTS.items()}
    full = found["full"]
    assert full.calls == 3 * 14
    assert 0.9 < full.share <= 1.0, "three trees fit the cache"
    for name, one in found.items():
        assert one.cached_tokens <= one.optimal_tokens == full.optimal_tokens or "hints" in name, name
        assert one.calls == full.calls, name
    assert found["no-cache"].cached_tokens == 0
    assert found["no-cache"].programs_per_s < full.programs_per_s
    assert found["table"].hit_rate == pytest.approx(full.hit_rate, abs=0.01), "each thought extends a whole entry"
    assert found["no-parallelism"].programs_per_s < full.programs_per_s
    assert found["no-parallelism"].batch < full.batch
    assert found["late-no-hints"].hit_rate < found["late"].hit_rate
    assert found["no-hints"].hit_rate == pytest.approx(full.hit_rate, abs=0.02), "siblings wait for each other anyway"


def test_a_table_knows_one_level_of_sharing() -> None:
    """A question's entry serves its choices, but the examples before it are computed again for each question."""
    choices = replace(benchmark("HellaSwag"), settings={"questions": 12})
    tree, table = (measure(choices, VARIANTS[name], 0, Stop()) for name in ("full", "table"))
    assert tree.hit_rate == pytest.approx(table.hit_rate, abs=0.02)
    assert tree.programs_per_s > 2.0 * table.programs_per_s


def test_the_same_seed_plays_the_same() -> None:
    chats = replace(benchmark("Multi-turn chat (short)"), settings={"conversations": 6, "pause": "none"}, repeats=2)
    first, again, other = (measure(chats, VARIANTS["full"], seed, Stop()) for seed in (1, 1, 5))
    assert replace(first, cpu_s=0.0) == replace(again, cpu_s=0.0) != replace(other, cpu_s=0.0)


def test_an_interrupt_ends_it() -> None:
    stop = Stop()
    stop.asked = True
    with pytest.raises(Interrupted):
        measure(TREES, VARIANTS["full"], 0, stop, quick=True)


def test_a_call_that_fails_is_no_figure() -> None:
    narrow = replace(VARIANTS["full"], worker=replace(FULL, context_max=300))
    with pytest.raises(RunFailed, match="too_long"):
        measure(TREES, narrow, 0, Stop(), quick=True)
