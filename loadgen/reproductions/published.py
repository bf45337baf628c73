"""What the paper published: SGLang, arXiv 2312.07104 version 2 (NeurIPS 2024). Numbers alone; each says where it is.

Where the text gives a number, `error` is 0. Plots print none: then `value` is the middle of what independent readings
of the plot give, and `error` how far they lie from it. The hit rates that were read off figure 13 average to 95.6 % of
their optimum; the text says 96 %. Does not know what is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAPER = "arXiv 2312.07104"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A published figure. `error`: how far off a value read off a plot may be, in the same unit; 0: from the text."""

    value: float
    error: float = 0.0
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HitRates:
    """Shares of prompt tokens, read off figure 13."""

    achieved: float
    optimal: float
    error: float = 0.02

    @property
    def share(self) -> float:
        """Of the optimum."""
        return self.achieved / self.optimal


HIT_RATES: Mapping[str, HitRates] = {
    "MMLU": HitRates(achieved=0.85, optimal=0.85),
    "ReAct agents": HitRates(achieved=0.94, optimal=0.94),
    "Generative agents": HitRates(achieved=0.91, optimal=0.91),
    "Tree of thought": HitRates(achieved=0.98, optimal=0.99),
    "Skeleton of thought": HitRates(achieved=0.92, optimal=0.95),
    "LLM judge": HitRates(achieved=0.72, optimal=0.73),
    "HellaSwag": HitRates(achieved=0.98, optimal=0.98),
    "JSON decoding": HitRates(achieved=0.88, optimal=0.88),
    "Multi-turn chat (short)": HitRates(achieved=0.50, optimal=0.60),
    "Multi-turn chat (long)": HitRates(achieved=0.57, optimal=0.74),
    "DSPy RAG pipeline": HitRates(achieved=0.90, optimal=0.93),
}
HIT_RATE_LOW = Reading(value=0.50, where="section 6.2")
HIT_RATE_HIGH = Reading(value=0.99, where="section 6.2")
SHARE_MEAN = Reading(value=0.96, where="section 6.2: of the optimal hit rate, on average")

OVERHEAD_REQUESTS = 100
OVERHEAD_RUN_S = Reading(value=74.3, where="section 6.3: 100 requests of ShareGPT")
OVERHEAD_MANAGING_S = Reading(value=0.2, where="section 6.3")
OVERHEAD_SHARE = Reading(value=0.003, where="section 6.3: less than")

SCALING_WORKERS = 4
SCALING = "4 workers on MMLU scale linearly with an optimal hit rate (appendix A.4, no numbers)"

ABLATIONS: Mapping[str, Mapping[str, Reading]] = {
    "Tree of thought": {
        "no-cache": Reading(value=0.30, error=0.1, where="figure 8(c)"),
        "table": Reading(value=0.45, error=0.15, where="figure 8(c)"),
        "fcfs": Reading(value=0.55, error=0.3, where="figure 8(c)"),
        "random": Reading(value=0.70, error=0.15, where="figure 8(c)"),
        "no-parallelism": Reading(value=0.60, error=0.15, where="figure 8(c)"),
        "no-hints": Reading(value=0.80, error=0.1, where="figure 8(c)"),
    },
    "MMLU": {
        "no-cache": Reading(value=0.15, error=0.1, where="figure 8(c)"),
        "table": Reading(value=0.60, error=0.15, where="figure 8(c)"),
        "fcfs": Reading(value=0.85, error=0.15, where="figure 8(c)"),
        "random": Reading(value=0.70, error=0.15, where="figure 8(c)"),
        "no-parallelism": Reading(value=0.85, error=0.15, where="figure 8(c)"),
        "no-hints": Reading(value=0.90, error=0.1, where="figure 8(c)"),
    },
    "Multi-turn chat (short)": {
        "no-cache": Reading(value=0.45, error=0.1, where="figure 8(c)"),
        "table": Reading(value=0.65, error=0.15, where="figure 8(c)"),
        "fcfs": Reading(value=0.65, error=0.15, where="figure 8(c)"),
        "random": Reading(value=0.70, error=0.15, where="figure 8(c)"),
        "no-hints": Reading(value=0.85, error=0.15, where="figure 8(c)"),
    },
}
"""Throughput over that with everything on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """Figures 8(a) and 8(b), tree of thought, read off with an error of a tenth."""

    hit_rate: float
    batch: float
    tokens_per_s: float
    run_s: float
    ttft_s: float


CURVE = (
    CurvePoint(hit_rate=0.0, batch=20, tokens_per_s=400, run_s=430, ttft_s=25),
    CurvePoint(hit_rate=0.2, batch=23, tokens_per_s=450, run_s=350, ttft_s=8),
    CurvePoint(hit_rate=0.4, batch=26, tokens_per_s=500, run_s=310, ttft_s=8),
    CurvePoint(hit_rate=0.6, batch=32, tokens_per_s=650, run_s=230, ttft_s=7),
    CurvePoint(hit_rate=0.8, batch=37, tokens_per_s=850, run_s=180, ttft_s=5),
    CurvePoint(hit_rate=1.0, batch=48, tokens_per_s=1150, run_s=120, ttft_s=3),
)
