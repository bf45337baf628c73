"""Rotary position embedding: angles computed once per model, applied to queries and keys together.

Keeps true: tables are made in float32 and rounded once to the model's dtype, as transformers does. Heads are in the
half-split layout: dimension i turns with i + head_dim / 2. Does not know layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each rotary pair, [head_dim / 2] float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "default":
        return frequencies
    if rope.kind == "linear":
        return frequencies / rope.factor
    # llama3: long waves are stretched by `factor`, short ones kept, those between are blended.
    wavelengths = 2 * math.pi / frequencies
    longest_kept = rope.original_context / rope.high_freq_factor
    shortest_stretched = rope.original_context / rope.low_freq_factor
    span = rope.high_freq_factor - rope.low_freq_factor
    kept_share = (rope.original_context / wavelengths - rope.low_freq_factor) / span
    blended = (1 - kept_share) * frequencies / rope.factor + kept_share * frequencies
    scaled = torch.where(wavelengths > shortest_stretched, frequencies / rope.factor, blended)
    return torch.where(wavelengths < longest_kept, frequencies, scaled)


class Rope:
    """Tables for positions 0 .. `context_tokens` - 1."""

    def __init__(
        self, rope: RopeConfig, head_dim: int, context_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        angles = torch.outer(torch.arange(context_tokens).float(), inverse_frequencies(rope, head_dim))
        cos, sin = angles.cos(), angles.sin()
        self._half = head_dim // 2
        self._cos = torch.cat((cos, cos), 1).to(dtype).to(device)
        # The sign of the rotated half lives in the table, so that applying it is a roll and two products.
        self._sin = torch.cat((-sin, sin), 1).to(dtype).to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin for `positions` [rows], each [rows, 1, head_dim]: once per step, for all layers."""
        return self._cos.index_select(0, positions)[:, None], self._sin.index_select(0, positions)[:, None]

    def apply(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [rows, heads, head_dim]."""
        return (x * cos).addcmul_(x.roll(self._half, -1), sin)
