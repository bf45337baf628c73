"""What the control plane shows of workers, models, tree and readiness, as JSON values.

Keeps true: hashes and counts only, never text; workers that have not been reached yet are shown and counted too. Does
not know who may see it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trieway.router.core import Readiness, RouterCore, WorkerRow, WorkerState
from trieway.router.links import Link, Links


def workers(core: RouterCore, links: Links, now: float) -> list[dict[str, Any]]:
    """One row for each worker of the registry, those never reached included."""
    rows = {row.worker: row for row in core.workers(now)}
    return [_worker(link, rows.get(link.worker)) for link in links]


def _worker(link: Link, row: WorkerRow | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": link.worker,
        "url": link.url,
        "kind": "trieway" if link.fleet else "foreign",
        "link": link.state.value,
        "note": link.note,
        "model": link.model,
        "aliases": list(link.aliases),
        "group": link.group,
        "requests": len(link.leases),
    }
    if row is None:
        return told | {"state": "draining" if link.draining else "unknown", "booked": 0, "blocks": 0}
    return told | {
        "state": row.state.value,
        "synced": row.synced,
        "approximate": row.approximate,
        "epoch": row.epoch,
        "number": row.number,
        "lag_events": row.lag_events,
        "gaps": row.gaps,
        "resyncs": row.resyncs,
        "drift_blocks": row.drift_blocks,
        "blocks": row.blocks,
        "booked": row.booked,
        "booked_tokens": row.booked_tokens,
        "pending_tokens": row.pending_tokens,
        "prefill_tokens_per_s": round(row.prefill_tokens_per_s, 1),
        "overhead_ms": round(row.overhead_ms, 3),
        "breaker": row.breaker,
        "errors": row.errors,
        "load": None if row.load is None else _load(row),
    }


def _load(row: WorkerRow) -> dict[str, Any]:
    load = row.load
    assert load is not None
    return {
        "age_s": None if row.load_age_s is None else round(row.load_age_s, 3),
        "running": load.running,
        "waiting": load.waiting,
        "waiting_tokens": load.waiting_tokens,
        "running_tokens": load.running_tokens,
        "kv_free_tokens": load.kv_free_tokens,
        "kv_cached_tokens": load.kv_cached_tokens,
        "kv_total_tokens": load.kv_total_tokens,
        "draining": load.draining,
    }


def models(links: Links) -> dict[str, Any]:
    """The body of `GET /v1/models`."""
    listed = []
    for name, link in sorted(links.models().items()):
        entry: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "trieway"}
        if link.card is not None:
            entry["max_model_len"] = link.card.context_tokens
        listed.append(entry)
    return {"object": "list", "data": listed}


def tree(core: RouterCore, links: Links, depth: int | None, now: float) -> dict[str, Any]:
    """The body of `GET /tree`: the view's sums, and for each worker its feed's position and drift beside its blocks."""
    found = dict(core.tree(depth))
    summary: Any = found.pop("summary")
    known = summary.pop("workers")
    told = {
        row["id"]: {
            **known.get(row["id"], {}),
            **{key: row[key] for key in ("url", "state", "blocks")},
            **{key: row.get(key) for key in _FEED_KEYS},
        }
        for row in workers(core, links, now)
    }
    return {**summary, **found, "workers": told}


_FEED_KEYS = ("synced", "epoch", "number", "lag_events", "gaps", "resyncs", "drift_blocks")


def readiness(core: RouterCore, links: Links, began_at: float, now: float) -> Readiness:
    """The core's readiness, with the workers counted that have not answered yet: a router that has just started must
    not call its index whole because it has asked nobody."""
    ready = replace(core.ready(now), workers=len(links))
    fresh = links.fresh
    if not fresh:
        return ready
    fed = [row.synced for row in core.workers(now) if row.has_feed and row.state is not WorkerState.GONE]
    share = sum(fed) / (len(fed) + fresh)
    if share >= core.config.ready_share or now - began_at >= core.config.ready_wait_s:
        return replace(ready, share=share)
    reason = f"{fresh} of {len(links)} workers have not answered yet"
    return replace(ready, ready=False, share=share, reason=reason)
