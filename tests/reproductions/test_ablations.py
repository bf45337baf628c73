"""The ablated caches: the table against a dictionary of sequences, hits cut short, prompts stored late."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_core.support import TABLE, Engine, Holder, chain, keep, request
from trieway.loadgen.sim.ablations import AblatedWorker, TableCache
from trieway.worker.core.pool import PagePool
from trieway.worker.core.radix_check import check_cache

PLAIN = AblatedWorker(
    kv_tokens=256, page_size=1, batch_tokens_max=64, running_max=8, waiting_max=32, context_max=250, wait_max_s=1e9
)


def table(pages: int = 64, page_size: int = 1) -> TableCache:
    return TableCache(PagePool(pages, page_size))


def found(cache: TableCache, tokens: list[int], limit: int | None = None) -> int:
    return cache.match(chain(), array("i", tokens), len(tokens) if limit is None else limit).length


def test_an_entry_is_found_whole_or_not_at_all() -> None:
    cache = table()
    keep(cache, "", [1, 2, 3, 4, 5])
    assert found(cache, [1, 2, 3, 4, 5, 6]) == 5
    assert found(cache, [1, 2, 3, 4, 9]) == 0, "a part of an entry is no entry"
    assert found(cache, [1, 2, 3]) == 0
    assert found(cache, [1, 2, 3, 4, 5], limit=4) == 4, "an equal prompt computes its last token only"


def test_a_split_keeps_entries_where_they_end() -> None:
    cache = table()
    keep(cache, "", [1, 2, 3, 4, 5, 6])
    keep(cache, "", [1, 2, 3])
    keep(cache, "", [1, 2, 3, 4, 9])
    assert cache.entries == 3
    assert found(cache, [1, 2, 3, 8]) == 3
    assert found(cache, [1, 2, 3, 4, 5, 6, 7]) == 6
    assert found(cache, [1, 2, 3, 4, 9, 9]) == 5
    assert found(cache, [1, 2, 3, 4, 8]) == 3, "the fork after four tokens is nobody's end"
    check_cache(cache)


def test_an_entry_that_lost_a_page_is_none() -> None:
    cache = table(pages=8)
    keep(cache, "", [1, 2, 3, 4, 5, 6])
    keep(cache, "", [1, 2, 3])
    cache.evict(1)
    assert found(cache, [1, 2, 3, 4, 5, 6, 7]) == 3
    keep(cache, "", [1, 2, 3, 4, 5, 6, 7])
    assert found(cache, [1, 2, 3, 4, 5, 6, 8]) == 3, "what came back as a part of another entry is not found"
    cache.flush()
    assert cache.entries == 0


PATHS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=7), min_size=1, max_size=25)


@settings(max_examples=150, deadline=None)
@given(paths=PATHS, page=st.sampled_from([1, 2]), evicted=st.lists(st.integers(0, 3), min_size=25, max_size=25))
def test_against_a_dictionary_of_sequences(paths: list[list[int]], page: int, evicted: list[int]) -> None:
    """Entries are the stored sequences, less those whose last page was evicted since. Which pages go is the tree's
    business: the model is told by asking whether the page is still there."""
    cache = table(pages=40, page_size=page)
    entries: set[tuple[int, ...]] = set()
    for tokens, evict in zip(paths, evicted, strict=False):
        whole = len(tokens) // page * page
        best = max((len(one) for one in entries if tuple(tokens[: len(one)]) == one), default=0)
        assert found(cache, tokens) == best
        holder = Holder(cache, "", tokens)
        assert holder.hit == best
        holder.compute()
        holder.store()
        holder.release()
        if whole:
            entries.add(tuple(tokens[:whole]))
        cache.evict(evict)
        tree = super(TableCache, cache)
        entries = {one for one in entries if tree.match(chain(), array("i", one), len(one)).length == len(one)}
        assert cache.entries == len(entries)
        check_cache(cache)


def run(worker: AblatedWorker, prompts: list[list[int]], *, together: bool = False) -> Engine:
    engine = Engine(worker.build(TABLE, random.Random(0)))
    for number, tokens in enumerate(prompts):
        engine.add(request(f"q{number}", tokens, 3))
        if not together:
            engine.run()
    engine.run()
    engine.verify()
    return engine


FORKS = [[1, 2, 3, 4, *tail] for tail in ([5, 6, 7], [5, 6, 8], [5, 9, 9], [5, 6, 7, 1])]


def test_a_tree_finds_what_a_table_does_not() -> None:
    tree, flat = run(PLAIN, FORKS), run(replace(PLAIN, index="table"), FORKS)
    assert [tree.cached(f"q{n}") for n in range(4)] == [0, 6, 5, 7]
    assert [flat.cached(f"q{n}") for n in range(4)] == [0, 0, 0, 7]
    hinted = Engine(replace(PLAIN, index="table").build(TABLE, random.Random(0)))
    hinted.add(request("hint", [1, 2, 3, 4, 5], 0), as_hint=True)
    hinted.run()
    for number, tokens in enumerate(FORKS):
        hinted.add(request(f"q{number}", tokens, 3))
    hinted.run()
    assert [hinted.cached(f"q{n}") for n in range(4)] == [5, 5, 5, 5], "an announced prefix is an entry: one level"


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_hits_are_cut_to_a_share_of_the_prompt(share: float) -> None:
    prompt = list(range(8, 48))
    engine = run(replace(PLAIN, reuse_share=share, await_siblings=False), [prompt, prompt, [*prompt, 60, 61, 62, 63]])
    assert engine.cached("q1") == int(39 * share)
    assert engine.cached("q2") == (40 if share == 1.0 else int(43 * share))


def test_what_is_stored_late_is_nobodys_before() -> None:
    prompt = list(range(8, 48))
    late = replace(PLAIN, store_late=True, await_siblings=False)
    engine = Engine(late.build(TABLE, random.Random(0)))
    engine.add(request("first", prompt, 3))
    engine.step()
    assert engine.scheduler.stats().kv_cached == 0
    assert engine.scheduler.stats().kv_running == 41 - 1
    engine.add(request("second", prompt, 3))
    engine.run()
    assert engine.cached("second") == 0
    engine.add(request("third", prompt, 3))
    engine.run()
    assert engine.cached("third") == 39
    engine.verify()
    now = run(PLAIN, [prompt, prompt], together=True)
    assert now.cached("q1") == 39, "otherwise the second waits for the first one's prefill"


def test_settings_reach_the_scheduler() -> None:
    worker = replace(PLAIN, wait_max_s=7.0, lpm_waiting_max=9, follow_up_s=0.5, keep_warm=True, await_siblings=False)
    config = worker.scheduler()
    assert (config.wait_max_s, config.lpm_waiting_max, config.follow_up_s, config.keep_warm) == (7.0, 9, 0.5, True)
    assert config.share_tokens_min == worker.context_max
    assert PLAIN.scheduler().share_tokens_min == 32


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=30), min_size=1, max_size=10),
    index=st.sampled_from(["tree", "table"]),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    late=st.booleans(),
)
def test_no_ablation_changes_an_answer(prompts: list[list[int]], index: str, share: float, late: bool) -> None:
    """The engine refuses any page that holds another context, and compares every output with the reference."""
    worker = replace(
        PLAIN, kv_tokens=64, index=index, reuse_share=share, store_late=late, await_siblings=False,  # type: ignore[arg-type]
    )  # fmt: skip
    engine = run(worker, prompts, together=True)
    assert len(engine.ended) == len(prompts)
