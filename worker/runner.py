"""Runs planned work through the model: the place where the scheduler's values become tensors.

Keeps true: a step writes the keys and values of exactly its tokens, and reads only pages named by its work. Does not
know the cache, requests' lives, or how a token is chosen from logits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trieway.kernels.attention.blocked import BlockedAttention
from trieway.kernels.attention.paged import AttentionBackend, PagedKV, Span
from trieway.kernels.attention.sdpa import SdpaAttention

from .core.sequence import Work
from .models.errors import ModelUnsupported
from .models.llama import Llama

_DTYPES = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp32": torch.float32, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLogits:
    """Logits of one step, float32 on the model's device.

    `rows` [len(ids), vocabulary] belong to `ids`, the works that sample, in the order the works were given.
    `every` holds, for the ids asked for, all positions of their work: [len(work.tokens), vocabulary].
    """

    ids: tuple[str, ...]
    rows: Tensor
    every: Mapping[str, Tensor]


class ModelRunner:
    """A model with its paged KV. One thread at a time. Raises ModelError while loading."""

    def __init__(
        self,
        model_dir: Path,
        *,
        kv_tokens: int,
        page_size: int = 1,
        device: str = "auto",
        dtype: str = "bf16",
        attention: str = "auto",
    ) -> None:
        """`device`: auto, cpu or cuda; `dtype`: bf16 or fp32; `attention`: auto, sdpa or blocked (CPU only)."""
        self.device = pick_device(device)
        self.dtype = _DTYPES[dtype]
        started = time.monotonic()
        with torch.inference_mode():
            self._model = Llama(model_dir, self.device, self.dtype)
            config = self.config = self._model.config
            pages = kv_tokens // page_size
            self.kv = PagedKV(
                config.layers, pages, page_size, config.kv_heads, config.head_dim, self.dtype, self.device
            )
            self._attention = make_attention(attention, self.kv, config.heads)
        self.load_s = time.monotonic() - started

    def step(self, work: Sequence[Work], all_logits: AbstractSet[str] = frozenset()) -> StepLogits:
        """Compute one step. `work` must not be empty, and its pages must not change meanwhile."""
        assert work
        # Decodes first, longest context first: neighbours then share a padded gather (paged.decode_groups).
        order = sorted(range(len(work)), key=lambda i: (len(work[i].tokens) != 1, -work[i].start))
        spans = [Span(tokens=len(work[i].tokens), context=work[i].start, pages=work[i].pages) for i in order]
        firsts, total = [0] * len(work), 0
        for i in order:
            firsts[i] = total
            total += len(work[i].tokens)
        ids = [token for i in order for token in work[i].tokens]
        positions = [p for i in order for p in range(work[i].start, work[i].start + len(work[i].tokens))]
        with torch.inference_mode():
            self._attention.plan(spans)
            hidden = self._model.forward(self._tensor(ids), self._tensor(positions), self._attention)
            return self._logits(work, firsts, hidden, all_logits)

    def warm_up(self, rows: Sequence[int] = (1, 2, 64)) -> None:
        """Run dummy prompts of these lengths, so that the first request does not pay for one-time set-up.

        Overwrites the first pages: call it before any request.
        """
        capacity = self.kv.pages * self.kv.page_size
        for count in rows:
            length = min(count, capacity - 1)
            if length < 1:
                continue
            pages = range(-(-(length + 1) // self.kv.page_size))
            self.step([Work(id="", tokens=(0,) * length, start=0, pages=pages, samples=True)])
            self.step([Work(id="", tokens=(0,), start=length, pages=pages, samples=True)])

    def _logits(
        self, work: Sequence[Work], firsts: Sequence[int], hidden: Tensor, all_logits: AbstractSet[str]
    ) -> StepLogits:
        sampling = [i for i, item in enumerate(work) if item.samples]
        lasts = [firsts[i] + len(work[i].tokens) - 1 for i in sampling]
        rows = self._model.logits(hidden.index_select(0, self._tensor(lasts)))
        every = {
            item.id: self._model.logits(hidden[first : first + len(item.tokens)])
            for item, first in zip(work, firsts, strict=True)
            if item.id in all_logits
        }
        return StepLogits(ids=tuple(work[i].id for i in sampling), rows=rows, every=every)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device)


def pick_device(name: str) -> torch.device:
    """The device called auto, cpu or cuda. Raises ModelUnsupported for cuda where there is none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelUnsupported("no CUDA device is usable here: use --device cpu, or install a CUDA build of torch")
    return torch.device(name)


def make_attention(name: str, kv: PagedKV, heads: int) -> AttentionBackend:
    """The attention backend called auto, sdpa or blocked."""
    if name == "auto":
        name = "blocked" if kv.keys.device.type == "cpu" else "sdpa"
    if name == "blocked":
        return BlockedAttention(kv, heads)
    assert name == "sdpa", name
    return SdpaAttention(kv, heads)
