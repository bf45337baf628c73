"""The command line: `trieway COMMAND ...`.

It keeps true that exit codes are 0 done, 1 failed, 2 bad usage; that what a user did wrong is one line without a
traceback; and that a command imports only what it needs (a router process never loads torch). What the commands do is
in fleet/, router/ and worker/.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from trieway import __version__
from trieway.fleet import commands
from trieway.fleet.errors import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError
from trieway.fleet.ray_cli import add_ray
from trieway.loadgen.cli import add_load
from trieway.loadgen.errors import LoadError
from trieway.loadgen.sim_cli import add_sim
from trieway.serving.config import ConfigError, RayConfig, RouterConfig, UpConfig, WorkerConfig
from trieway.serving.config_load import add_flags

PROGRAM = "trieway"


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{PROGRAM}: error: {message}; see `{self.prog} --help`\n")


def build_parser() -> Parser:
    """Every command with its flags; each sets `run`, which takes the parsed namespace and gives the exit code."""
    parser = Parser(prog=PROGRAM, description="One cache out of many LLM workers.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    table = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

    def command(name: str, does: str) -> Parser:
        return table.add_parser(name, help=does, description=does, allow_abbrev=False)

    up = command("up", "an embedded fleet: worker processes and a router on this machine")
    add_flags(up, UpConfig)
    up.set_defaults(run=commands.up)

    worker = command("worker", "one worker, usable alone as an OpenAI server")
    add_flags(worker, WorkerConfig)
    worker.set_defaults(run=commands.worker)

    router = command("router", "one router in front of workers or other OpenAI-compatible servers")
    add_flags(router, RouterConfig)
    router.set_defaults(run=commands.router)

    calibrate = command("calibrate", "measure what a worker's time goes into, for `sim`; prints JSON")
    _add_server(calibrate, "a worker, or of a router in front of several that share a machine")
    calibrate.add_argument("--model", help="model to ask for; default: the first one served")
    calibrate.add_argument("--repeats", type=_positive, default=2, help="measurements of each mix of work (default: 2)")
    calibrate.set_defaults(run=commands.calibrate)

    tree = command("tree", "the router's meta-tree: who holds how much, and how sure it is")
    _add_server(tree, "a router")
    tree.add_argument("--depth", type=_positive, help="also show the blocks down to this depth, as hashes and counts")
    tree.add_argument("--json", action="store_true", help="print the answer as it came")
    tree.set_defaults(run=commands.tree)

    explain = command("explain", "why a prompt would go where; nothing is sent to a worker")
    _add_server(explain, "a router")
    explain.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from standard input")
    explain.add_argument("--model", help="model to ask for; default: the first one served")
    explain.add_argument("--chat", action="store_true", help="take PROMPT as a user's chat message")
    explain.add_argument("--json", action="store_true", help="print the answer as it came")
    explain.set_defaults(run=commands.explain)

    demo = command("demo", "a shared-prefix conversation, and a table of what the cache saved")
    _add_server(demo, "a router or worker")
    demo.add_argument("--model", help="model to ask for; default: the first one served")
    demo.add_argument("--prefix-tokens", type=_positive, default=1000, help="length of the prefix (default: 1000)")
    demo.add_argument("--seed", type=int, help="seed of the prefix's text; default: a new one, so that it is cold")
    demo.set_defaults(run=commands.demo)

    add_ray(command("ray", "the fleet on a Ray cluster"))
    add_load(command("load", "drive any OpenAI-compatible server, and report how far from the best possible it is"))

    add_sim(command("sim", "play the same workloads on a simulated fleet"))

    models = command("models", "the models that can be named")
    models.set_defaults(run=commands.models)

    config = command("config", "the configuration")
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Parser)
    show = actions.add_parser("show", help="print the effective configuration", allow_abbrev=False)
    kinds = show.add_subparsers(title="of", metavar="[up|ray|worker|router]", required=False, parser_class=Parser)
    show.set_defaults(run=commands.config_show, kind=UpConfig)
    add_flags(show, UpConfig)
    for name, kind in (("up", UpConfig), ("ray", RayConfig), ("worker", WorkerConfig), ("router", RouterConfig)):
        of = kinds.add_parser(name, help=f"of `{PROGRAM} {name}` with the same flags", allow_abbrev=False)
        of.set_defaults(kind=kind)
        add_flags(of, kind)
    return parser


def _add_server(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("url", metavar="URL", help=f"URL of {what}, such as http://127.0.0.1:8000")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="file with the API key or admin key to show")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        asked = build_parser().parse_args(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        code = int(asked.run(asked))
        sys.stdout.flush()
        return code
    except (CommandError, LoadError) as error:
        return _complain(error, error.exit_code)
    except ConfigError as error:
        return _complain(error, EXIT_USAGE)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_FAILED)
    except BrokenPipeError:  # the reader of our output has left: nothing to say, and nobody to say it to
        _drop_output()
        return EXIT_DONE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        _drop_output()
        return _complain(f"the output cannot be written: {error.strerror}", EXIT_FAILED)


def _drop_output() -> None:
    """What is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: object, code: int) -> int:
    line = " ".join(str(error).split())
    print(f"{PROGRAM}: error: {line}", file=sys.stderr, flush=True)
    return code
