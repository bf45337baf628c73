"""`trieway ray reports`: the reports of load tests that a cluster keeps, listed and fetched.

Keeps true: what is fetched is what the load test wrote, and the page is made from it again. Does not know how a report
came into being (ray_load.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trieway.fleet.console import table
from trieway.fleet.errors import EXIT_DONE, CommandError, UsageError
from trieway.fleet.ray_view import attach
from trieway.loadgen.reports.files import read_report, write_bytes
from trieway.loadgen.reports.report_html import html_of
from trieway.loadgen.reports.study import STUDY, read_study
from trieway.loadgen.reports.study_html import html_of_study
from trieway.loadgen.reports.text import milliseconds, number

if TYPE_CHECKING:
    from trieway.serving.ray_reports import Reports


def reports(asked: argparse.Namespace) -> int:
    """Lists the reports that are kept, or gives one."""
    if asked.to is not None and asked.report is None:
        raise UsageError("--to needs the name of a report; without both they are listed")
    if asked.to is not None and not asked.to.is_dir():
        raise UsageError(f"--to {asked.to}: there is no such folder")
    attach(asked.address)
    from trieway.serving.ray_board import BoardAway
    from trieway.serving.ray_reports import Reports

    store = Reports(asked.fleet)
    try:
        return _list(store, asked.fleet, as_json=asked.json) if asked.report is None else _give(store, asked)
    except BoardAway as error:
        raise CommandError(f"the cluster's head does not answer: {error}") from None


def _give(store: Reports, asked: argparse.Namespace) -> int:
    data = store.read(asked.report)
    if data is None:
        names = store.names()
        known = f"; the last ones are {', '.join(names[-3:])}" if names else ""
        raise CommandError(f"fleet {asked.fleet} has no report {asked.report}{known}")
    if asked.to is None:
        print(data.decode())
        return EXIT_DONE
    file = asked.to / f"{asked.report}.json"
    write_bytes(file, data)
    page = file.with_suffix(".html")
    study = json.loads(data).get("schema") == STUDY
    write_bytes(page, (html_of_study(read_study(file)) if study else html_of(read_report(file))).encode())
    print(f"wrote {file}\nwrote {page}")
    return EXIT_DONE


def _list(store: Reports, fleet: str, *, as_json: bool) -> int:
    found = [outline(name, data) for name in store.names() if (data := store.read(name)) is not None]
    if as_json:
        print(json.dumps(found, indent=2))
    elif not found:
        print(f"no report of fleet {fleet} is kept; `trieway ray load run` makes one")
    else:
        header = ["report", "kind", "workload", "requests", "what it found"]
        print(table(header, [[str(one[key]) for key in OUTLINE] for one in found], left=len(header)))
    return EXIT_DONE


OUTLINE = ("name", "kind", "workload", "requests", "found")


def outline(name: str, data: bytes) -> dict[str, Any]:
    """A report or study in a line."""
    whole: Mapping[str, Any] = json.loads(data)
    if whole.get("schema") == STUDY:
        requests = sum(point["requests"]["measured"] for point in whole["points"])
        found = "; ".join(one["why"] for one in whole["capacities"]) or f"{len(whole['points'])} runs"
    else:
        requests = whole["requests"]["measured"]
        achieved, ttft = whole["rates"]["achieved_per_s"], whole["latency"]["ttft_ms"]["p95"]
        found = f"{number(achieved)}/s, {whole['requests']['failed']} failed, TTFT p95 {milliseconds(ttft)}"
    partial = "partial: " if whole["partial"] else ""
    return {
        "name": name,
        "kind": whole["kind"],
        "workload": whole["workload"],
        "requests": requests,
        "found": partial + found,
    }
