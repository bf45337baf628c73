"""A tiny vocabulary for simulated models: every byte is a token, and some pieces are longer tokens.

The text of a token path is the concatenation of its tokens' bytes, as with a byte BPE. Encoding takes the longest
piece first, so a text has exactly one path.
"""

from __future__ import annotations

PIECES = [b"the ", b"and ", b"user: ", b"system: ", b"assistant: ", b"ing ", b"river", b"lantern", b"    "]
TOKEN_BYTES: list[bytes] = [bytes([value]) for value in range(256)] + PIECES


def encode(text: bytes) -> list[int]:
    tokens: list[int] = []
    at = 0
    while at < len(text):
        for index, piece in enumerate(PIECES):
            if text.startswith(piece, at):
                tokens.append(256 + index)
                at += len(piece)
                break
        else:
            tokens.append(text[at])
            at += 1
    return tokens


def decode(tokens: list[int]) -> bytes:
    return b"".join(TOKEN_BYTES[token] for token in tokens)
