"""The files that a run or study leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trieway.loadgen.errors import LoadError, RunFailed
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
        """What was written. LoadError: one could not be; the others were."""
        return _all(
            (self.json, lambda path: write_report(report, path)),
            (self.html, lambda path: write_bytes(path, html_of(report).encode())),
            (self.csv, lambda path: write_bytes(path, csv_of(records).encode())),
        )

    def write_study(self, study: Study) -> list[Path]:
        """What was written. LoadError: one could not be; the others were."""
        return _all(
            (self.json, lambda path: write_study(study, path)),
            (self.html, lambda path: write_bytes(path, html_of_study(study).encode())),
        )


def _all(*wanted: tuple[Path | None, Callable[[Path], None]]) -> list[Path]:
    written, failed = [], []
    for path, write in wanted:
        if path is None:
            continue
        try:
            write(path)
        except LoadError as error:
            failed.append(str(error))
        else:
            written.append(path)
    if failed:
        raise RunFailed("; ".join([*failed, *(f"{path} was written" for path in written)]))
    return written
