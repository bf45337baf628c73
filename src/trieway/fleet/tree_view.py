"""`trieway tree URL`: the meta-tree's summary as tables, and its upper branches as an indented list.

Shows counts, hashes and worker names only; that is all a router tells. A field that a router of another version does
not send is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trieway.fleet.client import ask, connect
from trieway.fleet.console import table
from trieway.fleet.options import Access

TOTALS = (
    ("nodes", "distinct blocks"),
    ("blocks", "blocks held, over all workers"),
    ("bytes", "bytes of memory"),
    ("bytes_max", "bytes at most"),
    ("dropped_blocks_total", "blocks dropped to stay below that"),
    ("speculations", "requests on their way, counted on"),
)
WORKER_COLUMNS = (
    ("state", "state"),
    ("blocks", "blocks"),
    ("dropped_blocks", "dropped"),
    ("epoch", "epoch"),
    ("number", "event"),
    ("lag_events", "lag"),
    ("gaps", "gaps"),
    ("resyncs", "resyncs"),
    ("drift_blocks", "drift"),
    ("approximate", "approximate"),
    ("group", "group"),
)
GROUP_CHARS = 12


async def fetch_tree(access: Access, depth: int | None) -> dict[str, Any]:
    """The answer of `GET /tree`. Raises CommandError."""
    async with connect(access.url, access.key_file) as client:
        found = await ask(client, "GET", "/tree" if depth is None else f"/tree?depth={depth}")
    return dict(found)


def tree_text(found: Mapping[str, Any]) -> str:
    """What `GET /tree` told, to read."""
    summary = {**found, **found.get("summary", {})}
    parts = [_totals(summary), _workers(summary.get("workers") or {})]
    dump = summary.get("dump")
    if dump is not None:
        parts.append(_dump(dump))
    return "\n\n".join(part for part in parts if part)


def _totals(summary: Mapping[str, Any]) -> str:
    rows = [(title, _cell(summary[key])) for key, title in TOTALS if key in summary]
    return table(("meta-tree", "count"), rows) if rows else ""


def _workers(workers: Mapping[str, Mapping[str, Any]]) -> str:
    if not workers:
        return "no worker is known yet"
    shown = [(key, title) for key, title in WORKER_COLUMNS if any(key in row for row in workers.values())]
    rows = [(name, *(_short(key, row.get(key)) for key, _ in shown)) for name, row in sorted(workers.items())]
    return table(("worker", *(title for _, title in shown)), rows)


def _short(key: str, value: Any) -> str:
    if key == "group":
        return str(value or "-")[:GROUP_CHARS]
    if key == "epoch":
        return "-" if value is None else str(value)
    return _cell(value)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _dump(dump: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines: list[str] = []
    for group, branches in dump.items():
        lines.append(f"group {group[:GROUP_CHARS]}: branches as first block, blocks, reusable tokens, workers")
        lines += _branches(branches, 1) if branches else ["  (nothing held)"]
    return "\n".join(lines)


def _branches(branches: Sequence[Mapping[str, Any]], indent: int) -> Iterator[str]:
    for branch in branches:
        workers = " ".join(map(str, branch.get("workers", ()))) or "nobody"
        line = (
            f"{'  ' * indent}{branch['hash']}  {_cell(branch.get('blocks'))}  {_cell(branch.get('usable'))}  {workers}"
        )
        children = branch.get("children", ())
        hidden = int(branch.get("forks", len(children))) - len(children)
        yield line + (f"  (+{hidden} more below)" if hidden > 0 else "")
        yield from _branches(children, indent + 1)
