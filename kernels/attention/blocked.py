"""Attention as plain matrix products: three times as fast on a CPU as torch's own, bf16 above all.

torch's CPU attention kernel keeps its scores in float32 and reaches an eighth of what bf16 products do on the same
core. Here scores are products in the model's dtype, over blocks of queries so that the masked half is hardly computed.
Decoding multiplies one block-diagonal matrix of queries with the gathered rows as they lie, all KV heads side by side:
kv_heads times the arithmetic, but no transposed copy of the cache.

Keeps true: equal to sdpa.py within the dtype's rounding (tests/kernels). Does not know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .paged import PagedKV, Span, decode_groups, padded_slots

_BLOCK_TOKENS = 128
"""Queries per block; with 9 heads and a context of 1,024 a block of scores takes 2.4 MB."""
_SCORES_MAX = 8 << 20
"""Elements of one block of scores; longer contexts take smaller blocks."""
_SMALL_GATHER = 320
"""Gathered tokens below which torch's kernel is faster: it is one call instead of five."""
_DIAGONAL_KV_HEADS_MAX = 4
"""With more KV heads the wasted arithmetic outweighs the copy saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Decode:
    """Rows [first, end), one query each; `slots` is the padded table, flattened; `bias` [sequences, 1, length]."""

    first: int
    end: int
    slots: Tensor
    length: int
    bias: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prefill:
    """Rows [first, end) of one sequence, whose tokens up to the last row are in `slots`."""

    first: int
    end: int
    slots: Tensor
    context: int


class BlockedAttention:
    """AttentionBackend for the CPU."""

    def __init__(self, kv: PagedKV, heads: int) -> None:
        assert heads % kv.kv_heads == 0
        self._kv = kv
        self._heads = heads
        self._groups = heads // kv.kv_heads
        self._scale = kv.head_dim**-0.5
        dtype = kv.keys.dtype
        # diagonal[h, j] is the scale where query head h reads KV head j, else 0.
        owners = torch.arange(kv.kv_heads).repeat_interleave(self._groups)
        diagonal = torch.nn.functional.one_hot(owners, kv.kv_heads).to(dtype) * self._scale
        self._diagonal = diagonal[:, :, None]
        future = torch.ones(_BLOCK_TOKENS, _BLOCK_TOKENS, dtype=torch.bool).triu(1)
        self._future = torch.zeros(_BLOCK_TOKENS, 1, _BLOCK_TOKENS, dtype=dtype)
        self._future.masked_fill_(future[:, None], -torch.inf)
        self._parts: list[_Decode | _Prefill] = []
        self._new = torch.empty(0, dtype=torch.int64)

    def plan(self, batch: Sequence[Span]) -> None:
        """See AttentionBackend.plan."""
        slots = [self._kv.slots(span) for span in batch]
        self._new = torch.cat([row[span.context :] for row, span in zip(slots, batch, strict=True)])
        ends = dict(decode_groups(batch))
        self._parts, row, index = [], 0, 0
        while index < len(batch):
            span, end = batch[index], ends.get(index)
            if end:
                self._parts.append(self._decode_part(slots[index:end], row))
                row += end - index
                index = end
            else:
                last = row + span.tokens
                self._parts.append(_Prefill(first=row, end=last, slots=slots[index], context=span.context))
                row = last
                index += 1

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See AttentionBackend.run."""
        self._kv.write(layer, self._new, k, v)
        keys, values = self._kv.layer(layer)
        outs: list[Tensor] = []
        for part in self._parts:
            rows = q[part.first : part.end]
            gathered_k = keys.index_select(0, part.slots)
            gathered_v = values.index_select(0, part.slots)
            if isinstance(part, _Prefill):
                outs.append(self._prefill(rows, gathered_k, gathered_v, part.context))
            elif len(part.slots) <= _SMALL_GATHER or self._kv.kv_heads > _DIAGONAL_KV_HEADS_MAX:
                outs.append(self._decode_small(rows, gathered_k, gathered_v, part))
            else:
                outs.append(self._decode(rows, gathered_k, gathered_v, part))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _decode_part(self, slots: Sequence[Tensor], row: int) -> _Decode:
        table, padding = padded_slots(slots)
        bias = None
        if padding is not None:
            bias = torch.zeros(padding.shape, dtype=self._kv.keys.dtype).masked_fill_(padding, -torch.inf)[:, None]
        return _Decode(first=row, end=row + len(slots), slots=table.flatten(), length=table.shape[1], bias=bias)

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, part: _Decode) -> Tensor:
        sequences, kv_heads, dim = len(q), self._kv.kv_heads, self._kv.head_dim
        wide = (sequences, part.length, kv_heads * dim)
        diagonal = (q[:, :, None] * self._diagonal).flatten(2)
        scores = torch.bmm(diagonal, k.view(wide).transpose(1, 2))
        if part.bias is not None:
            scores += part.bias
        mixed = torch.bmm(torch.softmax(scores, -1), v.view(wide))
        # Of every query head's [kv_heads, dim] keep the part of its own KV head.
        own = mixed.view(sequences, kv_heads, self._groups, kv_heads, dim).diagonal(dim1=1, dim2=3)
        return own.permute(0, 3, 1, 2).reshape(sequences, -1)

    def _decode_small(self, q: Tensor, k: Tensor, v: Tensor, part: _Decode) -> Tensor:
        sequences, kv_heads, dim = len(q), self._kv.kv_heads, self._kv.head_dim
        shape = (sequences, part.length, kv_heads, dim)
        # The query heads of one KV head pass as its queries: nothing is repeated.
        folded = q.view(sequences, kv_heads, self._groups, dim)
        bias = None if part.bias is None else part.bias[:, None]
        out = scaled_dot_product_attention(
            folded, k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2), attn_mask=bias
        )
        return out.flatten(1)

    def _prefill(self, q: Tensor, k: Tensor, v: Tensor, context: int) -> Tensor:
        tokens, groups, kv_heads, dim = len(q), self._groups, self._kv.kv_heads, self._kv.head_dim
        k, v = k.permute(1, 2, 0), v.transpose(0, 1)
        # Rows of one KV head: its query heads within a token, token after token.
        queries = q.view(tokens, kv_heads, groups, dim).transpose(0, 1) * self._scale
        queries = queries.reshape(kv_heads, tokens * groups, dim)
        out = torch.empty_like(queries)
        block = min(_BLOCK_TOKENS, max(16, _SCORES_MAX // (self._heads * (context + tokens))))
        for first in range(0, tokens, block):
            count = min(block, tokens - first)
            rows = slice(first * groups, (first + count) * groups)
            seen = context + first + count
            scores = torch.bmm(queries[:, rows], k[:, :, :seen])
            own = scores.view(kv_heads, count, groups, seen)[..., seen - count :]
            own += self._future[:count, :, :count]
            out[:, rows] = torch.bmm(torch.softmax(scores, -1), v[:, :seen])
        return out.view(kv_heads, tokens, groups, dim).transpose(0, 1).reshape(tokens, -1)
