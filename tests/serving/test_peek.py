"""What the router reads of a body: what it takes, what it refuses, and that it is quick."""

from __future__ import annotations

import json
import timeit
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving.errors import BadRequest
from trieway.serving.peek import MESSAGES_MAX, PROMPTS_MAX, TOKEN_ID_MAX, Kind, peek, split_prompts

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def encode(body: object) -> bytes:
    return json.dumps(body).encode()


def refusal(body: object, kind: Kind = "chat") -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        peek(body if isinstance(body, bytes) else encode(body), kind)
    return caught.value


def test_a_chat() -> None:
    extra = {"model": "m", "stream": True, "n": 2, "max_tokens": 5, "session_id": "s", "priority": -1}
    kwargs = {"cache_salt": "x", "user": "u", "chat_template_kwargs": {"a": [1]}, "add_generation_prompt": False}
    peeked = peek(encode({**HELLO, **extra, **kwargs}), "chat")
    assert peeked.is_chat
    assert peeked.messages == HELLO["messages"]
    assert {name: getattr(peeked, name) for name in extra} == extra
    assert {name: getattr(peeked, name) for name in kwargs} == kwargs
    assert peeked.prompts == []
    assert peeked.answer_tokens_max == 5
    assert not peeked.echo_logprobs


def test_nulls_are_absent() -> None:
    names = ("model", "stream", "n", "max_tokens", "session_id", "priority", "cache_salt", "user")
    peeked = peek(encode({**HELLO, **dict.fromkeys(names)}), "chat")
    assert all(getattr(peeked, name) is None for name in names)
    assert peeked.answer_tokens_max is None


def test_max_completion_tokens_wins() -> None:
    assert peek(encode({**HELLO, "max_tokens": 5, "max_completion_tokens": 7}), "chat").answer_tokens_max == 7


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ["text"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([TOKEN_ID_MAX], [[TOKEN_ID_MAX]]),
    ],
)
def test_every_form_of_prompt(prompt: Any, prompts: list[Any]) -> None:
    peeked = peek(encode({"prompt": prompt}), "completion")
    assert peeked.prompts == prompts
    assert not peeked.is_chat


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], [[1], []], ["a", 1], [1, "a"], [[1], "a"], [1, [1]], [-1], [2**31], [True], [1.5], 5, {}, [["a"]], None],
)
def test_prompts_that_make_no_sense(prompt: Any) -> None:
    assert (refusal({"prompt": prompt}, "completion").param or "").startswith("prompt")


def test_bounds_on_counts() -> None:
    assert refusal({"messages": HELLO["messages"] * (MESSAGES_MAX + 1)}).param == "messages"
    assert refusal({"prompt": ["a"] * (PROMPTS_MAX + 1)}, "completion").param == "prompt"
    assert len(peek(encode({"prompt": [1] * (PROMPTS_MAX + 1)}), "completion").prompts) == 1


@pytest.mark.parametrize(
    ("body", "echo_logprobs"),
    [
        ({"echo": True, "logprobs": 0}, True),
        ({"echo": True, "logprobs": 5}, True),
        ({"echo": True}, False),
        ({"logprobs": 5}, False),
        ({"echo": False, "logprobs": 1}, False),
        ({"echo": True, "logprobs": False}, False),
    ],
)
def test_echo_with_logprobs(body: dict[str, Any], echo_logprobs: bool) -> None:
    assert peek(encode({"prompt": "x", **body}), "completion").echo_logprobs is echo_logprobs


def test_unknown_fields_and_the_other_kind_s_fields_are_never_judged() -> None:
    strange = {"tools": [{"a": 1}], "nested": {"deep": [[[{}]]]}, "prompt": 5, "logprobs": "yes", "echo": 1}
    assert peek(encode({**HELLO, **strange}), "chat").prompt is None
    other = {"messages": "no", "chat_template_kwargs": 1, "add_generation_prompt": "x", "logit_bias": {"1": 2}}
    peeked = peek(encode({"prompt": "x", **other}), "completion")
    assert peeked.messages is None
    assert peeked.chat_template_kwargs is None


