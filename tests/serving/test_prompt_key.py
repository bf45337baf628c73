"""Keys of prompts: what is hashed, and that a key never says more than it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving.chat_template import ChatTemplate, render_prompt
from trieway.serving.errors import BadRequest
from trieway.serving.peek import Peeked, peek
from trieway.serving.prompt_key import KeySource, PromptKey, ids_key, prompt_keys, raw_messages_key

from .templates import CHATML, DATED_TOOLS

NOW = 1_767_225_599.0
VOCABULARY = [bytes([each]) for each in range(256)]
SOURCE = KeySource(template=ChatTemplate(CHATML), completion_prefix=b"<s>", vocabulary=VOCABULARY)


def completion(prompt: Any) -> Peeked:
    return peek(json.dumps({"prompt": prompt}).encode(), "completion")


def test_text_prompts_begin_with_the_completion_prefix() -> None:
    assert prompt_keys(completion(["aé", ""]), SOURCE, NOW) == [
        PromptKey(text=b"<s>a\xc3\xa9"),
        PromptKey(text=b"<s>"),
    ]


def test_token_ids_are_bytes_without_the_prefix() -> None:
    assert prompt_keys(completion([[104, 105], [33]]), SOURCE, NOW) == [
        PromptKey(text=b"hi", tokens=2),
        PromptKey(text=b"!", tokens=1),
    ]


def test_an_unknown_id_ends_the_key() -> None:
    assert ids_key([104, 256, 105], VOCABULARY) == PromptKey(text=b"h", tokens=3, complete=False)


def test_without_a_vocabulary_ids_have_an_empty_key() -> None:
    assert ids_key([104], None) == PromptKey(text=b"", tokens=1, complete=False)
    assert prompt_keys(completion([104]), KeySource(), NOW)[0].text == b""


def test_a_chat_is_rendered() -> None:
    peeked = peek(json.dumps({"messages": [{"role": "user", "content": "你好"}]}).encode(), "chat")
    (key,) = prompt_keys(peeked, SOURCE, NOW)
    assert SOURCE.template is not None
    assert key == PromptKey(text=render_prompt(peeked, SOURCE.template, NOW).encode())


def test_a_chat_that_the_template_refuses() -> None:
    peeked = peek(json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}).encode(), "chat")
    with pytest.raises(BadRequest):
        prompt_keys(peeked, SOURCE, NOW)


def test_a_template_with_a_clock_keys_on_the_time() -> None:
    source = KeySource(template=ChatTemplate(DATED_TOOLS))
    peeked = peek(b'{"messages":[{"role":"user","content":"x"}]}', "chat")
    today, tomorrow = (prompt_keys(peeked, source, at)[0].text for at in (NOW, NOW + 1))
    assert b"31 Dec 2025" in today
    assert b"01 Jan 2026" in tomorrow


def test_a_foreign_chat_keys_on_its_raw_messages_whatever_they_hold() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}], "odd": 1}]
    spaced = json.dumps({"messages": messages}, indent=3).encode()
    dense = json.dumps({"messages": messages}, separators=(",", ":")).encode()
    keys = [prompt_keys(peek(body, "chat"), KeySource(), NOW) for body in (spaced, dense)]
    assert keys[0] == keys[1] == [PromptKey(text=raw_messages_key(messages))]


texts = st.text(max_size=20)
chats = st.lists(st.fixed_dictionaries({"role": texts, "content": texts | st.none()}), min_size=1, max_size=5)


@given(messages=chats, more=chats)
def test_a_longer_chat_s_raw_key_begins_with_the_shorter_one_s(
    messages: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    key = raw_messages_key(messages)
    assert raw_messages_key(messages + more).startswith(key)
    assert len(raw_messages_key(messages + more)) > len(key)


@given(left=chats, right=chats)
def test_different_chats_have_different_raw_keys(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> None:
    # A message's fields in another order are another text: the key never parses what it keys.
    same = [list(message.items()) for message in left] == [list(message.items()) for message in right]
    assert (raw_messages_key(left) == raw_messages_key(right)) == same


@given(ids=st.lists(st.integers(0, 300), max_size=30))
def test_a_key_of_ids_is_the_longest_known_run(ids: list[int]) -> None:
    key = ids_key(ids, VOCABULARY)
    known = next((at for at, each in enumerate(ids) if each > 255), len(ids))
    assert key == PromptKey(text=bytes(ids[:known]), tokens=len(ids), complete=known == len(ids))
