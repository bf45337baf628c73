"""The flags of `trieway ray`, and what each of its commands calls.

Does not import Ray: building the parser must cost nothing, and work without it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trieway.serving.config import ConfigError, RayConfig
from trieway.serving.config_load import add_flags, load
from trieway.serving.config_ray import fleet_name


def add_ray(ray: argparse.ArgumentParser) -> None:
    """`up`, `status`, `down`, `load`, `reports` under `trieway ray`."""
    kind = type(ray)
    actions = ray.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=kind)

    def action(name: str, does: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=does, description=does, allow_abbrev=False)

    up = action("up", "start the fleet, or bring it to these settings")
    add_flags(up, RayConfig)
    up.add_argument("--roll", metavar="WORD", default="", help="a new word replaces every replica, one by one")
    up.add_argument("--no-wait", dest="wait", action="store_false", help="do not wait until all serve")
    up.set_defaults(run=_up)

    status = action("status", "what runs where, and the routers' URLs")
    _add_fleet(status)
    status.add_argument("--json", action="store_true", help="print it as JSON")
    status.set_defaults(run=_status)

    down = action("down", "end the fleet")
    _add_fleet(down)
    down.set_defaults(run=_down)

    load_action = action("load", "run `trieway load` against the fleet from inside the cluster, and keep the report")
    _add_fleet(load_action)
    load_action.add_argument("--router", metavar="URL", help="the router to drive; default: this node's, or the first")
    load_action.add_argument("--keep", type=Path, metavar="DIR", help="also write JSON and page there")
    load_action.add_argument("--name", help="of the report; default: the time and the workload")
    load_action.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="run|sweep|replay ...",
        help="as of `trieway load`, but for the URL, --json and --report",
    )
    load_action.set_defaults(run=lambda asked: _load(asked, kind))

    reports = action("reports", "the reports that the cluster keeps, or one of them")
    _add_fleet(reports)
    reports.add_argument("report", nargs="?", metavar="NAME", help="print this one as JSON")
    reports.add_argument("--to", type=Path, metavar="DIR", help="write it there, as JSON and as a page")
    reports.add_argument("--json", action="store_true", help="list them as JSON")
    reports.set_defaults(run=_reports)


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="the cluster; default: RAY_ADDRESS, or the one on this machine")
    parser.add_argument("--fleet", default="trieway", help="name of the fleet (default: trieway)")


def _up(asked: argparse.Namespace) -> int:
    _check_text(asked.roll, "--roll")
    config = load(RayConfig, flags=vars(asked), environ=os.environ, file=getattr(asked, "config", None))
    from trieway.fleet.ray_fleet import bring_up

    return bring_up(config, roll=asked.roll, wait=asked.wait)


def _check_text(value: str, flag: str) -> None:
    """ConfigError: bytes that are no text, which the cluster cannot keep."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{flag}: text is needed, not {value!r}") from None


def _status(asked: argparse.Namespace) -> int:
    fleet_name(asked.fleet, "--fleet")
    from trieway.fleet.ray_view import status

    return status(asked.address, asked.fleet, as_json=asked.json)


def _down(asked: argparse.Namespace) -> int:
    fleet_name(asked.fleet, "--fleet")
    from trieway.fleet.ray_fleet import take_down

    return take_down(asked.address, asked.fleet)


def _load(asked: argparse.Namespace, kind: type[argparse.ArgumentParser]) -> int:
    fleet_name(asked.fleet, "--fleet")
    from trieway.fleet.ray_load import load as run

    return run(asked, kind)


def _reports(asked: argparse.Namespace) -> int:
    fleet_name(asked.fleet, "--fleet")
    from trieway.fleet.ray_reports import reports

    return reports(asked)
