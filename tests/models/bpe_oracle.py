"""The packaged model's tokenizer, written a second time: straight from the GGUF file, with `regex` and plain merges.

The rules are llama.cpp's for `smollm`: literal special tokens first, then every number character alone, then GPT-2's
pattern on what is between; whitespace that the pattern leaves over stands alone. Bytes without a token are dropped.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import gguf
import regex

NUMBER = regex.compile(r"\p{N}")
WORD = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")


def printable_bytes() -> list[str]:
    """GPT-2's character for each byte."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table, spare = [""] * 256, 256
    for byte in range(256):
        if byte in shown:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(spare)
            spare += 1
    return table


class Oracle:
    """Slow and plain; agrees with nothing but the file."""

    def __init__(self, path: Path) -> None:
        fields = gguf.GGUFReader(path).fields
        tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
        kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
        merges: list[str] = fields["tokenizer.ggml.merges"].contents()
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
        by_length = sorted(self.special, key=len, reverse=True)
        self.split_special = regex.compile("(" + "|".join(regex.escape(token) for token in by_length) + ")")
        self.table = printable_bytes()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.split_special.split(text):
            if part in self.special:
                ids.append(self.ids[part])
            else:
                for piece in self.pieces(part):
                    ids.extend(self.merge(piece))
        return ids

    def pieces(self, text: str) -> list[str]:
        out: list[str] = []
        for part in cut(text, NUMBER):
            out.extend(cut(part, WORD))
        return out

    def merge(self, piece: str) -> list[int]:
        parts = [self.table[byte] for byte in piece.encode()]
        while len(parts) > 1:
            ranked = [(self.ranks.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(pairwise(parts))]
            rank, i = min(ranked)
            if rank == 1 << 30:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.ids[part] for part in parts if part in self.ids]


def cut(text: str, pattern: regex.Pattern[str]) -> list[str]:
    """Matches of `pattern` and what lies between them, in order."""
    out, end = [], 0
    for match in pattern.finditer(text):
        if match.start() > end:
            out.append(text[end : match.start()])
        out.append(match.group())
        end = match.end()
    if end < len(text):
        out.append(text[end:])
    return out
