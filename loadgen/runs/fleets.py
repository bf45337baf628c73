"""Fleets that a study starts itself: `trieway up` as a process, one for each policy and number of workers.

Keeps true: a fleet that was started is ended, whatever happens. Does not know what is run against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence

from trieway.loadgen.errors import RunFailed
from trieway.loadgen.reports.study import Setting

UP = (sys.executable, "-m", "trieway", "up")
READY = "trieway ready on "
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
_LINES_KEPT = 20


@contextlib.asynccontextmanager
async def fleet_of(setting: Setting, arguments: Sequence[str] = (), program: Sequence[str] = UP) -> AsyncIterator[str]:
    """A running fleet's URL. `arguments`: more of `trieway up`. RunFailed: it did not start."""
    command = [*program, "--port", str(_free_port())]
    if setting.policy is not None:
        command += ["--policy", setting.policy]
    if setting.workers is not None:
        command += ["--workers", str(setting.workers)]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    reading: asyncio.Task[None] | None = None
    try:
        url = await _ready(process, setting)
        reading = asyncio.create_task(_read_on(process))
        yield url
    finally:
        await _stop(process)
        if reading is not None:
            await reading


async def _ready(process: asyncio.subprocess.Process, setting: Setting) -> str:
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=_LINES_KEPT)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while line := (await process.stdout.readline()).decode(errors="replace"):
                _, found, rest = line.partition(READY)
                if found:
                    return rest.split()[0]
                if line.strip():
                    last.append(line.strip())
    except TimeoutError:
        raise RunFailed(f"the fleet ({setting.name}) was not ready in {START_TIMEOUT_S:g} s") from None
    said = next((line for line in reversed(last) if "error" in line.lower()), last[-1] if last else "it said nothing")
    raise RunFailed(f"the fleet ({setting.name}) did not start: {said}")


async def _read_on(process: asyncio.subprocess.Process) -> None:
    """So that it never waits for a full pipe."""
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
