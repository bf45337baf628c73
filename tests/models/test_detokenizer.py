"""Incremental text and stop strings, each against its whole-text definition."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trieway.worker.detokenizer import Detokenizer, StopMatcher

pieces = st.lists(st.binary(min_size=1, max_size=3), max_size=12)
utf8_cuts = st.tuples(st.text(max_size=20), st.lists(st.integers(0, 60), max_size=6))


def push_all(parts: list[bytes], skip: frozenset[int] = frozenset()) -> list[str]:
    made = Detokenizer(parts, skip)
    return [*(made.push(index) for index in range(len(parts))), made.finish()]


@given(pieces)
@example([b"\xf0\x9f", b"\x99\x82"])
@example([b"\xe4", b"a"])
def test_the_pieces_are_the_bytes_decoded_at_once(parts: list[bytes]) -> None:
    assert "".join(push_all(parts)) == b"".join(parts).decode("utf-8", errors="replace")


@given(utf8_cuts)
def test_good_text_never_shows_a_replacement(case: tuple[str, list[int]]) -> None:
    text = case[0].replace("\ufffd", "")
    data = text.encode()
    places = sorted({0, len(data), *(place for place in case[1] if place < len(data))})
    parts = [data[a:b] for a, b in pairwise(places)]
    shown = push_all(parts)
    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)
    assert shown[-1] == ""


@given(utf8_cuts, st.integers(1, 3))
def test_only_the_end_shows_a_character_cut_short(case: tuple[str, list[int]], missing: int) -> None:
    data = case[0].replace("\ufffd", "").encode() + "🙂".encode()[:-missing]
    shown = push_all([data[i : i + 1] for i in range(len(data))])
    assert "\ufffd" not in "".join(shown[:-1])
    assert shown[-1] == "\ufffd"


def test_skipped_ids_leave_no_text_even_within_a_character() -> None:
    parts = ["é".encode()[:1], b"<|end|>", "é".encode()[1:]]
    assert push_all(parts, frozenset([1])) == ["", "", "é", ""]


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the stop that is complete first; of several complete at once, the longest."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end - len(stop)], stop
    return text, None


letters = st.text("ab.", max_size=14)


@given(letters, st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3), st.lists(st.integers(0, 14), max_size=5))
@example("abc", ["abc", "b"], [])
def test_stops_do_not_depend_on_how_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown, stop, wanted = "", None, first_stop(text, stops)
    for a, b in pairwise(places):
        got = matcher.push(text[a:b])
        shown, stop = shown + got.text, got.stop
        assert wanted[0].startswith(shown)
        assert len(matcher.held) < max((len(stop) for stop in stops), default=1)
        if stop:
            break
    if stop is None:
        shown += matcher.finish()
    assert (shown, stop) == wanted


def test_a_partial_match_is_held_until_it_is_decided() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello\n").text == "Hello"
    assert matcher.push("\nUs").text == ""
    assert matcher.push("ed cars").text == "\n\nUsed cars"
    assert matcher.push("\n").text == ""
    assert matcher.finish() == "\n"
    assert matcher.finish() == ""


def test_without_stops_text_passes_at_once() -> None:
    matcher = StopMatcher([])
    assert matcher.push("any").text == "any"
    assert matcher.held == ""


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
    matcher = StopMatcher(["a"])
    assert matcher.push("ba").stop == "a"
    with pytest.raises(AssertionError):
        matcher.push("b")
