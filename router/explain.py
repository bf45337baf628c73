"""Why a prompt would go where: the core's explanation as the JSON of `POST /explain`.

Keeps true: nothing is dispatched, booked or inserted, and only the caller's own namespace is looked into. Holds counts
and milliseconds, never text or hashes.
"""

from __future__ import annotations

from typing import Any

from trieway.meta_tree.ids import Reject
from trieway.router.core import CostRow, Explanation, RouterCore
from trieway.router.dispatch import best_of
from trieway.router.questions import Question


def explain(core: RouterCore, question: Question, now: float) -> dict[str, Any]:
    """The choice, if any, and one row for each candidate worker of every group that serves the model."""
    explanations: list[Explanation] = []

    def ask(query: Any) -> Any:
        explanations.append(core.explain(query, now))
        return explanations[-1].decision

    found = best_of(ask, question.queries, frozenset())
    rows = [_row(row) for explanation in explanations for row in explanation.rows]
    told: dict[str, Any] = {
        "model": question.model,
        "prompt_tokens": max((explanation.prompt_tokens for explanation in explanations), default=0),
        "blocks": max((explanation.blocks for explanation in explanations), default=0),
        "choice": None,
        "rejected": None,
        "workers": sorted(rows, key=lambda row: (row["cost_ms"], row["worker"])),
    }
    if isinstance(found, Reject):
        told["rejected"] = {"reason": str(found.reason), "retry_after_s": found.retry_after_s}
    else:
        choice = found[1]
        told["choice"] = {
            "worker": choice.worker,
            "reason": choice.reason,
            "predicted_tokens": choice.predicted_tokens,
            "predicted_ttft_ms": round(choice.predicted_ttft_ms, 3),
            "available_tokens": choice.available_tokens,
        }
    return told


def _row(row: CostRow) -> dict[str, Any]:
    device, host, external = row.usable
    return {
        "worker": row.worker,
        "matched_tokens": {"device": device, "host": host, "external": external},
        "speculative_tokens": row.speculative_tokens,
        "cached_tokens": row.cached_tokens,
        "uncached_tokens": row.uncached_tokens,
        "booked_requests": row.booked,
        "queue_ms": round(row.queue_ms, 3),
        "prefill_ms": round(row.prefill_ms, 3),
        "reload_ms": round(row.reload_ms, 3),
        "interference_ms": round(row.interference_ms, 3),
        "decode_ms": round(row.decode_ms, 3),
        "work_ms": round(row.work_ms, 3),
        "displaced_ms": round(row.displaced_ms, 3),
        "spread_ms": round(row.spread_ms, 3),
        "copied_ms": round(row.copied_ms, 3),
        "ttft_ms": round(row.ttft_ms, 3),
        "cost_ms": round(row.cost_ms, 3),
        "error_ms": round(row.error_ms, 3),
        "probability": round(row.probability, 4),
    }
