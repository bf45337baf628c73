"""The client processes of a run: started together, listened to, stopped together.

Keeps true: none outlives `close`; one that dies is named, and what it had sent up is kept. Does not know what records
mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from time import monotonic

from trieway.loadgen.client.child import READ_BYTES
from trieway.loadgen.client.messages import (
    Batch,
    Finished,
    Frames,
    FromChild,
    Go,
    Job,
    Prepared,
    Stop,
    encode,
    encode_job,
    from_child,
)
from trieway.loadgen.errors import RunFailed

LEAD_S = 0.3
LEAD_S_PER_CALL = 2e-5
"""From the moment all are prepared to time zero: enough to hear of it, order all calls and make the first requests."""
PREPARE_TIMEOUT_S = 300.0
END_TIMEOUT_S = 30.0


class Processes:
    """Use `start`, then `batches` to the end, then `close`. Raises RunFailed where a process cannot start."""

    def __init__(self) -> None:
        self._children: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []
        self._heard: asyncio.Queue[tuple[int, FromChild | None]] = asyncio.Queue()
        self.start_s = 0.0
        self.finished: dict[int, Finished] = {}
        self.died: list[int] = []
        """Processes that ended before they were finished."""

    async def start(self, jobs: Sequence[Job]) -> float:
        """All prepared and told to go; time zero by time.monotonic(), which lies ahead."""
        for job in jobs:
            self._children.append(await self._spawn(job))
        for number, child in enumerate(self._children):
            self._readers.append(asyncio.create_task(self._read(number, child)))
        prepared = 0
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                while prepared < len(self._children):
                    number, message = await self._heard.get()
                    if not isinstance(message, Prepared):
                        raise RunFailed(f"client process {number} did not start")
                    prepared += 1
        except TimeoutError:
            raise RunFailed(f"{len(jobs) - prepared} client processes did not start in time") from None
        self.start_s = monotonic() + LEAD_S + LEAD_S_PER_CALL * max(len(job.workload.calls) for job in jobs)
        self._tell(Go(self.start_s))
        return self.start_s

    async def _spawn(self, job: Job) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trieway.loadgen.client.child",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=READ_BYTES, start_new_session=True,
        )  # fmt: skip
        assert child.stdin is not None
        child.stdin.write(encode_job(job))
        with contextlib.suppress(ConnectionError):
            await child.stdin.drain()
        return child

    async def _read(self, number: int, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        frames = Frames()
        while data := await child.stdout.read(READ_BYTES):
            for each in frames.feed(data):
                self._heard.put_nowait((number, from_child(each)))
        self._heard.put_nowait((number, None))

    async def batches(self) -> AsyncIterator[tuple[int, Batch]]:
        """Process number and batch, as they come, until every process has ended."""
        running = len(self._children)
        while running:
            number, message = await self._heard.get()
            if isinstance(message, Batch):
                yield number, message
            elif isinstance(message, Finished):
                self.finished[number] = message
            elif message is None:
                running -= 1
                if number not in self.finished:
                    self.died.append(number)

    def interrupt(self) -> None:
        """Cut short: the batches that are left come, and then the end."""
        self._tell(Stop())

    def _tell(self, message: Go | Stop) -> None:
        for child in self._children:
            if child.stdin is not None and not child.stdin.is_closing():
                child.stdin.write(encode(message))

    async def close(self) -> None:
        """End all of them."""
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()
        for child in self._children:
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await child.wait()
            except TimeoutError:
                child.kill()
                await child.wait()
        for task in self._readers:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
