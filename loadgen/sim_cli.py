"""The flags of `trieway sim`; what the commands do is in simulations/commands.py (and reproductions/commands.py), which
is imported when one runs.

Does not know the simulator: building the parser must cost nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trieway.loadgen.cli import ARRIVALS
from trieway.loadgen.lazily import lazily


def add_sim(sim: argparse.ArgumentParser) -> None:
    """`run`, `compare`, `replay`, `scale`, `seeds` under `trieway sim`."""
    actions = sim.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=type(sim))

    def action(name: str, does: str, where: str = "simulations") -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=does, description=does, allow_abbrev=False)
        parser.set_defaults(run=lazily(f"trieway.loadgen.{where}.commands", name))
        return parser

    run = action("run", "play a workload on a simulated fleet; the report is that of `load run`")
    _add_workload(run)
    _add_fleet(run)
    run.add_argument("--workers", type=int, default=4, metavar="N", help="workers (default: 4)")
    run.add_argument("--policy", default="cache_aware", help="the routers' policy (default: cache_aware)")
    run.add_argument("--check", action="store_true", help="check every invariant after every step (slow)")
    run.add_argument("--csv", type=Path, metavar="FILE.csv", help="a row per request")

    compare = action("compare", "two reports side by side; or, without files, policies and fleet sizes on one workload")
    compare.add_argument("reports", type=Path, nargs="*", metavar="A.json B.json", help="two reports or studies")
    compare.add_argument("--fail-on-worse", action="store_true", help="exit code 1 if B is worse")
    compare.add_argument("--policies", default="cache_aware,round_robin", metavar="P,P,...", help="to be compared")
    compare.add_argument("--workers", default="4", metavar="N,N,...", help="fleet sizes to be compared (default: 4)")
    _add_workload(compare)
    _add_fleet(compare)

    replay = action("replay", "traces by the reference's plain rules, and on the simulated fleet beside them")
    replay.add_argument("paths", nargs="+", metavar="FILE|FOLDER", help="traces, or folders of them")
    replay.add_argument("--workers", default="4,8", metavar="N,N,...", help="fleet sizes (default: 4,8)")
    replay.add_argument(
        "--cache", default="256k,1M", metavar="SIZE,...", help="tokens of a worker, or endless (256k,1M)"
    )
    replay.add_argument("--policies", default="cache_aware", metavar="P,P,...", help="to simulate; none: rules alone")
    replay.add_argument("--rows", type=int, metavar="N", help="only the first N rows of each trace")
    replay.add_argument("--speed", type=float, default=1.0, help="play the trace so many times as fast (default: 1)")
    replay.add_argument("--seed", type=int, default=0, help="of prompts and the fleet (default: 0)")
    replay.add_argument("--processes", type=int, default=2, metavar="N", help="processes (default: 2)")
    replay.add_argument("--json", type=Path, metavar="FILE.json", help="the same with all digits")
    _add_gpu(replay)

    scale = action("scale", "how many requests are simulated per second of processor time, by fleet size")
    scale.add_argument("--workers", default="10,100,1000", metavar="N,N,...", help="fleet sizes (default: 10,100,1000)")
    scale.add_argument("--requests", type=int, default=10_000, metavar="N", help="requests of each (default: 10000)")
    scale.add_argument("--rate", type=float, default=5.0, help="requests per second and worker (default: 5)")
    scale.add_argument("--routers", type=int, default=1, metavar="N", help="routers (default: 1)")
    scale.add_argument("--seed", type=int, default=0)

    seeds = action("seeds", "small fleets with faults by seed, every invariant checked after every step")
    seeds.add_argument("--first", type=int, default=0, metavar="SEED", help="where to begin (default: 0)")
    seeds.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    seeds.add_argument("--processes", type=int, default=2, metavar="N", help="processes (default: 2)")

    parts = "hit-rates,ablations,curve,scaling,overhead"
    again = action("reproduce", "the RadixAttention paper's experiments next to its figures", "reproductions")
    again.add_argument("--parts", default=parts, metavar="P,P,...", help=f"of {parts} (default: all)")
    again.add_argument("--quick", action="store_true", help="small workloads: under a minute")
    again.add_argument("--seed", type=int, default=0, help="of prompts and the fleet (default: 0)")
    again.add_argument("--times", action="store_true", help="also write this machine's times, which are never the same")
    again.add_argument("--report", type=Path, metavar="FILE.html", help="a page with plots")
    again.add_argument("--json", type=Path, metavar="FILE.json", help="everything")


def _add_workload(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--workload", default="mixed", metavar="NAME|FILE", help="see `load workloads` (default: mixed)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the workload")
    add("--arrivals", default="poisson:4", metavar="HOW", help=f"{ARRIVALS} (default: poisson:4)")
    add("--seed", type=int, default=0, help="of prompts, arrivals and the fleet (default: 0)")
    add("--per-session", action="store_true", help="rates count sessions, not calls")
    add("--duration", metavar="TIME", help="stop sending after so long, such as 60s or 5m; default: the whole workload")
    add("--warmup", default="0", metavar="TIME", help="leave out what was due before (default: 0)")
    add("--warmup-requests", type=int, default=0, metavar="N", help="leave out the first N requests (default: 0)")
    add("--repeats", type=int, default=1, metavar="N", help="equal runs with other seeds, for noise (default: 1)")
    add("--hints", action="store_true", help="send the workload's prefix hints")
    add("--slo", metavar="TERMS", help="such as ttft_p95=500ms,itl_p95=50ms,errors=1%%")
    add("--no-bound", dest="bound", action="store_false", help="leave out the oracle bound")
    add("--report", type=Path, metavar="FILE.html", help="a page with plots")
    add("--json", type=Path, metavar="FILE.json", help="everything, by schema")


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--routers", type=int, default=1, metavar="N", help="routers (default: 1)")
    _add_gpu(parser)
    add("--calibration", type=Path, metavar="FILE", help="what `trieway calibrate` printed, instead of a GPU")
    add("--kv-tokens", type=int, metavar="N", help="cache of a worker; default: what fits; calibrated: 32768")
    add("--page-size", type=int, metavar="N", help="default: 16; calibrated: 1")
    add("--batch-tokens", type=int, metavar="N", help="tokens of a step (default: 2048; calibrated: 512)")
    add("--running-max", type=int, metavar="N", help="requests that run at once (default: 256; calibrated: 64)")
    add("--worker-policy", default="lpm", help="order of waiting requests: lpm, fcfs or random (default: lpm)")
    add("--no-prefix-cache", dest="prefix_cache", action="store_false", help="workers keep nothing")
    add("--delay", metavar="TIME", help="of a message between two processes (default: 0.3ms; calibrated: 0)")
    add("--jitter", metavar="TIME", help="mean of what comes on top (default: 0.2ms; calibrated: 0)")


def _add_gpu(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gpu", default="h100", help="l4, a10g, a100, h100 or h200 (default: h100)")
    add("--gpus", type=int, default=1, metavar="N", help="of a worker, tensor parallel (default: 1)")
    add("--model", default="llama-3.1-8b", help="smollm2-135m, llama-3.2-1b, llama-3.1-8b, llama-3.1-70b")