def test_messages_keep_whatever_they_hold() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}], "odd": [1, None]}]
    assert peek(encode({"messages": messages}), "chat").messages == messages


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 5),
        ("messages", "x"),
        ("messages", [5]),
        ("messages", {}),
        ("stream", "yes"),
        ("n", "2"),
        ("n", 1.5),
        ("max_tokens", []),
        ("session_id", 5),
        ("priority", "high"),
        ("cache_salt", 1),
        ("chat_template_kwargs", []),
    ],
)
def test_wrong_types_are_named(field: str, value: Any) -> None:
    error = refusal({**HELLO, field: value})
    assert (error.param or "").startswith(field)
    assert error.message.startswith(field)
    assert error.code == "invalid_type"


@pytest.mark.parametrize("body", [{}, {"messages": None}, {"messages": []}])
def test_no_messages(body: dict[str, Any]) -> None:
    error = refusal(body)
    assert error.param == "messages"
    assert error.code == "missing_required_parameter"


MALFORMED = {
    "empty": b"",
    "open": b'{"messages": [',
    "not an object": b"[]",
    "trailing": b'{"messages":[{"role":"user"}]} x',
    "nan": b'{"messages":[{"role":"user","content":NaN}]}',
    "control character": b'{"messages":[{"role":"user","content":"a\nb"}]}',
    "byte order mark": b"\xef\xbb\xbf" + encode(HELLO),
    "utf-16": json.dumps(HELLO).encode("utf-16"),
    "invalid utf-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "invalid utf-8 in an unknown field": b'{"zzz":"\xff","messages":[{"role":"user","content":"x"}]}',
    "overlong utf-8": b'{"messages":[{"role":"user","content":"\xc0\x80"}]}',
    "surrogate as utf-8": b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
    "lone surrogate": b'{"messages":[{"role":"user","content":"\\ud800 and more text"}]}',
    "low surrogate": b'{"messages":[{"role":"user","content":"\\udc00 and more text"}]}',
    "swapped surrogates": b'{"messages":[{"role":"user","content":"\\udc00\\ud800 and more"}]}',
    "surrogate in a key": b'{"messages":[{"role":"user","\\ud800abcdefgh":"x"}]}',
    "surrogate in the prompt's salt": b'{"cache_salt":"\\ud800abcdefgh","messages":[{"role":"user"}]}',
    "too deep": b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "too deep elsewhere": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bodies(body: bytes) -> None:
    error = refusal(body)
    assert error.status == 400
    assert len(error.message) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(["model", "messages", "prompt", "n", "stream", "priority", "echo", "logprobs", "user", "odd"])


@given(body=st.dictionaries(fields, json_values, max_size=6), kind=st.sampled_from(["chat", "completion"]))
def test_any_json_is_taken_or_refused_properly(body: dict[str, Any], kind: Kind) -> None:
    try:
        peeked = peek(json.dumps(body).encode("utf-8", "surrogatepass"), kind)
    except BadRequest:
        return
    assert peeked.is_chat == (kind == "chat")
    assert bool(peeked.prompts) != peeked.is_chat


@given(body=st.binary(max_size=200))
def test_any_bytes_are_refused_properly(body: bytes) -> None:
    with pytest.raises(BadRequest):
        peek(body, "chat")


@given(ids=st.lists(st.integers(0, TOKEN_ID_MAX), min_size=1, max_size=50))
def test_token_ids_come_back_as_they_are(ids: list[int]) -> None:
    assert split_prompts([*ids]) == [ids]


@pytest.mark.parametrize(("content_chars", "microseconds_max"), [(100, 60), (16_000, 300)])
def test_a_peek_is_cheap(content_chars: int, microseconds_max: float) -> None:
    """0.5 us at 200 B and 6 us at 16 KB on a quiet core; the bounds leave room for a busy one."""
    messages = [{"role": "user", "content": "x" * (content_chars // 4)}] * 4
    body = encode({"model": "m", "messages": messages, "stream": True, "temperature": 0.5})
    best = min(timeit.repeat(lambda: peek(body, "chat"), number=200, repeat=5)) / 200
    assert best * 1e6 < microseconds_max
