"""Gather and torch's scaled_dot_product_attention: right on any device, and the oracle of the other backends.

Keeps true: a row sees its own sequence up to and including itself, whatever pages hold it. One-token spans of similar
length share a padded gather; every other span is gathered by itself. Does not try to be fast at long context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .paged import PagedKV, Span, decode_groups, padded_slots


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Rows [first, end) of the batch: `table` [sequences, length] slots, `mask` broadcastable to
    [sequences, 1, queries, length] (True: visible) or None where every query sees all."""

    first: int
    end: int
    table: Tensor
    mask: Tensor | None


class SdpaAttention:
    """AttentionBackend on any device torch knows."""

    def __init__(self, kv: PagedKV, heads: int) -> None:
        assert heads % kv.kv_heads == 0
        self._kv = kv
        self._heads = heads
        self._device = kv.keys.device
        self._parts: list[_Part] = []
        self._new = torch.empty(0, dtype=torch.int64)

    def plan(self, batch: Sequence[Span]) -> None:
        """See AttentionBackend.plan."""
        slots = [self._kv.slots(span) for span in batch]
        self._new = torch.cat([row[span.context :] for row, span in zip(slots, batch, strict=True)]).to(self._device)
        ends = dict(decode_groups(batch))
        self._parts, row, index = [], 0, 0
        while index < len(batch):
            end = ends.get(index)
            part = self._decode(slots[index:end], row) if end else self._prefill(slots[index], batch[index], row)
            self._parts.append(part)
            row = part.end
            index = end or index + 1

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See AttentionBackend.run."""
        self._kv.write(layer, self._new, k, v)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        keys, values = self._kv.layer(layer)
        for part in self._parts:
            rows = q[part.first : part.end]
            sequences, length = part.table.shape
            shape = (sequences, length, self._kv.kv_heads, self._kv.head_dim)
            flat = part.table.flatten()
            gathered_k = keys.index_select(0, flat).view(shape).transpose(1, 2)
            gathered_v = values.index_select(0, flat).view(shape).transpose(1, 2)
            queries = rows.reshape(sequences, -1, *rows.shape[1:]).transpose(1, 2)
            attended = scaled_dot_product_attention(
                queries, gathered_k, gathered_v, attn_mask=part.mask, enable_gqa=True
            )
            out[part.first : part.end] = attended.transpose(1, 2).flatten(0, 1)
        return out.flatten(1)

    def _decode(self, slots: Sequence[Tensor], row: int) -> _Part:
        table, padding = padded_slots(slots)
        mask = None if padding is None else ~padding[:, None, None].to(self._device)
        return _Part(first=row, end=row + len(slots), table=table.to(self._device), mask=mask)

    def _prefill(self, slots: Tensor, span: Span, row: int) -> _Part:
        visible = torch.ones(span.tokens, len(slots), dtype=torch.bool, device=self._device).tril(span.context)
        table = slots[None].to(self._device)
        return _Part(first=row, end=row + span.tokens, table=table, mask=visible[None, None])
