"""A tiny tokenizer and a tiny model for tests of the worker's shell.

The model keeps tokens instead of keys and values in its pages and reads its whole context back from them, so a wrong
page table shows as wrong text. What it says next is a function of that context alone:
`say:TEXT|` anywhere in it makes it say TEXT and end; otherwise it babbles letters drawn from a checksum.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

import torch

from trieway.worker.core.sequence import Work
from trieway.worker.runner import StepLogits

END, USER, BOT = 256, 257, 258
_WORDS = [b"th", b"he", b"the ", b"STO", b"P!", b"\xf0\x9f", b"\x98\x80", b" and", b"0\n"]
TABLE: list[bytes] = [bytes([byte]) for byte in range(256)] + [b"<|end|>", b"<|user|>", b"<|bot|>"] + _WORDS
TEMPLATE = (
    "{% for m in messages %}<|{{ 'bot' if m.role == 'assistant' else 'user' }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
_PIECES = re.compile(b"|".join(re.escape(piece) for piece in sorted(TABLE, key=len, reverse=True)), re.DOTALL)
_IDS = {piece: index for index, piece in enumerate(TABLE)}


def encode(text: str | bytes) -> list[int]:
    """Longest pieces first."""
    raw = text.encode() if isinstance(text, str) else text
    return [_IDS[piece] for piece in _PIECES.findall(raw)]


class FakeCodec:
    """Bytes and a few longer pieces; an emoji takes two tokens that split it."""

    def __init__(self, bos_text: str = "") -> None:
        self.token_bytes = TABLE
        self.special_ids = frozenset({END, USER, BOT})
        self.eos_ids = frozenset({END})
        self.bos_text = bos_text

    def encode_bytes_checked(self, text: str) -> tuple[list[int], int]:
        ids = encode(text)
        return ids, len(ids)

    def canonical_of_ids(self, ids: Sequence[int]) -> int:
        again = encode(b"".join(TABLE[token] for token in ids))
        return next((i for i, (a, b) in enumerate(zip(ids, again, strict=False)) if a != b), min(len(ids), len(again)))

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(TABLE[token] for token in ids).decode(errors="replace")


class FakeRunner:
    """`gate`: steps wait while it is closed. `fault`: raises for a step it does not like. `width` pads the logits."""

    def __init__(self, kv_tokens: int, page_size: int = 1, *, width: int = len(TABLE)) -> None:
        self.page_size = page_size
        self.slots = [-1] * kv_tokens
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fault: Callable[[Sequence[Work]], Exception | None] = lambda work: None
        self.width = width
        self.steps: list[int] = []

    def step(self, work: Sequence[Work], all_logits: AbstractSet[str] = frozenset()) -> StepLogits:
        assert work
        self.entered.set()
        assert self.gate.wait(30), "a test left the gate closed"
        fault = self.fault(work)
        if fault is not None:
            raise fault
        self.steps.append(sum(len(one.tokens) for one in work))
        contexts = {one.id: self._write(one) for one in work}
        sampling = [one for one in work if one.samples]
        rows = [self.row(contexts[one.id]) for one in sampling]
        every = {
            one.id: torch.stack([self.row(contexts[one.id][: one.start + i + 1]) for i in range(len(one.tokens))])
            for one in work
            if one.id in all_logits
        }
        stacked = torch.stack(rows) if rows else torch.zeros(0, self.width)
        return StepLogits(ids=tuple(one.id for one in sampling), rows=stacked, every=every)

    def row(self, context: Sequence[int]) -> torch.Tensor:
        """The logits after `context`: clearly one best token, and a spread of others."""
        row = torch.linspace(0, 1, self.width)
        row[len(TABLE) :] = 1000.0
        seed = zlib.crc32(b"".join(token.to_bytes(2, "little") for token in context))
        for rank in range(1, 6):
            row[97 + (seed >> rank) % 26] = 8.0 - rank
        row[next_token(context)] = 8.5
        return row

    def _write(self, work: Work) -> list[int]:
        end, size = work.start + len(work.tokens), self.page_size
        assert len(work.pages) == -(-end // size), "the page table has exactly the pages that are needed"
        slots = [work.pages[i // size] * size + i % size for i in range(end)]
        for slot, token in zip(slots[work.start :], work.tokens, strict=True):
            self.slots[slot] = token
        context = [self.slots[slot] for slot in slots]
        assert -1 not in context
        return context


def next_token(context: Sequence[int]) -> int:
    """What the model says after `context`."""
    raw = b"".join(TABLE[token] for token in context)
    told = re.match(rb".*say:([^|]*)\|", raw, re.DOTALL)
    if told is None:
        return 97 + zlib.crc32(raw) % 26
    said = raw[told.end() :]
    if BOT in context:
        said = raw.rpartition(TABLE[BOT])[2]
    plan = encode(told[1])
    spelled = b""
    for token in plan:
        if spelled == said:
            return token
        spelled += TABLE[token]
    return END


def babble(prompt: str, count: int) -> str:
    """The greedy answer to a prompt without `say:`."""
    context = encode(prompt)
    for _ in range(count):
        context.append(next_token(context))
    return b"".join(TABLE[token] for token in context[-count:]).decode()
