"""How long a worker's step takes: a roofline of a GPU and a model, or rates that `trieway calibrate` measured.

Keeps true: a step with more work never takes less time. Does not know schedulers: a step is six numbers, and how many
of the workers on the same machine compute at its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

CALIBRATION_VERSION = 2
RATE_MAX_TOKENS_PER_S = 1e9
"""Where prompts took no time that could be measured."""


class CostModel(Protocol):
    """Where a worker's time goes."""

    @property
    def request_s(self) -> float:
        """Time of a request outside the engine's steps: it is delayed by it, the engine is free."""
        ...

    @property
    def machine(self) -> int:
        """Workers that share one machine and slow each other down; 1: each has its own."""
        ...

    def step_s(
        self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int, prefill_context: int = 0,
        requests: int = 0, busy: float = 0.0,
    ) -> float:  # fmt: skip
        """Seconds of a step.

        Of its prompts: tokens to compute, pairs of such a token and one that it attends to, tokens that were there
        already. Of its decodes: how many, and their context in all. `requests`: came in since the last step. `busy`:
        share of the neighbours that compute, 0 to 1.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """A step's time as a sum: a fixed cost, and each kind of work at its measured rate."""

    prefill_tokens_per_s: float
    prefill_step_s: float = 0.0
    decode_step_s: float = 0.0
    per_decode_s: float = 0.0
    per_context_token_s: float = 0.0
    """Of decodes."""
    per_pair_s: float = 0.0
    per_prefill_context_s: float = 0.0
    per_request_s: float = 0.0
    """What reading, tokenising and answering a request takes away from the engine."""
    request_s: float = 0.0

    def __post_init__(self) -> None:
        if self.prefill_tokens_per_s <= 0.0:
            raise ValueError("a prefill rate must be above 0")
        costs = (
            *(self.prefill_step_s, self.decode_step_s, self.per_decode_s, self.per_context_token_s, self.request_s),
            *(self.per_pair_s, self.per_prefill_context_s, self.per_request_s),
        )
        if min(costs) < 0.0 or self.decode_step_s + self.per_decode_s <= 0.0:
            raise ValueError("no cost may be negative, and a decode step must take time")

    @property
    def machine(self) -> int:
        """See CostModel."""
        return 1

    def step_s(
        self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int, prefill_context: int = 0,
        requests: int = 0, busy: float = 0.0,
    ) -> float:  # fmt: skip
        """See CostModel."""
        seconds = (
            decodes * self.per_decode_s + decode_context * self.per_context_token_s + requests * self.per_request_s
        )
        if not prefill_tokens:
            return seconds + self.decode_step_s if decodes else seconds
        fixed = max(self.prefill_step_s, self.decode_step_s) if decodes else self.prefill_step_s
        seconds += prefill_tokens / self.prefill_tokens_per_s + prefill_pairs * self.per_pair_s
        return fixed + seconds + prefill_context * self.per_prefill_context_s


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedMachine:
    """Workers that share cores, caches or memory: as fast as `alone` while the neighbours rest, as `together` while
    all compute, and on the straight line between while some do."""

    alone: Rates
    together: Rates
    machine: int
    request_s: float = 0.0

    def __post_init__(self) -> None:
        if self.machine < 2 or self.request_s < 0.0:
            raise ValueError("a shared machine has two workers and more, and no cost is negative")

    def step_s(
        self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int, prefill_context: int = 0,
        requests: int = 0, busy: float = 0.0,
    ) -> float:  # fmt: skip
        """See CostModel."""
        work = (prefill_tokens, prefill_pairs, decodes, decode_context, prefill_context, requests)
        alone_s = self.alone.step_s(*work)
        return alone_s + busy * (self.together.step_s(*work) - alone_s) if busy else alone_s


def calibrated(report: Mapping[str, Any]) -> Rates | SharedMachine:
    """The rates in what `trieway calibrate` printed. ValueError: it is not that."""
    try:
        version = report["version"]
        if version != CALIBRATION_VERSION:
            raise ValueError(
                f"the calibration is of version {version}, not {CALIBRATION_VERSION}: measure again with this release"
            )
        request_s = float(report["latency_ms"]) / 1e3
        alone = _rates(report["alone"], request_s)
        if report["together"] is None:
            return alone
        together = _rates(report["together"], request_s)
        return SharedMachine(alone=alone, together=together, machine=int(report["workers"]), request_s=request_s)
    except KeyError as error:
        raise ValueError(f"the calibration has no {error}") from None
    except TypeError:
        raise ValueError("the calibration is not what `trieway calibrate` prints") from None


def _rates(told: Mapping[str, Any], request_s: float) -> Rates:
    step_s, token_s = float(told["step_ms"]) / 1e3, float(told["prefill_token_us"]) / 1e6
    return Rates(
        prefill_tokens_per_s=1.0 / token_s if token_s else RATE_MAX_TOKENS_PER_S,
        prefill_step_s=step_s,
        decode_step_s=step_s,
        per_decode_s=float(told["decode_us"]) / 1e6,
        per_context_token_s=float(told["decode_context_us"]) / 1e6,
        per_pair_s=float(told["prefill_pair_ns"]) / 1e9,
        per_prefill_context_s=float(told["prefill_context_us"]) / 1e6,
        per_request_s=float(told["request_us"]) / 1e6,
        request_s=request_s,
    )


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

    @property
    def machine(self) -> int:
        """See CostModel."""
        return 1

    def step_s(
        self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int, prefill_context: int = 0,
        requests: int = 0, busy: float = 0.0,
    ) -> float:  # fmt: skip
        """See CostModel. Prompts' old tokens and requests as such cost nothing of note."""
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
