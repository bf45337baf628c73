"""`trieway explain URL PROMPT`: each worker's predicted cost for a prompt, and the choice, as a table.

Nothing is sent to a worker. It shows what `POST /explain` tells and computes nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trieway.fleet.client import ask, connect, model_of
from trieway.fleet.console import count, table
from trieway.fleet.options import Access

COST_TERMS = (
    *("queue_ms", "prefill_ms", "reload_ms", "interference_ms", "decode_ms"),
    *("work_ms", "displaced_ms", "spread_ms", "copied_ms"),
)
"""They sum to the total; `copied` is taken off it."""
TIERS = ("device", "host", "external")
REASONS = {
    "prefix": "it holds the longest useful prefix at the least cost",
    "tie": "the costs are closer than their own error, so one of the best was drawn",
    "cold": "nobody holds the prefix, so it goes where it starts soonest",
    "load": "waiting where more is held would cost more than computing it again here",
    "only": "no other worker could take it",
}


async def fetch_explanation(access: Access, model: str | None, prompt: str, *, chat: bool) -> dict[str, Any]:
    """The answer of `POST /explain` for a completion (or, with `chat`, one user message). Raises CommandError."""
    async with connect(access.url, access.key_file) as client:
        body: dict[str, Any] = {"model": await model_of(client, model)}
        body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        found = await ask(client, "POST", "/explain", body)
    return dict(found)


def explain_text(found: Mapping[str, Any]) -> str:
    """What `POST /explain` told, to read."""
    length = f"{count(found.get('prompt_tokens'))} prompt tokens, {count(found.get('blocks'))} whole blocks"
    parts = [f"model {found.get('model', '-')}, about {length}"]
    if rows := found.get("workers"):
        parts.append(_costs(rows))
    parts.append(_verdict(found))
    return "\n\n".join(parts)


def _costs(rows: list[Mapping[str, Any]]) -> str:
    tiers = [tier for tier in TIERS if tier == "device" or any(row["matched_tokens"].get(tier) for row in rows)]
    header = ("worker", *(f"held ({tier})" for tier in tiers), "reused", "to compute")
    header += (*(term.removesuffix("_ms") for term in COST_TERMS), "total ms", "error ms", "chance")
    body = [
        (
            str(row["worker"]),
            *(_held(row, tier) for tier in tiers),
            count(row["cached_tokens"]),
            count(row["uncached_tokens"]),
            *(f"{-row[term] if term == 'copied_ms' and row[term] else row[term]:.1f}" for term in COST_TERMS),
            f"{row['cost_ms']:.1f}",
            f"{row['error_ms']:.1f}",
            f"{row['probability']:.0%}",
        )
        for row in rows
    ]
    return table(header, body)


def _held(row: Mapping[str, Any], tier: str) -> str:
    return count(row["matched_tokens"].get(tier, 0))


def _verdict(found: Mapping[str, Any]) -> str:
    choice = found.get("choice")
    if not choice:
        rejected = found.get("rejected") or {}
        return f"nobody can take it: {str(rejected.get('reason', 'no reason given')).replace('_', ' ')}"
    reason = str(choice["reason"])
    why = REASONS.get(reason, f"by the policy {reason}")
    promise = f"{count(choice['predicted_tokens'])} tokens reused, first token in {choice['predicted_ttft_ms']:.1f} ms"
    return f"goes to {choice['worker']}: {why} ({promise})"
