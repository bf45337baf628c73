"""A client process: `python -m trieway.loadgen.client.child`, job on standard input, records on standard output.

Keeps true: it ends when its parent does (its standard input closes); an interrupt of all processes is the parent's to
judge; records go up as they come, so that little is lost if it dies. Does not know other client processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from time import monotonic, process_time

from trieway.loadgen.client.driver import Driver
from trieway.loadgen.client.loop import run_loop
from trieway.loadgen.client.messages import (
    Batch,
    Finished,
    Frames,
    Go,
    Job,
    Prepared,
    ToChild,
    decode_job,
    encode,
    to_child,
)
from trieway.loadgen.client.pool import Pool
from trieway.loadgen.client.turns import take_short_turns
from trieway.loadgen.records import Record

UPDATE_S = 0.5
READ_BYTES = 1 << 20


def fix_collector() -> None:
    """The collector stops the loop for longer than a lag that we would report: what is there now stays out of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


class Child:
    """One run of one job."""

    def __init__(self, job: Job, commands: asyncio.Queue[ToChild | None], out: asyncio.StreamWriter) -> None:
        self._job = job
        self._commands = commands
        self._out = out
        self._records: list[Record] = []
        self._answers: list[str] = []

    async def run(self) -> None:
        """Prepared, go, batches, finished."""
        pool = Pool(self._job.dialect.url, connections_max=self._job.connections_max)
        driver = Driver(self._job.workload, self._job.pace, self._job.dialect, pool, self._keep)
        fix_collector()
        self._out.write(encode(Prepared()))
        first = await self._commands.get()
        if not isinstance(first, Go):
            await pool.close()
            return
        # Nothing of the start-up counts; the driver makes its first requests within the time that is left.
        before_s = process_time()
        listening = asyncio.create_task(self._listen(driver))
        updating = asyncio.create_task(self._update(driver))
        try:
            await driver.run(first.start_s)
        finally:
            for task in (listening, updating):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._send(driver)
        self._out.write(
            encode(
                Finished(
                    unsent=driver.unsent,
                    cpu_s=process_time() - before_s,
                    wall_s=max(monotonic() - first.start_s, 0.0),
                    connections=pool.connections_most,
                    messages=driver.messages,
                    hints=driver.tally.hints,
                    hints_failed=driver.tally.hints_failed,
                )
            )
        )
        await pool.close()
        await self._out.drain()

    def _keep(self, record: Record, answer: str) -> None:
        self._records.append(record)
        self._answers.append(answer)

    async def _listen(self, driver: Driver) -> None:
        command = await self._commands.get()
        assert not isinstance(command, Go), "it goes once"
        driver.interrupt()

    async def _update(self, driver: Driver) -> None:
        while True:
            await asyncio.sleep(UPDATE_S)
            self._send(driver)

    def _send(self, driver: Driver) -> None:
        batch = Batch(records=self._records, answers=self._answers, sent=driver.tally.sent, in_flight=driver.in_flight)
        self._records, self._answers = [], []
        self._out.write(encode(batch))


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout.buffer)
    out = asyncio.StreamWriter(transport, protocol, None, loop)
    job: asyncio.Future[Job] = loop.create_future()
    commands: asyncio.Queue[ToChild | None] = asyncio.Queue()

    async def read() -> None:
        frames = Frames()
        while data := await reader.read(READ_BYTES):
            for each in frames.feed(data):
                if job.done():
                    commands.put_nowait(to_child(each))
                else:
                    _decode(each, job)
        if not job.done():
            job.cancel()
        commands.put_nowait(None)

    reading = asyncio.create_task(read())
    try:
        await Child(await job, commands, out).run()
    except (asyncio.CancelledError, ConnectionError):
        pass  # the parent is gone: nobody is left to tell
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        out.close()


def _decode(data: bytes, job: asyncio.Future[Job]) -> None:
    try:
        job.set_result(decode_job(data))
    except Exception as error:  # whoever waits for the job raises it
        job.set_exception(error)


def main() -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    take_short_turns()
    run_loop(_serve())


if __name__ == "__main__":
    main()
