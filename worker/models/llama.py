"""The Llama family: Llama, SmolLM2 and whatever else LlamaForCausalLM loads.

The forward pass is one list of rows, whatever sequences they belong to: decodes and prefill chunks go through the same
products, and only attention knows which row is whose. Three choices keep it lean: q, k and v are one product, gate and
up another; the scale of each norm lives in the weights behind it, so a norm is a length and a division; the residual
stream is float32, which is both faster than bf16 on a CPU (no conversion in the norm) and closer to the float32 model.

Keeps true: the same numbers as transformers' LlamaForCausalLM in float32 (tests/models). Does not know pages, requests
or sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from trieway.kernels.attention.paged import AttentionBackend

from .config import ModelConfig, read_config
from .linear import Linear, make_linear
from .rope import Rope
from .tensors import TensorFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """Products of one layer; norm scales are folded into `qkv` and `gate_up`."""

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


class Llama:
    """A model in memory, ready to run in `dtype` (bfloat16 or float32) on `device`."""

    def __init__(self, model_dir: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.config = read_config(model_dir)
        self.device, self.dtype = device, dtype
        config = self.config
        weights = TensorFiles(model_dir)
        shape = (config.vocabulary, config.hidden)
        table = weights.get("model.embed_tokens.weight", shape)
        self._embeddings = table.to(dtype).to(device)
        self._layers = [self._layer(weights, index) for index in range(config.layers)]
        self._norm = weights.get("model.norm.weight", (config.hidden,)).to(torch.float32).to(device)
        tied = config.tied_embeddings or "lm_head.weight" not in weights
        head = self._embeddings if tied else weights.get("lm_head.weight", shape).to(dtype).to(device)
        self._head = make_linear(head)
        self._rope = Rope(config.rope, config.head_dim, config.context_tokens, dtype, device)
        # |x| and this constant are the legs of a triangle whose hypotenuse is sqrt(hidden) * rms(x) with epsilon in it.
        self._epsilon_leg = torch.tensor(math.sqrt(config.hidden * config.norm_epsilon), device=device)

    def forward(self, ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor:
        """Hidden states [rows, hidden] float32 of token `ids` [rows] at `positions` [rows] (both int64, on `device`).

        `attention` has planned these rows; it stores their keys and values.
        """
        config = self.config
        q_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
        rows = len(ids)
        cos, sin = self._rope.at(positions)
        x = embedding(ids, self._embeddings).float()
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._unit(x))
            turned = qkv[:, : q_size + kv_size].view(rows, -1, config.head_dim)
            turned = self._rope.apply(turned, cos, sin)
            v = qkv[:, q_size + kv_size :].view(rows, config.kv_heads, config.head_dim)
            attended = attention.run(index, turned[:, : config.heads], turned[:, config.heads :], v)
            x += layer.out(attended)
            gate_up = layer.gate_up(self._unit(x))
            gate, up = gate_up[:, : config.intermediate], gate_up[:, config.intermediate :]
            x += layer.down(silu(gate).mul_(up))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary] float32 of hidden states [rows, hidden]."""
        length = self._length(hidden)
        scale = self._norm * math.sqrt(self.config.hidden)
        return self._head((hidden / length).mul_(scale).to(self.dtype)).float()

    def _length(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.hypot(length, self._epsilon_leg)

    def _unit(self, x: Tensor) -> Tensor:
        """Rows of x over their length, in the model's dtype: an RMS norm without its scale and sqrt(hidden)."""
        out = torch.empty(x.shape, dtype=self.dtype, device=self.device)
        return torch.div(x, self._length(x), out=out)

    def _layer(self, weights: TensorFiles, index: int) -> _Layer:
        config: ModelConfig = self.config
        prefix = f"model.layers.{index}"
        q_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
        qkv = weights.joined(
            tuple(f"{prefix}.self_attn.{part}_proj.weight" for part in "qkv"),
            (q_size, kv_size, kv_size),
            config.hidden,
        )
        gate_up = weights.joined(
            tuple(f"{prefix}.mlp.{part}_proj.weight" for part in ("gate", "up")),
            (config.intermediate, config.intermediate),
            config.hidden,
        )
        out = weights.get(f"{prefix}.self_attn.o_proj.weight", (config.hidden, q_size))
        down = weights.get(f"{prefix}.mlp.down_proj.weight", (config.hidden, config.intermediate))

        def scaled(matrix: Tensor, norm: str) -> Linear:
            scale = weights.get(f"{prefix}.{norm}.weight", (config.hidden,)).float() * math.sqrt(config.hidden)
            return self._ready(matrix * scale)

        return _Layer(
            qkv=scaled(qkv, "input_layernorm"),
            out=self._ready(out),
            gate_up=scaled(gate_up, "post_attention_layernorm"),
            down=self._ready(down),
        )

    def _ready(self, weight: Tensor) -> Linear:
        return make_linear(weight.to(self.dtype).to(self.device))
