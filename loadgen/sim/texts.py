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

_MARKS = (b"<|im_start|>", b"<|im_end|>", b"user\n", b"assistant\n", b"system\n")
_PIECE = re.compile(rb"<\|im_start\|>|<\|im_end\|>|user\n|assistant\n|system\n| ?[A-Za-z][a-z]{0,2}|[\x00-\xff]")


class Tokenizer:
    """`table[token]` is a token's bytes. Some 74,000 tokens."""

    def __init__(self) -> None:
        words = [one + two + three for one in ascii_letters for two in _TAILS for three in _TAILS if two or not three]
        pieces = [bytes([value]) for value in range(256)]
        pieces += [*_MARKS, *(word.encode() for word in words if len(word) > 1), *(f" {w}".encode() for w in words)]
        self.table: Sequence[bytes] = pieces
        self._ids = {piece: token for token, piece in enumerate(pieces)}
        assert len(self._ids) == len(pieces)

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text, cut from left to right."""
        return list(map(self._ids.__getitem__, _PIECE.findall(text)))

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of a token path."""
        return b"".join(map(self.table.__getitem__, tokens))


_TAILS = ("", *ascii_lowercase)
assert len(ascii_letters) == len(ascii_lowercase) + len(ascii_uppercase)


@cache
def tokenizer() -> Tokenizer:
    """The one tokenizer; made once, in some 30 ms."""
    return Tokenizer()
