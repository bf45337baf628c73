"""Commands that are imported when they run, so that building the parser costs nothing.

Keeps true: an interrupt during the import comes after it, as one: in the middle Python's import would lose it, or show
where it was. Does not know commands.
"""

from __future__ import annotations

import argparse
import importlib
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def lazily(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """The function `name` of `module`, imported at its first call."""

    def run(asked: argparse.Namespace) -> int:
        with _interrupts_held():
            found = importlib.import_module(module)
        return int(getattr(found, name)(asked))

    return run


@contextmanager
def _interrupts_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
