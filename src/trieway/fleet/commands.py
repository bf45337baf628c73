"""What each command of the command line does, as functions of the parsed arguments.

Each imports what it needs when it runs: listing models must not load an HTTP client, a router must not load torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, TypeVar

from trieway.fleet.errors import EXIT_DONE, CommandError
from trieway.serving.config import RayConfig, RouterConfig, UpConfig, WorkerConfig
from trieway.serving.config_load import load, show

if TYPE_CHECKING:
    from trieway.fleet.options import Access

PROMPT_MAX_BYTES = 16 * 1024 * 1024
C = TypeVar("C", WorkerConfig, RouterConfig, UpConfig, RayConfig)


def _loaded(kind: type[C], asked: argparse.Namespace) -> C:
    return load(kind, flags=vars(asked), environ=os.environ, file=getattr(asked, "config", None))


def up(asked: argparse.Namespace) -> int:
    """`trieway up`."""
    config = _loaded(UpConfig, asked)
    from trieway.fleet.models import check_there
    from trieway.fleet.up import run_up

    check_there(config.model)
    return run_up(config)


def worker(asked: argparse.Namespace) -> int:
    """`trieway worker`."""
    config = _loaded(WorkerConfig, asked)
    from trieway.fleet.models import check_there
    from trieway.fleet.ports import check_free
    from trieway.worker.models.errors import ModelError

    check_free(config.host, config.port)
    check_there(config.model)
    from trieway.worker.main import run_worker

    try:
        return run_worker(config)
    except ModelError as error:
        raise CommandError(str(error)) from None


def router(asked: argparse.Namespace) -> int:
    """`trieway router`."""
    config = _loaded(RouterConfig, asked)
    from trieway.fleet.ports import check_free

    if not config.reuse_port:
        check_free(config.host, config.port)
    from trieway.router.main import run_router

    return run_router(config)


def config_show(asked: argparse.Namespace) -> int:
    """`trieway config show`."""
    config = _loaded(asked.kind, asked)
    if isinstance(config, UpConfig):
        from trieway.fleet.up import complete

        config = complete(config)
    print(show(config).rstrip())
    return EXIT_DONE


def models(asked: argparse.Namespace) -> int:
    """`trieway models`."""
    from trieway.fleet.models import models as listing

    print(listing())
    return EXIT_DONE


def demo(asked: argparse.Namespace) -> int:
    """`trieway demo`."""
    from trieway.fleet.console import Console
    from trieway.fleet.demo import demo as run

    print(asyncio.run(run(_access(asked), asked.model, asked.prefix_tokens, asked.seed, Console())))
    return EXIT_DONE


def calibrate(asked: argparse.Namespace) -> int:
    """`trieway calibrate`."""
    from trieway.fleet.calibrate import calibrate as run
    from trieway.fleet.console import Console
    from trieway.loadgen.client.loop import run_loop

    found = run_loop(run(_access(asked), asked.model, asked.repeats, Console()))  # as the load generator runs
    print(json.dumps(found.as_json(), indent=2))
    return EXIT_DONE


def tree(asked: argparse.Namespace) -> int:
    """`trieway tree`."""
    from trieway.fleet.tree_view import fetch_tree, tree_text

    found = asyncio.run(fetch_tree(_access(asked), asked.depth))
    print(json.dumps(found, indent=2) if asked.json else tree_text(found))
    return EXIT_DONE


def explain(asked: argparse.Namespace) -> int:
    """`trieway explain`."""
    from trieway.fleet.explain_view import explain_text, fetch_explanation

    prompt = _standard_input() if asked.prompt == "-" else asked.prompt
    found = asyncio.run(fetch_explanation(_access(asked), asked.model, prompt, chat=asked.chat))
    print(json.dumps(found, indent=2) if asked.json else explain_text(found))
    return EXIT_DONE


def _access(asked: argparse.Namespace) -> Access:
    from trieway.fleet.client import base_url
    from trieway.fleet.options import Access

    return Access(url=base_url(asked.url), key_file=asked.key_file)


def _standard_input() -> str:
    data = sys.stdin.buffer.read(PROMPT_MAX_BYTES + 1)
    if len(data) > PROMPT_MAX_BYTES:
        raise CommandError(f"the prompt is over {PROMPT_MAX_BYTES} bytes, more than a router takes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise CommandError("the prompt on standard input is not UTF-8") from None
