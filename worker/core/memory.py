"""The exact tokens of text that this worker generated, so that the same text takes the same tokens when it comes back.

Keeps true: bytes are compared exactly (a hash collision never gives a wrong token); within `bytes_max`, least
recently used go first. Does not know the tokenizer, nor where a request came from: the caller never remembers a path
whose tokens came in as ids that a text would not take.
"""

from __future__ import annotations

from collections.abc import Sequence

from trieway.meta_tree.chain import Chain


class GeneratedMemory:
    """Token paths by the chain hash of the last whole block before their generated text."""

    def __init__(self, bytes_max: int, token_bytes: Sequence[bytes]) -> None:
        raise NotImplementedError

    def remember(self, chain: Chain, text: bytes, tokens: Sequence[int], generated_from_byte: int) -> None:
        """Keeps the whole path: `text` is prompt + generated text as the client saw it, `tokens` its tokens from byte 0.

        Tokens past the first disagreement between their table bytes and `text` (a cut stop string, U+FFFD, a hidden
        end token) are left out; nothing is kept if no generated token remains.
        """
        raise NotImplementedError

    def recall(self, chain: Chain, hashes: Sequence[int], text: bytes) -> tuple[list[int], int]:
        """(tokens from byte 0, bytes of `text` that they cover) of the longest record that agrees; ([], 0) if none.

        `hashes` is chain.hashes(text). The caller tokenises text[bytes_used:] on its own.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Proves the byte sum and the index; AssertionError otherwise."""
        raise NotImplementedError
