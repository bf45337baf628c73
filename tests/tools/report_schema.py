"""`make report-schema`: write docs/report.schema.json from the report's structs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trieway.loadgen.reports.schema import json_schema

TARGET = Path(__file__).resolve().parents[2] / "docs/report.schema.json"

if __name__ == "__main__":
    TARGET.write_bytes(msgspec.json.format(msgspec.json.encode(json_schema()), indent=1) + b"\n")
