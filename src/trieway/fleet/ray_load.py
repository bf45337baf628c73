"""`trieway ray load`: the load generator against a fleet on Ray, most often as a job, and its report kept.

Keeps true: what cannot work is refused before anything is sent; a report is kept in the cluster whether the run held
its SLO or was cut short, and stays on disk where the cluster would not take it. Does not know how load is made
(loadgen), nor how reports are read again (ray_reports.py).
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from trieway.fleet.errors import EXIT_USAGE, CommandError, UsageError
from trieway.fleet.ray_view import attach, board_entries
from trieway.loadgen.cli import add_load

COMMANDS = ("run", "sweep", "replay")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_LATER = "http://fleet"
"""Stands for the router's URL while the flags are read."""


def load(asked: argparse.Namespace, parser_class: type[argparse.ArgumentParser]) -> int:
    """Runs it; the exit code is the load generator's."""
    try:
        run = _parse(asked.arguments, parser_class)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    name = _name(asked.name, getattr(run, "workload", "load"))
    if asked.keep is not None and not asked.keep.is_dir():
        raise UsageError(f"--keep {asked.keep}: there is no such folder on the machine where this runs")
    attach(asked.address)
    run.url = asked.router or _router(asked.fleet)
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="trieway-report-"))
    run.json, run.report = folder / f"{name}.json", folder / f"{name}.html"
    print(f"load on {run.url}, a router of fleet {asked.fleet}", flush=True)
    kept = False
    try:
        return int(run.run(run))
    finally:
        # Also of a run that broke off or missed its SLO: that is when somebody looks.
        if run.json.exists():
            kept = _keep(asked.fleet, name, run.json)
        if asked.keep is None and (kept or not run.json.exists()):
            shutil.rmtree(folder)
            print(f"{folder} is removed again; `--keep DIR` writes to a folder that stays", flush=True)


def _parse(arguments: Sequence[str], parser_class: type[argparse.ArgumentParser]) -> argparse.Namespace:
    command, *rest = arguments or [""]
    if command not in COMMANDS:
        raise UsageError(f"`trieway ray load` takes {', '.join(COMMANDS)} and their flags, not {command!r}")
    given: list[str] = []
    if command == "replay":
        if rest and not rest[0].startswith("-"):
            given = [rest.pop(0)]
        elif "--help" not in rest:
            raise UsageError("`trieway ray load replay FILE ...`: the file comes first")
    parser = parser_class(prog="trieway ray load", allow_abbrev=False)
    add_load(parser)
    found = parser.parse_args([command, *given, _LATER, *rest])
    for flag in ("json", "report"):
        if getattr(found, flag, None) is not None:
            raise UsageError(f"--{flag}: reports are kept by `--keep DIR` and `--name NAME`, before {command}")
    if getattr(found, "rules", None) is not None:
        raise UsageError("--rules asks no fleet: `trieway load replay` does it")
    return found


def _name(asked: str | None, workload: str) -> str:
    if asked is not None and not NAME.match(asked):
        raise UsageError(f"--name {asked!r}: letters, digits, dots, dashes and underscores are needed")
    plain = re.sub(r"[^A-Za-z0-9]+", "-", Path(workload).stem).strip("-")[:40] or "load"
    return asked or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{plain}"


def _router(fleet: str) -> str:
    """The router on this node where there is one."""
    import ray

    ready = [entry for entry in board_entries(fleet) if entry.role == "router" and entry.state == "ready"]
    if not ready:
        raise CommandError(f"no router of fleet {fleet} is ready; `trieway ray status` tells")
    here = str(ray.util.get_node_ip_address())
    return str(min(ready, key=lambda entry: (entry.node != here, entry.node)).url)


def _keep(fleet: str, name: str, file: Path) -> bool:
    from trieway.serving.ray_board import BoardAway
    from trieway.serving.ray_reports import Reports, ReportTooLarge

    try:
        Reports(fleet).keep(name, file.read_bytes())
    except (BoardAway, ReportTooLarge, OSError) as error:
        print(f"the report could not be kept in the cluster ({error}): it is {file} on this machine", flush=True)
        return False
    print(f"report {name} is kept in the cluster: `trieway ray reports {name} --to DIR` fetches it", flush=True)
    return True
