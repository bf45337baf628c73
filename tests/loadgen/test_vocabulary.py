"""Calls, fillers and bytes: what the rest of the load generator rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.filler import KEY_MAX, WORD_BYTES, WORDS, filler
from trieway.loadgen.prompts import prompt_bytes, resolve, resolve_hint, text_of
from trieway.loadgen.vocabulary import AnswerOf, Call, Filler, Hint, Message, Text, Workload

FIRST = Call(id="a", session="s", messages=(Message("user", (Text("Hello"), Filler(7, 3))),), output_tokens=4)
SECOND = Call(
    id="b",
    session="s",
    messages=(*FIRST.messages, Message("assistant", (AnswerOf("a"),)), Message("user", (Text("And?"),))),
    after=("a",),
    think_s=1.5,
)


@given(st.integers(0, KEY_MAX - 1), st.integers(0, 200))
def test_a_filler_has_the_length_it_was_asked_for_and_grows_at_its_end(key: int, words: int) -> None:
    text = filler(key, words)
    assert len(text.encode()) == WORD_BYTES * words
    assert filler(key, words + 9).startswith(text)
    assert text.split(" ")[1:] == [text[i + 1 : i + 4] for i in range(0, len(text), 4)]


@given(st.integers(0, KEY_MAX - 1), st.integers(0, KEY_MAX - 1))
def test_fillers_of_different_keys_part_within_four_words(one: int, other: int) -> None:
    assert (filler(one, 4) == filler(other, 4)) == (one == other)


def test_neighbouring_keys_part_at_once() -> None:
    assert len({filler(key, 1) for key in range(256)}) == 256


def test_words_are_distinct_and_of_one_length() -> None:
    assert len(set(WORDS)) == len(WORDS) == 256
    assert {len(word) for word in WORDS} == {WORD_BYTES - 1}


@pytest.mark.model
def test_a_word_is_a_token_of_the_packaged_model(smollm2_dir: Path) -> None:
    from trieway.worker.tokenizer import Tokenizer

    tokenizer = Tokenizer(smollm2_dir)
    for key in (0, 1, 77_777, KEY_MAX - 1):
        assert len(tokenizer.encode(filler(key, 100))) == 100


def test_the_body_of_a_chat_quotes_the_answer() -> None:
    body = resolve(SECOND, {"a": "Hi."}, model="m")
    assert body["messages"] == [
        {"role": "user", "content": "Hello" + filler(7, 3)},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "And?"},
    ]
    assert body["max_tokens"] == 16
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_without_extensions_only_the_api_of_openai_is_used() -> None:
    call = replace(SECOND, salt="x", priority=3, seed=5, stream=False)
    body = resolve(call, {"a": ""}, model="m", extensions=False)
    assert set(body) == {"model", "messages", "max_tokens", "temperature", "seed"}
    assert {"cache_salt", "priority", "ignore_eos"} <= set(resolve(call, {"a": ""}, model="m"))


def test_an_unforced_length_is_a_bound_only() -> None:
    body = resolve(replace(FIRST, forced=False, output_tokens=4, max_tokens=9), {}, model="m")
    assert body["max_tokens"] == 9
    assert "ignore_eos" not in body


def test_prompts_of_one_conversation_extend_each_other() -> None:
    first, second = prompt_bytes(FIRST, {}), prompt_bytes(SECOND, {"a": "Hi."})
    assert second.startswith(first + b"Hi.")
    assert second.endswith(b"<|im_start|>assistant\n")


def test_a_hint_is_the_prompt_without_the_opening_of_an_answer() -> None:
    hint = Hint(session="s", messages=FIRST.messages, salt="x")
    assert prompt_bytes(FIRST, {}).startswith(prompt_bytes(hint, {}))
    assert resolve_hint(hint, model="m")["cache_salt"] == "x"
    plain = Hint(session=None, form="completion", prompt=(Text("Once"),))
    assert resolve_hint(plain, model="m") == {"model": "m", "prompt": "Once"}
    assert prompt_bytes(plain, {}) == b"Once"


def test_a_missing_answer_is_not_guessed() -> None:
    with pytest.raises(KeyError):
        text_of((AnswerOf("a"),), {})


BROKEN = {
    "two calls": (FIRST, FIRST),
    "comes later or never": (SECOND,),
    "messages belong to chat": (replace(FIRST, form="completion"),),
    "a prompt belongs": (replace(FIRST, prompt=(Text("x"),)),),
    "no output": (replace(FIRST, output_tokens=0),),
    "below output": (replace(FIRST, output_tokens=20),),
    "nothing to think about": (replace(FIRST, think_s=1.0),),
    "negative think": (FIRST, replace(SECOND, think_s=-1.0)),
    "another session": (FIRST, replace(SECOND, session="t")),
    "for which it does not wait": (FIRST, replace(SECOND, after=(), think_s=0.0)),
}


@pytest.mark.parametrize("says", BROKEN)
def test_a_broken_workload_is_named(says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        Workload(name="w", seed=0, calls=BROKEN[says]).check()


def test_a_sound_workload_passes_and_a_hint_may_not_quote() -> None:
    sound = Workload(name="w", seed=0, calls=(FIRST, SECOND))
    sound.check()
    with pytest.raises(AssertionError, match="fixed"):
        replace(sound, hint_prefixes=(Hint(session="s", messages=SECOND.messages),)).check()
