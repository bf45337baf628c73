"""Paged key/value storage and the batch that an attention backend plans.

Keeps true: token i of a sequence lives in slot pages[i // page_size] * page_size + i % page_size; unused slots hold
finite numbers, so a masked read of one cannot make a NaN. Does not know who owns a page (the scheduler's pool), nor
models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The new tokens of one sequence in this step; rows of a batch are its spans, one after the other.

    `context` tokens are in the pages already; `pages` covers context + tokens.
    """

    tokens: int
    context: int
    pages: Sequence[int]


class AttentionBackend(Protocol):
    """Causal attention over paged KV. `plan` once per step, then `run` once per layer."""

    def plan(self, batch: Sequence[Span]) -> None:
        """Prepare for a step. Any order of spans is right; backends are fastest with the one-token spans first,
        longest context first."""
        ...

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k, v [rows, kv_heads, head_dim] in their slots, return attention [rows, heads * head_dim] of
        q [rows, heads, head_dim] over each row's own sequence up to itself; scores scaled by head_dim ** -0.5."""
        ...


class PagedKV:
    """Keys and values of all layers: two tensors [layers, pages * page_size, kv_heads, head_dim]."""

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        assert min(layers, pages, page_size, kv_heads, head_dim) > 0
        self.pages = pages
        self.page_size = page_size
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        shape = (layers, pages * page_size, kv_heads, head_dim)
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)
        # Views made once: slicing costs as much as a small kernel.
        self._layers = list(zip(self.keys.unbind(0), self.values.unbind(0), strict=True))

    @property
    def bytes(self) -> int:
        """Bytes of keys and values together; on the CPU the system hands them out as slots are first written."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [slots, kv_heads, head_dim]."""
        return self._layers[layer]

    def paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """The same memory as [pages, page_size, kv_heads, head_dim], the form of paged flash attention."""
        shape = (self.pages, self.page_size, self.kv_heads, self.head_dim)
        keys, values = self._layers[layer]
        return keys.view(shape), values.view(shape)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put k, v [n, kv_heads, head_dim] into `slots` [n] int64, all different."""
        keys, values = self._layers[layer]
        keys.index_copy_(0, slots, k)
        values.index_copy_(0, slots, v)

    def slots(self, span: Span) -> Tensor:
        """Slots of all tokens of a span's sequence, [context + tokens] int64 on the CPU."""
        total = span.context + span.tokens
        pages = torch.from_numpy(np.array(span.pages, dtype=np.int64))
        assert total <= len(pages) * self.page_size, "the page table is too short"
        if self.page_size == 1:
            return pages[:total]
        offsets = torch.arange(self.page_size)
        return (pages[:, None] * self.page_size + offsets).flatten()[:total]


def decode_groups(batch: Sequence[Span], waste_max: float = 0.5) -> list[tuple[int, int]]:
    """Runs [first, end) of neighbouring one-token spans that may be padded to one length.

    Within a run no context is shorter than (1 - waste_max) of the longest.
    """
    groups: list[tuple[int, int]] = []
    shortest = longest = 0
    for index, span in enumerate(batch):
        if span.tokens != 1:
            continue
        length = span.context + 1
        low, high = min(shortest, length), max(longest, length)
        if groups and groups[-1][1] == index and low >= high * (1 - waste_max):
            groups[-1] = (groups[-1][0], index + 1)
            shortest, longest = low, high
        else:
            groups.append((index, index + 1))
            shortest = longest = length
    assert all(a[1] <= b[0] for a, b in pairwise(groups))
    return groups


def padded_slots(slots: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Slots of several sequences as one [n, longest] int64 tensor, padded with 0, and where the padding is (bool of
    the same shape), or None where all are equally long."""
    longest = max(len(row) for row in slots)
    if all(len(row) == longest for row in slots):
        return torch.stack(list(slots)), None
    table = torch.nn.utils.rnn.pad_sequence(list(slots), batch_first=True)
    lengths = torch.tensor([len(row) for row in slots])
    return table, torch.arange(longest) >= lengths[:, None]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros come from the system untouched: a large pool costs no memory until it is used.
    size = torch.empty((), dtype=dtype).element_size()
    raw = np.zeros(int(np.prod(shape)) * size, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
