"""Messages take one form, once and for all."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving.errors import BadRequest
from trieway.serving.messages import normalise
from trieway.serving.peek import MESSAGES_MAX


def one(**message: Any) -> dict[str, Any]:
    (normal,) = normalise([{"role": "user", **message}])
    return normal


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        (["a", "b"], "a\nb"),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb"),
        ([{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "no"}], "a\nno"),
    ],
)
def test_content_becomes_text(content: Any, text: str) -> None:
    assert one(content=content) == {"role": "user", "content": text}


def test_absent_content_is_empty() -> None:
    assert one() == {"role": "user", "content": ""}


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (5, "content"),
        ({"type": "text", "text": "x"}, "content"),
        ([5], "content[0]"),
        ([{"text": "x"}], "content[0].type"),
        ([{"type": ["text"]}], "content[0].type"),
        ([{"type": "text"}], "content[0].text"),
        (["ok", {"type": "text", "text": None}], "content[1].text"),
        ([{"type": "image_url", "image_url": {"url": "x"}}], "content[0].type"),
        ([{"type": "input_audio", "input_audio": {}}], "content[0].type"),
        ([{"type": "file", "file": {}}], "content[0].type"),
    ],
)
def test_content_that_will_not_do(content: Any, where: str) -> None:
    with pytest.raises(BadRequest) as caught:
        one(content=content)
    assert caught.value.param == f"messages[0].{where}"


def test_known_fields_stay_and_others_go() -> None:
    normal = one(content="x", name="Ann", tool_call_id="1", reasoning_content="hm", refusal=None, odd=1, audio=None)
    assert normal == {"role": "user", "content": "x", "name": "Ann", "tool_call_id": "1", "reasoning_content": "hm"}


def test_an_assistant_message_as_the_openai_client_sends_it_back() -> None:
    message = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": [], "audio": None}
    message |= {"function_call": None, "tool_calls": None}
    assert normalise([message]) == [{"role": "assistant", "content": "Hi"}]


def test_tool_calls_become_objects() -> None:
    def call(arguments: object) -> list[dict[str, Any]]:
        return [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]

    for given_arguments, wanted in (('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1})):
        (normal,) = normalise([{"role": "assistant", "tool_calls": call(given_arguments)}])
        assert normal["tool_calls"][0]["function"] == {"name": "f", "arguments": wanted}
    for bad in ("{", "[1]", "5", '{"a": "\\ud800 abcdefg"}'):
        with pytest.raises(BadRequest, match="JSON object"):
            normalise([{"role": "assistant", "tool_calls": call(bad)}])
    for calls in ("x", [5], [{}], [{"function": {"name": 5}}]):
        with pytest.raises(BadRequest, match="tool_calls"):
            normalise([{"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize("role", [None, "", 5, ["user"]])
def test_a_role_is_text(role: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        normalise([{"role": "user", "content": "x"}, {"role": role, "content": "x"}])
    assert caught.value.param == "messages[1].role"


@pytest.mark.parametrize("field", ["audio", "function_call"])
def test_what_is_not_built_is_named(field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        one(content="x", **{field: {"id": "1"}})
    assert caught.value.param == f"messages[0].{field}"


@pytest.mark.parametrize("field", ["name", "tool_call_id", "reasoning", "reasoning_content"])
def test_text_fields_are_text(field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        one(content="x", **{field: 5})


def test_empty_and_too_many() -> None:
    with pytest.raises(BadRequest, match="at least one"):
        normalise([])
    with pytest.raises(BadRequest, match="more than"):
        normalise([{"role": "user", "content": ""}] * (MESSAGES_MAX + 1))


parts = st.text(max_size=5) | st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)})
calls = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": st.text(max_size=5), "arguments": st.sampled_from(["", "{}", '{"a":1}'])}
        )
    }
)
messages_strategy = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "x"])},
        optional={
            "content": st.none() | st.text(max_size=9) | st.lists(parts, max_size=3),
            "name": st.none() | st.text(max_size=5),
            "tool_calls": st.none() | st.lists(calls, max_size=2),
            "junk": st.integers(),
        },
    ),
    min_size=1,
    max_size=4,
)


@given(messages=messages_strategy)
def test_twice_is_once_and_the_input_stays(messages: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(messages)
    normal = normalise(messages)
    assert messages == before
    assert normalise(normal) == normal
    assert all(isinstance(message["content"], str) for message in normal)
