"""Many simulations in several processes, until they are done or an interrupt comes.

Keeps true: results come in the order of their tasks; after an interrupt no more come and the processes are ended at
once; none outlives us, however we die. Does not know what is simulated.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from trieway.loadgen.errors import RunFailed
from trieway.loadgen.simulations.playing import Stop

LOOK_S = 0.1
"""How soon an interrupt is noticed."""
_PARENT_DEATH_SIGNAL = 1
Task = TypeVar("Task")
Result = TypeVar("Result")


def each(function: Callable[[Task], Result], tasks: Sequence[Task], processes: int, stop: Stop) -> Iterator[Result]:
    """`function` of each task, both fit to be pickled. RunFailed: a process died."""
    with ProcessPoolExecutor(
        min(processes, max(len(tasks), 1)), mp_context=multiprocessing.get_context("spawn"), initializer=_begin
    ) as pool:
        futures = [pool.submit(function, task) for task in tasks]
        try:
            for future in futures:
                if not _awaited(future, stop):
                    return
                yield future.result()
        except BrokenProcessPool:
            if not stop.asked:  # an interrupt of the whole group has reached them first
                raise RunFailed("a simulating process died; was there memory enough for --processes?") from None
        finally:
            _end(pool, futures)


def _awaited(future: Future[Result], stop: Stop) -> bool:
    """False: interrupted meanwhile."""
    while not stop.asked:
        with contextlib.suppress(NotYet):
            future.exception(LOOK_S)
            return not stop.asked
    return False


def _end(pool: ProcessPoolExecutor, futures: Sequence[Future[Result]]) -> None:
    if all(future.done() for future in futures):
        return
    for process in multiprocessing.active_children():
        process.kill()
    # the pool's own thread reaps them: two waiting for one process can both leave it on the books
    pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """In each process: interrupts are the parent's to judge, its death is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):  # elsewhere than on Linux
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
