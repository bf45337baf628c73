"""The flags of `trieway load`; what the commands do is in runs/commands.py, which is imported when one runs.

Does not know HTTP or reports: building the parser must cost nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from trieway.loadgen.lazily import lazily

ARRIVALS = "poisson:4, constant:4, gamma:4:0.25, ramp:1:20:60, steps:1x30,2x30, trace, trace:2 or closed:16"


def add_load(load: argparse.ArgumentParser) -> None:
    """`run`, `sweep`, `replay`, `compare`, `workloads` under `trieway load`."""
    actions = load.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=type(load))

    def action(name: str, does: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=does, description=does, allow_abbrev=False)

    run = action("run", "drive a server with a workload and report what it did")
    run.add_argument("url", metavar="URL", help="any OpenAI-compatible server, such as http://127.0.0.1:8000")
    _add_workload(run)
    run.add_argument("--arrivals", default="poisson:1", metavar="HOW", help=f"{ARRIVALS} (default: poisson:1)")
    _add_run(run)
    run.set_defaults(run=_later("run"))

    replay = action("replay", "a trace or a file of requests at its own times, or by the reference rules")
    replay.add_argument("workload", metavar="FILE", help="Mooncake, agentic or text trace, or JSON lines of requests")
    replay.add_argument("url", metavar="URL", nargs="?", help="the server; not needed with --rules")
    replay.add_argument("--rules", choices=("reference",), help="no server: count hits under plain placement rules")
    replay.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="shrink, share_head, wait, ...")
    replay.add_argument("--arrivals", default="trace", metavar="HOW", help=f"{ARRIVALS} (default: trace)")
    _add_run(replay)
    replay.set_defaults(run=_later("replay"))

    sweep = action("sweep", "several rates, or with --slo alone the highest one that holds, over policies and workers")
    sweep.add_argument("url", metavar="URL", nargs="?", help="the server; without it fleets are started here")
    _add_workload(sweep)
    sweep.add_argument(
        "--rates", metavar="R,R,...", help="requests per second to try; without: search for the capacity"
    )
    sweep.add_argument("--rate-min", type=float, default=0.25, help="where the search begins (default: 0.25)")
    sweep.add_argument("--rate-max", type=float, default=1000.0, help="where it ends (default: 1000)")
    sweep.add_argument("--precision", type=float, default=0.1, help="how close the search comes (default: 0.1, 10 %%)")
    sweep.add_argument("--process", default="poisson", help="poisson, constant or gamma:BURSTINESS (default: poisson)")
    sweep.add_argument("--policies", metavar="P,P,...", help="start a fleet with each of these policies")
    sweep.add_argument("--workers", metavar="N,N,...", help="start a fleet with each of these numbers of workers")
    sweep.add_argument("--up-args", default="", metavar="TEXT", help="more of `trieway up` for these fleets")
    sweep.add_argument("--state", type=Path, metavar="FILE", help="keeps what was measured; given again, it goes on")
    sweep.add_argument("--no-flush", dest="flush", action="store_false", help="leave the caches as they are")
    _add_run(sweep, flush=False, repeats=3, csv=False)
    sweep.set_defaults(run=_later("sweep"))

    compare = action("compare", "two reports or studies, of `load` or `sim`, with a verdict that knows noise")
    compare.add_argument("a", type=Path, metavar="A.json", help="what to compare with")
    compare.add_argument("b", type=Path, metavar="B.json", help="what is new")
    compare.add_argument("--fail-on-worse", action="store_true", help="exit code 1 if b is worse")
    compare.set_defaults(run=_later("compare"))

    workloads = action("workloads", "the workloads by name, or the settings of one")
    workloads.add_argument("name", nargs="?", metavar="NAME", help="show its settings")
    workloads.set_defaults(run=_later("workloads"))


def _later(name: str) -> Callable[[argparse.Namespace], int]:
    return lazily("trieway.loadgen.runs.commands", name)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload", default="mixed", metavar="NAME|FILE", help="see `load workloads` (default: mixed)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the workload")


def _add_run(parser: argparse.ArgumentParser, *, flush: bool = True, repeats: int = 1, csv: bool = True) -> None:
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    add("--per-session", action="store_true", help="rates count sessions, not calls")
    more = "" if flush else "; shorter workloads are repeated with other seeds"
    add("--duration", metavar="TIME", help=f"stop sending after so long, such as 60s or 5m (default: all calls){more}")
    add("--warmup", default="0", metavar="TIME", help="leave out what was due before (default: 0)")
    add("--warmup-requests", type=int, default=0, metavar="N", help="leave out the first N requests (default: 0)")
    add("--repeats", type=int, default=repeats, metavar="N", help=f"equal runs, for noise (default: {repeats})")
    if flush:
        add("--flush", action="store_true", help="empty the workers' caches first (admin key)")
    add("--hints", action="store_true", help="send the workload's prefix hints")
    add("--slo", metavar="TERMS", help="such as ttft_p95=500ms,itl_p95=50ms,errors=1%%")
    add("--model", help="model to ask for; default: the first one served")
    add("--key-file", type=Path, metavar="FILE", help="file with the API key")
    add("--admin-key-file", type=Path, metavar="FILE", help="file with the admin key, for --flush, workers and tree")
    add("--tenant-keys", type=Path, metavar="FILE", help="lines `tenant key`: each tenant sends its own")
    add("--plain", action="store_true", help="send nothing that is not OpenAI's own")
    add("--no-usage", dest="usage", action="store_false", help="do without the server's token counts")
    add("--timeout", default="600s", metavar="TIME", help="of one request (default: 600s)")
    add("--processes", type=int, default=1, metavar="N", help="client processes (default: 1)")
    add("--cache-tokens", type=int, metavar="N", help="size of all caches together, where the server does not tell")
    add("--no-bound", dest="bound", action="store_false", help="leave out the oracle bound")
    add("--scrape", default="1s", metavar="TIME", help="how often to read the servers' metrics; 0: never (default: 1s)")
    add("--report", type=Path, metavar="FILE.html", help="a page with plots")
    add("--json", type=Path, metavar="FILE.json", help="everything, by schema")
    if csv:
        add("--csv", type=Path, metavar="FILE.csv", help="a row per request")
