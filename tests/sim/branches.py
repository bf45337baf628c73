"""One simulated past, several futures: a fleet is played up to a moment once, and on from there in a forked process
for each way in which it may go on.

Keeps true: the parent's fleet is as it was before; a future's error is the test's. Does not know what is simulated.
"""

from __future__ import annotations

import gc
import os
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def branch(future: Callable[[], T]) -> T:
    """What `future` gives, computed in a fork of this process; it may change whatever it likes. The result is pickled.

    RuntimeError: it raised, with its traceback.
    """
    gc.collect()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The child runs pure Python to its end and never touches what other threads may have locked.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        gc.disable()
        os.close(reader)
        _run(future, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    found = pickle.loads(said) if said else "the forked process died"
    if isinstance(found, str):
        raise RuntimeError(found)
    (result,) = found
    return result


def _run(future: Callable[[], object], writer: int) -> None:
    try:
        try:
            said = pickle.dumps((future(),))
        except BaseException:  # the parent raises it
            said = pickle.dumps(traceback.format_exc())
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(said)
    finally:
        os._exit(0)
