"""The oracle bound against brute force: no placement, order, or eviction reuses more; one cache reaches it."""

from __future__ import annotations

from functools import cache
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loadgen.shared import traces_dir
from tests.loadgen.test_reference import PATHS, trace_of
from trieway.loadgen.oracle import Use, most_kept, reuse_bound, trace_bound
from trieway.loadgen.reference import RULES, Reference
from trieway.loadgen.segments import Segments
from trieway.loadgen.traces import read_trace

Path = tuple[int, ...]
Held = frozenset[Path]
SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), min_size=1, max_size=8)


def common(one: Path, other: Path) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(SEQUENCES, st.booleans())
def test_segments_are_cut_exactly_where_sequences_part(sequences: list[Path], as_bytes: bool) -> None:
    tree = Segments()
    units = [bytes(one) if as_bytes else one for one in sequences]
    for one in units:
        tree.insert(one)
    for i, one in enumerate(units):
        mine = tree.read(one)
        assert b"".join(bytes(s.source[s.start : s.start + s.length]) for s in mine) == bytes(one)
        for j, other in enumerate(units):
            theirs = tree.read(other)
            shared = [s.length for s, t in zip(mine, theirs, strict=False) if s.number == t.number]
            assert sum(shared) == common(sequences[i], sequences[j])


def test_segments_are_few_and_cut_at_given_ends() -> None:
    tree = Segments()
    tree.insert(b"abcdef" * 1000, 6)
    tree.insert(b"abcdef" * 1000)
    tree.insert(b"abcdef" * 900 + b"x")
    assert [one.length for one in tree.read(b"abcdef" * 1000)] == [6, 5394, 600]


def subsets(items: frozenset[Path], size: int) -> list[Held]:
    return [frozenset(some) for n in range(min(size, len(items)) + 1) for some in combinations(sorted(items), n)]


def best(requests: tuple[tuple[Path, int, int], ...], workers: int, slots: int) -> int:
    """The most that can be reused by requests (all units, prompt length, reusable length) served in this order."""

    @cache
    def most(index: int, caches: tuple[Held, ...]) -> int:
        if index == len(requests):
            return 0
        units, prompt, reusable = requests[index]
        touched = frozenset(units[: depth + 1] for depth in range(len(units)))
        found = 0
        for worker in range(workers):
            held = caches[worker]
            hit = next((depth for depth in range(prompt) if units[: depth + 1] not in held), prompt)
            for kept in subsets(held | touched, slots):
                after = tuple(sorted((*caches[:worker], kept, *caches[worker + 1 :]), key=sorted))
                found = max(found, min(hit, reusable) + most(index + 1, after))
        return found

    return most(0, (frozenset(),) * workers)


@st.composite
def requests(draw: st.DrawFn, most: int) -> tuple[tuple[Path, int, int], ...]:
    found = []
    for _ in range(draw(st.integers(1, most))):
        units = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=3)))
        prompt = draw(st.integers(1, len(units)))
        found.append((units, prompt, draw(st.integers(0, prompt))))
    return tuple(found)


@settings(max_examples=60)
@given(requests(4), st.integers(1, 2), st.integers(0, 3))
def test_no_placement_beats_the_bound(asked: tuple[tuple[Path, int, int], ...], workers: int, slots: int) -> None:
    uses = [
        Use(units=units, prompt_units=prompt, start=n, end=n, reusable_units=reusable)
        for n, (units, prompt, reusable) in enumerate(asked)
    ]
    bound = reuse_bound(uses, workers * slots)
    reached = best(asked, workers, slots)
    assert reached <= bound.reuse_tokens <= bound.endless_tokens <= bound.prompt_tokens
    assert bound.prompt_tokens == sum(prompt for _, prompt, _ in asked)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple), min_size=1, max_size=5), st.integers(0, 4)
)
def test_one_cache_reaches_the_bound(prompts: list[Path], slots: int) -> None:
    uses = [Use(units=units, prompt_units=len(units), start=n, end=n) for n, units in enumerate(prompts)]
    assert reuse_bound(uses, slots).reuse_tokens == best(tuple((p, len(p), len(p)) for p in prompts), 1, slots)


