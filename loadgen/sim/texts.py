"""The tokenizer of simulated models: a word of the load generator's filler is one token, any bytes have one path.

Keeps true: the text of a token path is the concatenation of its tokens' bytes, as with a byte BPE; a cut between words
changes no token, so an answer that comes back in a prompt mostly takes the tokens it was generated as. English text
takes about one token per 2.9 bytes. Does not know any real vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from string import ascii_letters, ascii_lowercase, ascii_uppercase

_MARKS = (b"<|im_start|>", b"<|im_end|>", b"user", b"assistant", b"system")
"""A role is a token and so is the end of its line, as in the vocabularies that ChatML is used with."""
_PIECE = re.compile(rb"<\|im_(?:start|end)\|>|(?:user|assistant|system)(?=\n)| ?[A-Za-z][a-z]{0,2}|[\x00-\xff]")
_STRETCH = re.compile(rb"<[^ ]*|[^<]+")
"""What begins with `<` up to a space, and what has none: a token holds a `<` or a space at its beginning alone."""
_WORD_BYTES = 4


class Tokenizer:
    """`table[token]` is a token's bytes. Some 74,000 tokens."""

    def __init__(self) -> None:
        words = [one + two + three for one in ascii_letters for two in _TAILS for three in _TAILS if two or not three]
        pieces = [bytes([value]) for value in range(256)]
        pieces += [*_MARKS, *(word.encode() for word in words if len(word) > 1), *(f" {w}".encode() for w in words)]
        self.table: Sequence[bytes] = pieces
        self._ids = {piece: token for token, piece in enumerate(pieces)}
        assert len(self._ids) == len(pieces)
        # Filler is words of a space and three letters. As numbers they are found three times as fast as by the pattern.
        self._words = {
            memoryview(piece).cast("I")[0]: token
            for piece, token in self._ids.items()
            if len(piece) == _WORD_BYTES and piece.startswith(b" ")
        }

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text, cut from left to right."""
        found: list[int] = []
        for stretch in _STRETCH.findall(text):
            found += self._tokens(stretch)
        return found

    def _tokens(self, text: bytes) -> list[int]:
        if not text.startswith(b" "):
            return list(map(self._ids.__getitem__, _PIECE.findall(text)))
        whole = len(text) - len(text) % _WORD_BYTES
        try:
            words = list(map(self._words.__getitem__, memoryview(text)[:whole].cast("I")))
        except KeyError:  # not filler
            words, whole = [], 0
        return words + list(map(self._ids.__getitem__, _PIECE.findall(text, whole)))

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of a token path."""
        return b"".join(map(self.table.__getitem__, tokens))


_TAILS = ("", *ascii_lowercase)
assert len(ascii_letters) == len(ascii_lowercase) + len(ascii_uppercase)


@cache
def tokenizer() -> Tokenizer:
    """The one tokenizer; made once, in some 30 ms."""
    return Tokenizer()
