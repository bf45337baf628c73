"""What the control plane shows of workers and models: JSON rows, and the dashboard's page.

Keeps true: every value that came from outside is escaped in the page. Does not know who may see it.
"""

from __future__ import annotations

from html import escape
from typing import Any

from trieway.router.core import Readiness, RouterCore, WorkerRow
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


_COLUMNS = (
    ("worker", "id"),
    ("state", "state"),
    ("model", "model"),
    ("kind", "kind"),
    ("blocks", "blocks"),
    ("booked", "booked"),
    ("drift", "drift_blocks"),
    ("prefill tokens/s", "prefill_tokens_per_s"),
    ("breaker", "breaker"),
    ("note", "note"),
)
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse}"
    "th,td{padding:.35em .8em;border-bottom:1px solid #ddd;text-align:left}"
)


def page(readiness: Readiness, rows: list[dict[str, Any]] | None) -> str:
    """The dashboard; `rows` None: the reader has shown no admin key, so workers are only counted."""
    head = "".join(f"<th>{title}</th>" for title, _ in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(key))}</td>" for _, key in _COLUMNS) + "</tr>" for row in rows or ()
    )
    table = f"<table><tr>{head}</tr>{body}</table>"
    if rows is None:
        table = "<p>The table of workers needs the admin key (as the password, or as a bearer token).</p>"
    state = "ready" if readiness.ready else f"not ready: {escape(readiness.reason)}"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>"
        f"<title>Trieway</title><style>{_STYLE}</style><h1>Trieway</h1>"
        f"<p>{state}; {readiness.up} of {readiness.workers} workers up, index {readiness.share:.0%} loaded.</p>"
        f"{table}</html>"
    )


def _cell(value: object) -> str:
    return "" if value is None else escape(str(value))
