"""The files that a run or study leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trieway.loadgen.records import Record
from trieway.loadgen.reports.files import check_writable, write_bytes, write_report
from trieway.loadgen.reports.report_html import html_of
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.study import Study, write_study
from trieway.loadgen.reports.study_html import html_of_study
from trieway.loadgen.reports.table_csv import csv_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Where to, None: not wanted. LoadError, at once, where they could not be written."""

    json: Path | None = None
    html: Path | None = None
    csv: Path | None = None

    def __post_init__(self) -> None:
        check_writable((self.json, self.html, self.csv))

    def write(self, report: Report, records: Sequence[Record]) -> list[Path]:
        """What was written."""
        if self.json is not None:
            write_report(report, self.json)
        if self.html is not None:
            write_bytes(self.html, html_of(report).encode())
        if self.csv is not None:
            write_bytes(self.csv, csv_of(records).encode())
        return [path for path in (self.json, self.html, self.csv) if path is not None]

    def write_study(self, study: Study) -> list[Path]:
        """What was written."""
        if self.json is not None:
            write_study(study, self.json)
        if self.html is not None:
            write_bytes(self.html, html_of_study(study).encode())
        return [path for path in (self.json, self.html) if path is not None]
