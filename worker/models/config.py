"""What a Llama-family model is, read from its config.json.

Keeps true: a field that would change the arithmetic and is not built raises ModelUnsupported; it is never ignored.
Does not know weights or torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from .errors import ModelBroken, ModelUnsupported

_ARCHITECTURES = ("LlamaForCausalLM",)


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeConfig:
    """Rotary positions: base frequency, and how long contexts stretch it."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    """Tokens of context before stretching (llama3)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Shapes and constants of one model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    norm_epsilon: float
    rope: RopeConfig
    tied_embeddings: bool

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of bf16 keys and values per token, all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2


def read_config(model_dir: Path) -> ModelConfig:
    """The config of a model directory. Raises ModelBroken or ModelUnsupported."""
    raw = read_json(model_dir / "config.json")
    architectures = tuple(raw.get("architectures") or ())
    if not set(architectures) & set(_ARCHITECTURES):
        raise ModelUnsupported(
            f"{model_dir} is {' / '.join(architectures) or 'of no named architecture'}: "
            f"this worker serves {', '.join(_ARCHITECTURES)}"
        )
    for name in ("attention_bias", "mlp_bias"):
        if raw.get(name):
            raise ModelUnsupported(f"{model_dir} sets {name}: not built")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelUnsupported(f"{model_dir} uses the activation {raw['hidden_act']}: only silu is built")
    try:
        heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
        return ModelConfig(
            layers=int(raw["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(raw["intermediate_size"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // heads),
            vocabulary=int(raw["vocab_size"]),
            context_tokens=int(raw.get("max_position_embeddings", 2048)),
            norm_epsilon=float(raw.get("rms_norm_eps", 1e-6)),
            rope=_rope(model_dir, raw),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelBroken(f"{model_dir / 'config.json'} lacks or garbles a field ({error})") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model directory. Raises ModelBroken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelBroken(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelBroken(f"{path} holds no JSON object")
    return cast("dict[str, Any]", value)


def _rope(model_dir: Path, raw: Mapping[str, Any]) -> RopeConfig:
    # Newer files say rope_parameters, older ones rope_theta and rope_scaling.
    scaling = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if float(scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelUnsupported(f"{model_dir} rotates only part of each head: not built")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=float(scaling["factor"]))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_context=int(scaling["original_max_position_embeddings"]),
        )
    raise ModelUnsupported(f"{model_dir} scales its rotary positions by {kind}: default, linear and llama3 are built")
