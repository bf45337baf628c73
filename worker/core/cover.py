"""Which 64-byte text blocks a token path covers.

Block j holds the text's bytes 64*j .. 64*(j+1) - 1. It is complete with the token that brings its last byte; `ends`
counts the tokens up to and with that one. Its `usable` counts the tokens that end at or before the block's end,
rounded down to pages: so many are reusable by a prompt that agrees up to there.
Keeps true: the blocks are a function of (chain, token path) alone, whatever the steps of `extend`. Does not know
tokenizers, nodes or who holds a block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from trieway.kernels.block_hash import BLOCK_BYTES, hash_chain
from trieway.meta_tree.chain import Chain


class Cover:
    """The blocks of one growing token path: parallel lists `hashes`, `ends`, `usable`, and `tokens` seen so far."""

    __slots__ = ("_bytes", "_chain", "_page_size", "_table", "_tail", "ends", "hashes", "limit", "tokens", "usable")

    def __init__(
        self, chain: Chain, token_bytes: Sequence[bytes], page_size: int = 1, canonical: int | None = None
    ) -> None:
        """`canonical`: only so many leading tokens are ever covered; None means all."""
        self._chain = chain
        self._table = token_bytes
        self._page_size = page_size
        self.limit = canonical
        self._bytes = 0
        self._tail = b""
        self.tokens = 0
        self.hashes: list[int] = []
        self.ends: list[int] = []
        self.usable: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Takes the next tokens of the path. O(tokens), whatever came before."""
        if self.limit is not None:
            tokens = tokens[: max(0, self.limit - self.tokens)]
        if not tokens:
            return
        pieces = [self._table[token] for token in tokens]
        byte_ends = list(accumulate(map(len, pieces), initial=self._bytes))
        data = self._tail + b"".join(pieces)
        fresh = hash_chain(data, self._chain.seed, self.parent_of(len(self.hashes)))
        boundary = len(self.hashes) * BLOCK_BYTES
        seen, page = self.tokens, self._page_size
        at = 0
        for _ in fresh:
            boundary += BLOCK_BYTES
            at = bisect_left(byte_ends, boundary, at)
            # byte_ends[at] is where `at` tokens of this call end: token number `at` completes the block.
            self.ends.append(seen + at)
            inside = at if byte_ends[at] == boundary else at - 1
            self.usable.append((seen + inside) // page * page)
        self.hashes += fresh
        self._tail = data[len(fresh) * BLOCK_BYTES :]
        self._bytes = byte_ends[-1]
        self.tokens += len(tokens)

    def parent_of(self, block: int) -> int:
        """The hash that block number `block` is chained to."""
        return self.hashes[block - 1] if block else self._chain.root
