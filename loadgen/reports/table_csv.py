"""Records as CSV: a row per call, times in seconds from the run's start."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from trieway.loadgen.records import Record
from trieway.loadgen.reports.judging import tpot_s

COLUMNS = (
    *("call", "session", "tenant", "worker", "status", "warmup", "attempts", "due_s", "sent_s", "first_s", "last_s"),
    *("lag_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "cached_tokens", "predicted_tokens", "output_tokens"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(records: Iterable[Record]) -> str:
    """In order of due time, with a header; unknown is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in sorted(records, key=lambda each: each.due_s):
        writer.writerow([_cell(_value(record, column)) for column in COLUMNS])
    return out.getvalue()


def _value(record: Record, column: str) -> object:
    return tpot_s(record) if column == "tpot_s" else getattr(record, column)


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value  # ids come from files: a spreadsheet must not compute them
    return value
