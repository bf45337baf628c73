"""The exact tokens of text that this worker generated, so that the same text takes the same tokens when it comes back.

Keeps true: bytes are compared exactly (a hash collision never gives a wrong token); within `bytes_max`, least
recently used go first. Does not know the tokenizer, nor where a request came from: the caller never remembers a path
whose tokens came in as ids that a text would not take.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from trieway.meta_tree.chain import Chain

RECORD_OVERHEAD_BYTES = 512
"""What a record costs beside its text and tokens: objects, index entry."""
BRANCHES_MAX = 16
"""Records kept per index entry (answers to one prompt); the oldest of them goes first."""


@dataclass(frozen=True, slots=True, eq=False)
class _Record:
    chain: Chain
    anchor: int  # hash of the last whole block before the generated text; the chain's root if there is none
    text: bytes
    tokens: array[int]
    generated_from: int  # byte

    @property
    def cost(self) -> int:
        return len(self.text) + self.tokens.itemsize * len(self.tokens) + RECORD_OVERHEAD_BYTES


class GeneratedMemory:
    """Whole token paths, by the chain hash of the last whole block before their generated text."""

    def __init__(self, bytes_max: int, token_bytes: Sequence[bytes]) -> None:
        """`token_bytes` is the model's token -> bytes table."""
        self.bytes_max = bytes_max
        self.bytes = 0
        self._table = token_bytes
        self._records: OrderedDict[_Record, None] = OrderedDict()  # least recently used first
        self._index: dict[tuple[Chain, int], list[_Record]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def remember(self, chain: Chain, text: bytes, tokens: Sequence[int], generated_from_byte: int) -> None:
        """Keeps a path: `text` is prompt + generated text as the client saw it, `tokens` its tokens from byte 0.

        Tokens past the first disagreement between their table bytes and `text` (a cut stop string, U+FFFD, a hidden
        end token) are left out; nothing is kept if no generated token remains.
        """
        path, ends = self._spell(tokens)
        kept = bisect_right(ends, _agreeing_bytes(path, text))
        del ends[kept:]
        if not ends or ends[-1] <= generated_from_byte:
            return
        text = text[: ends[-1]]
        hashes = chain.hashes(text[:generated_from_byte])
        anchor = hashes[-1] if hashes else chain.root
        record = _Record(chain, anchor, text, array("i", tokens[:kept]), generated_from_byte)
        if record.cost > self.bytes_max:
            return
        branches = self._index.setdefault((chain, anchor), [])
        for known in branches:
            if known.text == text and known.tokens == record.tokens:
                self._records.move_to_end(known)
                return
        branches.append(record)
        self._records[record] = None
        self.bytes += record.cost
        if len(branches) > BRANCHES_MAX:
            self._forget(branches[0])
        while self.bytes > self.bytes_max:
            self._forget(next(iter(self._records)))

    def recall(self, chain: Chain, hashes: Sequence[int], text: bytes) -> tuple[list[int], int]:
        """(tokens from byte 0, bytes of `text` that they cover) of the record that agrees furthest; ([], 0) if none.

        `hashes` is chain.hashes(text). Of a record that agrees in part, the tokens up to the last boundary within the
        agreeing bytes are used, if that goes into its generated text. The caller tokenises text[bytes_used:].
        """
        best: _Record | None = None
        best_tokens = best_bytes = 0
        for anchor in (chain.root, *hashes):
            for record in self._index.get((chain, anchor), ()):
                agreeing = _agreeing_bytes(record.text, text)
                if agreeing <= record.generated_from or agreeing < best_bytes:
                    continue
                tokens, used = len(record.tokens), agreeing
                if agreeing < len(record.text):
                    tokens, used = self._cut(record.tokens, agreeing)
                # On a tie the later record wins: what the worker said last is what the tree holds warm.
                if used > record.generated_from and used >= best_bytes:
                    best, best_tokens, best_bytes = record, tokens, used
        if best is None:
            return [], 0
        self._records.move_to_end(best)
        return best.tokens[:best_tokens].tolist(), best_bytes

    def clear(self) -> None:
        self._records.clear()
        self._index.clear()
        self.bytes = 0

    def _cut(self, tokens: Sequence[int], agreeing: int) -> tuple[int, int]:
        """The last token boundary within `agreeing` bytes, as (tokens, bytes)."""
        _, ends = self._spell(tokens)
        kept = bisect_right(ends, agreeing)
        return kept, ends[kept - 1] if kept else 0

    def _spell(self, tokens: Sequence[int]) -> tuple[bytes, list[int]]:
        """The tokens' bytes, and where each of them ends."""
        pieces = list(map(self._table.__getitem__, tokens))
        return b"".join(pieces), list(accumulate(map(len, pieces)))

    def _forget(self, record: _Record) -> None:
        del self._records[record]
        key = (record.chain, record.anchor)
        branches = self._index[key]
        branches.remove(record)
        if not branches:
            del self._index[key]
        self.bytes -= record.cost

    def check(self) -> None:
        """Proves the byte sum and the index; AssertionError otherwise."""
        assert self.bytes == sum(record.cost for record in self._records) <= self.bytes_max
        indexed = [record for branches in self._index.values() for record in branches]
        assert len(indexed) == len(self._records)
        assert all(record in self._records for record in indexed)
        assert all(0 < len(branches) <= BRANCHES_MAX for branches in self._index.values())
        for record in self._records:
            assert b"".join(self._table[token] for token in record.tokens) == record.text
            assert record.generated_from < len(record.text)


def _agreeing_bytes(one: bytes, other: bytes) -> int:
    """How many leading bytes are equal. O(n) in C, O(log n) steps in Python."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # one[:low] agrees, one[:high + 1] does not
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
