"""`make report-schema`: write docs/report.schema.json and docs/study.schema.json from their structs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trieway.loadgen.reports.schema import Report, json_schema
from trieway.loadgen.reports.study import Study

DOCS = Path(__file__).resolve().parents[2] / "docs"


def published() -> Mapping[Path, bytes]:
    """What the files have to hold."""
    schemas: dict[str, dict[str, Any]] = {"report": json_schema(Report), "study": json_schema(Study)}
    return {
        DOCS / f"{name}.schema.json": msgspec.json.format(msgspec.json.encode(schema), indent=1) + b"\n"
        for name, schema in schemas.items()
    }


if __name__ == "__main__":
    for path, content in published().items():
        path.write_bytes(content)
