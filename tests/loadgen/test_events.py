"""Server-sent events out of bytes, however they are cut, and what OpenAI's events say."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.client import events
from trieway.loadgen.client.events import BadAnswer, EventReader, decode_event

LINE = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=12)
FIELD = st.one_of(
    LINE.map(lambda text: f"data: {text}"),
    LINE.map(lambda text: f"data:{text}"),
    st.just(": comment"),
    st.just("event: error"),
    st.just("id: 7"),
    st.just("data"),
)
STREAM = st.lists(st.lists(FIELD, min_size=1, max_size=3), max_size=5)


def plain_reader(text: str) -> list[bytes]:
    """The standard's own description, line by line."""
    found, data = [], []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        if not line:
            if data:
                found.append("\n".join(data).encode())
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
    return found


@given(STREAM, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 200), max_size=6))
def test_events_come_out_the_same_however_they_are_cut(stream: list[list[str]], end: str, cuts: list[int]) -> None:
    text = "".join("".join(line + end for line in event) + end for event in stream)
    data = text.encode()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = EventReader()
    found = [event for a, b in pairwise(places) for event in reader.feed(data[a:b])]
    # A single CR at the very end may still be half of CR LF.
    expected = plain_reader(text)
    assert found == expected or (end == "\r" and found == expected[:-1])


def test_the_fast_way_says_what_the_slow_one_does() -> None:
    whole = b'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'
    slow, fast = EventReader(), EventReader()
    one_by_one = [event for place in range(len(whole)) for event in slow.feed(whole[place : place + 1])]
    assert fast.feed(whole) == one_by_one == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 100)
    reader = EventReader()
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(BadAnswer, match="over 100 bytes"):
        reader.feed(b"x" * 20)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"choices": [{"text": " a"}]}, (" a", True)),
        ({"choices": [{"text": ""}]}, ("", False)),
        ({"choices": [{"delta": {"content": "b"}}]}, ("b", True)),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, ("", False)),
        ({"choices": [{"delta": {"content": None}}]}, ("", False)),
        ({"choices": [{"delta": {"reasoning_content": "hm"}}]}, ("", True)),
        ({"choices": [{"message": {"role": "assistant", "content": "c"}}]}, ("c", True)),
        ({"choices": [{"index": 0, "finish_reason": "stop", "unknown": [1, {}]}]}, ("", False)),
        ({"choices": [], "usage": {"prompt_tokens": 3}}, ("", False)),
        ({}, ("", False)),
    ],
)
def test_what_an_event_says(event: dict[str, object], said: tuple[str, bool]) -> None:
    assert decode_event(json.dumps(event).encode()).said() == said


def test_usage_is_as_told_or_unknown() -> None:
    full = decode_event(b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}').usage
    assert full is not None
    assert (full.prompt_tokens, full.completion_tokens, full.cached_tokens) == (9, None, 4)
    bare = decode_event(b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": null}}').usage
    assert bare is not None
    assert bare.cached_tokens is None


@pytest.mark.parametrize(
    "data", [b"", b"no", b"[]", b'{"choices": 1}', b'{"choices": [{"text": 5}]}', b"\xff", b"{" * 50]
)
def test_what_is_no_event_is_a_bad_answer(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        decode_event(data)
