"""From texts and ids to token paths, and back again through what was generated."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.ids import Namespace
from trieway.serving.errors import BadRequest
from trieway.worker.core.memory import GeneratedMemory
from trieway.worker.prompts import CHAINS_MAX, INLINE_TEXT_BYTES_MAX, Prompt, Prompts

from .fakes import TABLE, FakeCodec, encode

KEY = FleetKey.from_secret(None)


def new(*, memory: bool = True, context_tokens: int = 1000) -> Prompts:
    kept = GeneratedMemory(1 << 20, TABLE) if memory else None
    return Prompts(FakeCodec(), KEY, kept, context_tokens=context_tokens)


def read(prompts: Prompts, text: str, namespace: Namespace | None = None) -> Prompt:
    return asyncio.run(prompts.from_text(text, prompts.chain(namespace or Namespace())))


def spelled(tokens: tuple[int, ...]) -> bytes:
    return b"".join(TABLE[token] for token in tokens)


def test_a_text_takes_the_tokenizers_path() -> None:
    prompt = read(new(), "the text")
    assert prompt.tokens == tuple(encode("the text"))
    assert prompt.canonical == len(prompt.tokens)
    assert prompt.text == b"the text"
    assert prompt.shown == "the text"


def test_a_long_text_takes_the_same_path_on_another_thread() -> None:
    text = "the " * INLINE_TEXT_BYTES_MAX
    prompts = new(context_tokens=100_000)
    assert read(prompts, text).tokens == tuple(encode(text))
    ids = [*encode(text), ord("t"), ord("h")]
    assert asyncio.run(prompts.from_ids(ids, prompts.chain(Namespace()))).canonical == len(ids) - 2


def test_generated_text_comes_back_as_its_own_tokens() -> None:
    prompts = new()
    first = read(prompts, "say it: ")
    letters = [ord(char) for char in "the he "]
    assert letters != encode("the he ")
    prompts.remember(first, "the he ", letters)
    again = read(prompts, "say it: the he and on")
    assert again.tokens == (*first.tokens, *letters, *encode("and on"))
    assert again.canonical == len(again.tokens)
    other = read(prompts, "say it: the he and on", Namespace(salt="other"))
    assert other.tokens == tuple(encode("say it: the he and on")), "another namespace remembers nothing of it"
    assert read(new(memory=False), "say it: the he ").tokens == tuple(encode("say it: the he "))


@pytest.mark.parametrize("cut", range(1, 8))
def test_what_is_taken_never_ends_inside_a_character(cut: int) -> None:
    """The model said an emoji in single bytes; the text that comes back has another one in its place."""
    prompts = new()
    first = read(prompts, "x: ")
    prompts.remember(first, "a😀b", list("a😀b".encode()))
    text = "x: a😁b"[: 3 + cut]
    assert spelled(read(prompts, text).tokens) == text.encode()


def test_a_path_after_unusual_ids_is_not_remembered() -> None:
    prompts = new()
    ids = [ord(char) for char in "the "]
    odd = asyncio.run(prompts.from_ids(ids, prompts.chain(Namespace())))
    assert odd.canonical < len(ids)
    prompts.remember(odd, "he", [ord("h"), ord("e")])
    assert read(prompts, "the he").tokens == tuple(encode("the he"))
    usual = asyncio.run(prompts.from_ids(encode("the "), prompts.chain(Namespace())))
    assert (usual.canonical, usual.shown) == (1, "the ")
    prompts.remember(usual, "he", [ord("h"), ord("e")])
    assert read(prompts, "the he").tokens == (*encode("the "), ord("h"), ord("e"))


@given(st.text(max_size=40), st.text(max_size=20), st.data())
def test_any_path_spells_its_text(prompt: str, answer: str, data: st.DataObject) -> None:
    prompts = new()
    first = read(prompts, prompt + "x")
    prompts.remember(first, answer, list(answer.encode()))
    cut = data.draw(st.integers(0, len(answer)))
    text = prompt + "x" + answer[:cut] + data.draw(st.text(max_size=10))
    again = read(prompts, text)
    assert spelled(again.tokens) == text.encode()


@pytest.mark.parametrize("ids", [[], [-1], [len(TABLE)], [1, 2, 10**9], [1] * 1001])
def test_unusable_ids(ids: list[int]) -> None:
    prompts = new()
    with pytest.raises(BadRequest) as refused:
        asyncio.run(prompts.from_ids(ids, prompts.chain(Namespace())))
    assert refused.value.param == "prompt"


def test_the_first_token_of_the_tokenizers_own_is_key_but_not_shown() -> None:
    prompts = new()
    prompt = asyncio.run(prompts.from_text("hi", prompts.chain(Namespace()), prefix="<|bot|>"))
    assert (prompt.text, prompt.shown) == (b"<|bot|>hi", "hi")
    assert asyncio.run(prompts.from_text("", prompts.chain(Namespace()), prefix="<|bot|>")).tokens == (258,)


def test_a_surely_too_long_text_is_not_tokenised() -> None:
    prompts = new(context_tokens=4)
    with pytest.raises(BadRequest) as refused:
        read(prompts, "x" * (4 * max(map(len, TABLE)) + 1))
    assert refused.value.code == "context_length_exceeded"


def test_chains_are_bounded() -> None:
    prompts = new()
    first = prompts.chain(Namespace(salt="0"))
    for salt in range(CHAINS_MAX + 10):
        prompts.chain(Namespace(salt=str(salt)))
    assert len(prompts._chains) == CHAINS_MAX
    assert prompts.chain(Namespace(salt="0")) == first