@settings(max_examples=40)
@given(
    requests(4), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=4, max_size=4), st.integers(0, 3)
)
def test_no_order_within_the_windows_beats_the_bound(
    asked: tuple[tuple[Path, int, int], ...], windows: list[tuple[int, int]], slots: int
) -> None:
    uses = [
        Use(units=units, prompt_units=prompt, start=begin, end=begin + length, reusable_units=reusable)
        for (units, prompt, reusable), (begin, length) in zip(asked, windows, strict=False)
    ]
    bound = reuse_bound(uses, 2 * slots).reuse_tokens
    for order in permutations(range(len(asked))):
        now = 0.0
        for index in order:
            now = max(now, uses[index].start)
            if now > uses[index].end:
                break
        else:
            assert best(tuple(asked[index] for index in order), 2, slots) <= bound


@st.composite
def intervals(draw: st.DrawFn) -> list[tuple[float, float, float]]:
    found = []
    for _ in range(draw(st.integers(0, 7))):
        start = draw(st.integers(0, 6))
        found.append((float(start), float(start + draw(st.integers(1, 4))), 1.0))
    return found


@given(intervals(), st.integers(0, 3))
def test_giving_up_what_ends_last_keeps_the_most(every: list[tuple[float, float, float]], capacity: int) -> None:
    def fits(some: tuple[tuple[float, float, float], ...]) -> bool:
        return all(sum(a <= at < b for a, b, _ in some) <= capacity for at in range(12))

    sizes = (n for n in range(len(every), -1, -1) if any(fits(some) for some in combinations(every, n)))
    assert most_kept(every, capacity) == next(sizes)


@given(intervals(), st.integers(1, 3), st.integers(2, 5))
def test_weights_are_as_many_intervals(every: list[tuple[float, float, float]], capacity: int, weight: int) -> None:
    apart = [one for one in every for _ in range(weight)]
    together = [(start, end, float(weight)) for start, end, _ in every]
    assert most_kept(apart, capacity) == most_kept(together, capacity)


@given(PATHS, st.sampled_from(RULES), st.integers(1, 3), st.integers(0, 6), st.sampled_from([0, 5]))
def test_no_rule_of_the_calculator_beats_the_bound(
    paths: list[Path], rule: str, workers: int, slots: int, short: int
) -> None:
    trace = trace_of(paths, short)
    bound = trace_bound(trace, workers * slots * 16)
    assert Reference(trace).run(rule, workers, slots * 16).hit_share <= bound.share + 1e-12
    endless = trace_bound(trace_of(paths), None)
    assert abs(Reference(trace_of(paths)).one_cache(None) - endless.share) < 1e-12


def test_generated_text_is_reusable_though_no_prompt_brought_it() -> None:
    first = Use(units=b"ask, answer", prompt_units=4, start=0, end=1, made_end=2)
    again = Use(units=b"ask, answer, more", prompt_units=17, start=5, end=6)
    assert reuse_bound([first, again], None).reuse_tokens == 11
    assert reuse_bound([first, again], 100, unit_tokens=0.5).reuse_tokens == 5.5
    # Made twice and never asked for: nothing to reuse but the prompt.
    assert reuse_bound([first, first], None).reuse_tokens == 4


def test_the_last_token_of_a_prompt_is_computed_anyway() -> None:
    uses = [Use(units=(1, 2, 3), prompt_units=3, start=n, end=n, reusable_units=2) for n in range(4)]
    assert reuse_bound(uses, None).reuse_tokens == 6
    assert reuse_bound(uses, 2).reuse_tokens == 6
    assert reuse_bound(uses, 1).reuse_tokens == 3


def test_requests_that_overlap_need_no_cache_between_them() -> None:
    together = [Use(units=(1, 2), prompt_units=2, start=0, end=9) for _ in range(3)]
    assert reuse_bound(together, 0).reuse_tokens == 4
    apart = [Use(units=(1, 2), prompt_units=2, start=n, end=n + 0.5) for n in range(3)]
    assert reuse_bound(apart, 0).reuse_tokens == 0


def test_nothing_asked_is_nothing_reused() -> None:
    assert reuse_bound([], 5).share == 0.0


def test_the_bound_of_the_shared_traces_is_above_every_rule() -> None:
    trace = read_trace(str(traces_dir() / "mooncake_synthetic_head.jsonl.gz"))
    reference = Reference(trace)
    for size in (None, 65_536):
        bound = trace_bound(trace, None if size is None else 4 * size).share
        assert max(reference.run(rule, 4, size).hit_share for rule in RULES) <= bound
