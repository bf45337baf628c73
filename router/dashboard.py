"""The dashboard: one page with a plain table of workers, no script.

Keeps true: every value that came from outside is escaped. Does not know who may see it.
"""

from __future__ import annotations

from html import escape
from typing import Any

from trieway.router.core import Readiness

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
