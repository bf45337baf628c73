"""The simulated tokenizer: text and tokens are each other's inverse, and seams between words change nothing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trieway.loadgen.filler import WORDS, filler
from trieway.loadgen.sim.texts import tokenizer

CODEC = tokenizer()


@given(text=st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_tokens_give_the_text_back(text: bytes) -> None:
    tokens = CODEC.encode(text)
    assert CODEC.decode(tokens) == text
    assert all(0 <= token < len(CODEC.table) for token in tokens)


_PIECES = re.compile(rb"<\|im_(?:start|end)\|>|(?:user|assistant|system)(?=\n)| ?[A-Za-z][a-z]{0,2}|[\x00-\xff]")
_SCRAPS = (
    "<|im_start|>",
    "<|im_end|>",
    "user\n",
    " user\n",
    "system\n",
    " ",
    "<",
    " the",
    " thef",
    " Th3",
    "use",
    "r\n",
)


@given(
    scraps=st.lists(
        st.sampled_from(_SCRAPS) | st.builds(filler, st.integers(0, 9), st.integers(1, 9)) | st.text(max_size=6)
    )
)
def test_the_shortcut_for_filler_changes_no_token(scraps: list[str]) -> None:
    text = "".join(scraps).encode()
    assert [CODEC.table[token] for token in CODEC.encode(text)] == _PIECES.findall(text)


def test_a_word_of_filler_is_a_token() -> None:
    assert [len(CODEC.encode(f" {word}".encode())) for word in WORDS] == [1] * len(WORDS)
    assert len(CODEC.encode(filler(7, 1000).encode())) == 1000


@given(key=st.integers(0, 2**32 - 1), at=st.integers(0, 60))
def test_a_cut_between_words_changes_no_token(key: int, at: int) -> None:
    text = f"<|im_start|>assistant\n{filler(key, 60)}<|im_end|>\n".encode()
    cut = len(b"<|im_start|>assistant\n") + 4 * at
    assert CODEC.encode(text[:cut]) + CODEC.encode(text[cut:]) == CODEC.encode(text)


def test_a_message_takes_five_tokens_beside_its_words() -> None:
    """As with SmolLM2's own: a mark, the role, the end of its line, a mark, the end of that."""
    for role in ("system", "user", "assistant"):
        assert len(CODEC.encode(f"<|im_start|>{role}\n{filler(3, 40)}<|im_end|>\n".encode())) == 45


def test_english_takes_about_three_bytes_a_token() -> None:
    text = b"The quick brown fox jumps over the lazy dog, while international considerations matter less than usual."
    assert 2.5 < len(text) / len(CODEC.encode(text)) < 4.0


def test_one_tokenizer_serves_all() -> None:
    assert tokenizer() is CODEC
    assert len(set(CODEC.table)) == len(CODEC.table)
