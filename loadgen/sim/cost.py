"""How long a worker's step takes: a roofline of a GPU and a model, or rates that `trieway calibrate` measured.

Keeps true: a step with more work never takes less time. Does not know schedulers: a step is four numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class CostModel(Protocol):
    """Where a worker's time goes."""

    @property
    def request_s(self) -> float:
        """Time of a request outside the engine's steps: it is delayed by it, the engine is free."""
        ...

    def step_s(self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int) -> float:
        """Seconds of a step with so many prompt tokens, pairs of a prompt token and one that it attends to, decodes,
        and tokens of context of all decodes together."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """The line through a calibration's points: a fixed cost per step, each prompt token at the measured rate, each
    decode its own cost and that of its context."""

    prefill_tokens_per_s: float
    prefill_step_s: float = 0.0
    decode_step_s: float = 0.0
    per_decode_s: float = 0.0
    per_context_token_s: float = 0.0
    request_s: float = 0.0

    def __post_init__(self) -> None:
        if self.prefill_tokens_per_s <= 0.0:
            raise ValueError("a prefill rate must be above 0")
        costs = (self.prefill_step_s, self.decode_step_s, self.per_decode_s, self.per_context_token_s, self.request_s)
        if min(costs) < 0.0 or self.decode_step_s + self.per_decode_s <= 0.0:
            raise ValueError("no cost may be negative, and a decode step must take time")

    def step_s(self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int) -> float:
        """See CostModel."""
        fixed = self.prefill_step_s if prefill_tokens else 0.0
        if decodes:
            fixed = max(fixed, self.decode_step_s)
        decoding = decodes * self.per_decode_s + decode_context * self.per_context_token_s
        return fixed + prefill_tokens / self.prefill_tokens_per_s + decoding


def calibrated(report: Mapping[str, Any]) -> Rates:
    """The rates in what `trieway calibrate` printed. ValueError: it is not that.

    A calibrated prompt of one answer token takes `overhead_ms` beside its tokens. Of that, as much as a decode step's
    fixed cost is the step's own; the rest (parsing, tokenising, the way there and back) leaves the engine free.
    """
    try:
        prefill, decode = report["prefill"], report["decode"]
        overhead_s = float(prefill["overhead_ms"]) / 1e3
        step_s = max(float(decode["step_ms"]) / 1e3, 0.0)
        return Rates(
            prefill_tokens_per_s=float(prefill["tokens_per_s"]),
            prefill_step_s=min(step_s, overhead_s),
            decode_step_s=step_s,
            per_decode_s=float(decode["per_sequence_ms"]) / 1e3,
            per_context_token_s=float(decode["per_context_token_us"]) / 1e6,
            request_s=max(overhead_s - step_s, 0.0),
        )
    except KeyError as error:
        raise ValueError(f"the calibration has no {error}") from None
    except TypeError:
        raise ValueError("the calibration is not what `trieway calibrate` prints") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Peak figures of a data sheet, dense bf16."""

    flops: float
    bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What a roofline needs to know of a transformer with bf16 weights and KV."""

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


GPUS = {
    "l4": Gpu(flops=121e12, bytes_per_s=300e9, memory_bytes=24e9),
    "a10g": Gpu(flops=70e12, bytes_per_s=600e9, memory_bytes=24e9),
    "a100": Gpu(flops=312e12, bytes_per_s=2.0e12, memory_bytes=80e9),
    "h100": Gpu(flops=989e12, bytes_per_s=3.35e12, memory_bytes=80e9),
    "h200": Gpu(flops=989e12, bytes_per_s=4.8e12, memory_bytes=141e9),
}
MODELS = {
    "smollm2-135m": Model(parameters=134.5e6, layers=30, heads=9, kv_heads=3, head_dim=64),
    "llama-3.2-1b": Model(parameters=1.24e9, layers=16, heads=32, kv_heads=8, head_dim=64),
    "llama-3.1-8b": Model(parameters=8.03e9, layers=32, heads=32, kv_heads=8, head_dim=128),
    "llama-3.1-70b": Model(parameters=70.6e9, layers=80, heads=64, kv_heads=8, head_dim=128),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline:
    """A step takes the longer of its arithmetic (2 operations per parameter and token, and attention) and its memory
    traffic (weights once, KV of every context once), at stated shares of the peaks, plus a fixed cost."""

    gpu: Gpu
    model: Model
    gpus: int = 1
    """Tensor parallel."""
    compute_share: float = 0.5
    memory_share: float = 0.75
    step_overhead_s: float = 0.002
    request_s: float = 0.002

    def __post_init__(self) -> None:
        if self.gpus < 1 or not 0.0 < self.compute_share <= 1.0 or not 0.0 < self.memory_share <= 1.0:
            raise ValueError("a roofline needs a GPU, and shares above 0 and up to 1")
        if self.kv_tokens < 1024:
            raise ValueError("the model does not fit: name a larger GPU or more of them")

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV that fit beside the weights, a tenth of the memory left free."""
        room = self.gpus * self.gpu.memory_bytes * 0.9 - 2 * self.model.parameters
        return int(room // self.model.kv_bytes_per_token)

    def step_s(self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int) -> float:
        """See CostModel."""
        model = self.model
        pairs = prefill_pairs + decode_context
        attention = 4.0 * pairs * model.layers * model.heads * model.head_dim
        flops = 2.0 * model.parameters * (prefill_tokens + decodes) + attention
        read = 2.0 * model.parameters + decode_context * model.kv_bytes_per_token
        compute_s = flops / (self.gpu.flops * self.gpus * self.compute_share)
        return max(compute_s, read / (self.gpu.bytes_per_s * self.gpus * self.memory_share)) + self.step_overhead_s


def roofline(gpu: str, model: str, gpus: int = 1) -> Roofline:
    """By name. ValueError: unknown, or the model does not fit."""
    if gpu not in GPUS:
        raise ValueError(f"no GPU named {gpu!r}; choose one of {', '.join(GPUS)}")
    if model not in MODELS:
        raise ValueError(f"no model named {model!r}; choose one of {', '.join(MODELS)}")
    return Roofline(gpu=GPUS[gpu], model=MODELS[model], gpus=gpus)
