"""What a cache is worth: its tokens by how lately they were used, against counting token by token."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from tests.worker_core.support import chain, hit, keep, new_cache
from trieway.worker.core.radix import RadixCache
from trieway.worker.core.worth import HALFLIFE_S, NOTE_EVERY_S, NOTES_MAX, Ages, worth_tokens

PATHS = [tuple(range(10, 30)), (*range(10, 20), 60, 61, 62), (40, 41, 42, 43), (40, 41, 50)]


def read(cache: RadixCache, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """A request that finds what there is and computes nothing; what it found."""
    receipt = cache.lock(cache.match(chain(), array("i", tokens), len(tokens)))
    cache.touch(receipt)
    cache.unlock(receipt)
    return tokens[: receipt.length]


def test_an_empty_cache_is_worth_nothing() -> None:
    assert worth_tokens(new_cache(), Ages(), 5.0) == 0.0


def test_what_was_just_used_counts_whole_and_halves_with_each_half_life() -> None:
    cache, ages = new_cache(256), Ages()
    keep(cache, "", list(PATHS[0]))
    keep(cache, "a tenant", list(PATHS[2]))
    assert worth_tokens(cache, ages, 100.0) == 24
    assert worth_tokens(cache, ages, 100.0 + HALFLIFE_S) == 12
    assert worth_tokens(cache, ages, 100.0 + 2 * HALFLIFE_S) == 6


def test_a_use_makes_the_used_part_young_again() -> None:
    cache, ages = new_cache(256), Ages()
    keep(cache, "", list(PATHS[0]))
    worth_tokens(cache, ages, 0.0)
    keep(cache, "", list(PATHS[0][:10]))
    assert worth_tokens(cache, ages, HALFLIFE_S) == 10 + 10 / 2


def test_a_look_changes_nothing_but_what_ages_know() -> None:
    cache, ages = new_cache(256), Ages()
    keep(cache, "", list(PATHS[0]))
    before = [(node.tokens, list(node.marks)) for node in cache.walk()], cache.uses, cache.version
    worth_tokens(cache, ages, 0.0)
    assert before == ([(node.tokens, list(node.marks)) for node in cache.walk()], cache.uses, cache.version)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 3 * HALFLIFE_S)), max_size=80), st.data())
def test_a_use_counts_as_at_the_first_note_after_it(steps: list[tuple[int, float]], data: st.DataObject) -> None:
    """Against a list of when each use really was."""
    ages, now, times = Ages(), 0.0, [0.0]
    ages.note(0, now)
    notes = [(0, now)]
    for uses, pause in steps:
        now += pause
        times += [now] * uses
        ages.note(len(times) - 1, now)
        if now - notes[-1][1] >= NOTE_EVERY_S:
            notes.append((len(times) - 1, now))
        ages.check()
    now += data.draw(st.floats(0, HALFLIFE_S))
    for use, true in enumerate(times):
        after = [at for count, at in notes if count >= use]
        assert ages.age_s(use, now) == (now - after[0] if after else 0.0)
        assert 0.0 <= ages.age_s(use, now) <= now - true


def test_looks_are_bounded_however_often_somebody_looks() -> None:
    ages = Ages()
    for second in range(20_000):
        ages.note(second, float(second))
    ages.check()
    assert ages.age_s(19_999, 20_000.0) <= 2 * NOTE_EVERY_S
    assert ages.age_s(0, 20_000.0) >= (NOTES_MAX - 2) * NOTE_EVERY_S, "old uses count for nothing"


@given(
    st.lists(
        st.tuples(st.sampled_from(PATHS), st.integers(1, 20), st.booleans(), st.floats(0, HALFLIFE_S)), max_size=30
    ),
    st.sampled_from([24, 40, 256]),
)
def test_against_counting_token_by_token(steps: list[tuple[tuple[int, ...], int, bool, float]], slots: int) -> None:
    """Looked at after each use, so that its time is known exactly; evictions included."""
    cache, ages, now = new_cache(slots), Ages(), 0.0
    used: dict[tuple[int, ...], float] = {}
    for path, length, reads, pause in steps:
        now += NOTE_EVERY_S + 1.0 + pause
        tokens = path[:length]
        if reads:
            tokens = read(cache, tokens)
        else:
            keep(cache, "", list(tokens))
        used |= {tokens[: end + 1]: now for end in range(len(tokens))}
        worth_tokens(cache, ages, now)
    now += HALFLIFE_S / 3
    there = {path[: end + 1] for path in PATHS for end in range(hit(cache, "", path))}
    expected = sum(2.0 ** -((now - used[prefix]) / HALFLIFE_S) for prefix in there)
    assert abs(worth_tokens(cache, ages, now) - expected) < 1e-6 * max(1.0, expected)
