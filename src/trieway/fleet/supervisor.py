"""The thin half of supervision: one asyncio loop in the main thread that performs what `Supervision` decides.

It starts and signals processes, passes their output on with their names in front, asks their readiness probes, and
turns signals into events. It keeps no rules of its own.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx

from trieway.fleet.children import ChildProcess, ChildSpec
from trieway.fleet.lifecycle import (
    AnnounceReady,
    Answered,
    Complete,
    Effect,
    Event,
    Exited,
    Limits,
    Phase,
    Say,
    Start,
    Started,
    Stop,
    StopAsked,
    Tick,
)
from trieway.fleet.supervision import Supervision

PROBE_EVERY_S = 0.1
PROBE_TIMEOUT_S = 2.0
COMMAND_NOT_RUN = 127

Line = Callable[[str], None]
Whole = Callable[[httpx.AsyncClient], Awaitable[bool]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlets:
    """Where words go: `say` the fleet's own lines, `pass_on` the children's, `show` the state of the start, `ready`
    the one ready line's text made from name -> pid."""

    say: Line
    pass_on: Callable[[str, str], None]
    show: Callable[[dict[str, Phase]], None]
    ready: Callable[[dict[str, int]], None]


class Supervisor:
    """Runs children until stopped or until they cannot be kept alive."""

    def __init__(self, specs: Sequence[ChildSpec], limits: Limits, whole: Whole, outlets: Outlets) -> None:
        """`whole(client)`: True once the router reports all workers; asked while every child is ready."""
        self._specs = {spec.name: spec for spec in specs}
        assert len(self._specs) == len(specs), "names are unique"
        self._core = Supervision({spec.name: spec.role for spec in specs}, limits)
        self._whole = whole
        self._out = outlets
        self._processes: dict[str, ChildProcess] = {}
        self._wake = asyncio.Event()

    @property
    def failure(self) -> str | None:
        """Why the fleet gave up, if it did."""
        return self._core.failure

    def ask_to_stop(self) -> None:
        """Begin to stop; a second call stops at once."""
        self._report(StopAsked())

    async def run(self) -> int:
        """Run to the end; returns the exit code. No child is left whatever is raised."""
        loop = asyncio.get_running_loop()
        ends = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup a closed terminal ends nothing
            ends.append(signal.SIGHUP)
        for number in ends:
            loop.add_signal_handler(number, self.ask_to_stop)
        loop.add_signal_handler(signal.SIGCHLD, self._wake.set)
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=PROBE_TIMEOUT_S) as client:
                prober = asyncio.create_task(self._probe_for_ever(client))
                prober.add_done_callback(lambda _: self._wake.set())
                try:
                    await self._watch(prober)
                finally:
                    prober.cancel()
                    await asyncio.gather(prober, return_exceptions=True)
        finally:
            for number in (*ends, signal.SIGCHLD):
                loop.remove_signal_handler(number)
            self._kill_all()
        return self._core.exit_code

    async def _watch(self, prober: asyncio.Task[None]) -> None:
        self._feed(Tick())
        while not self._core.finished:
            wake_at = self._core.wake_at()
            pause = None if wake_at is None else max(0.0, wake_at - self._now())
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                pass
            if prober.done():
                prober.result()  # it never ends by itself: raise what broke it
            self._wake.clear()
            self._reap()
            self._feed(Tick())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- events in, effects out -----------------------------------------------------------------------------------

    def _report(self, event: Event) -> None:
        """An event from outside the watching loop, whose waits it may change."""
        self._feed(event)
        self._wake.set()

    def _feed(self, event: Event) -> None:
        pending: list[Event] = [event]
        while pending:
            answers = [self._perform(effect) for effect in self._core.handle(pending.pop(0), self._now())]
            pending.extend(answer for answer in answers if answer is not None)
        self._core.check()

    def _perform(self, effect: Effect) -> Event | None:
        match effect:
            case Start(name=name):
                return self._start(self._specs[name])
            case Stop(name=name, hard=hard):
                if process := self._processes.get(name):
                    process.kill() if hard else process.ask_to_leave()
            case Say(text=text):
                self._out.say(text)
            case AnnounceReady():
                self._out.ready({name: process.pid for name, process in self._processes.items()})
        return None

    def _start(self, spec: ChildSpec) -> Event:
        try:
            process = ChildProcess(spec)
        except OSError as error:
            return Exited(name=spec.name, code=COMMAND_NOT_RUN, reason=f"{spec.command[0]}: {error.strerror}")
        self._processes[spec.name] = process
        assert process.output_fd is not None
        asyncio.get_running_loop().add_reader(process.output_fd, self._read, process)
        return Started(name=spec.name)

    def _read(self, process: ChildProcess) -> None:
        lines = process.read_lines()
        if lines is None:
            self._end_output(process)
        else:
            self._pass_on(process, lines)

    def _end_output(self, process: ChildProcess) -> None:
        if (fd := process.output_fd) is not None:
            asyncio.get_running_loop().remove_reader(fd)
            self._pass_on(process, process.close_output())

    def _pass_on(self, process: ChildProcess, lines: list[str]) -> None:
        for line in lines:
            self._out.pass_on(process.spec.name, line)

    def _reap(self) -> None:
        for name, process in list(self._processes.items()):
            code = process.reap()
            if code is None:
                continue
            self._drain(process)
            del self._processes[name]
            self._feed(Exited(name=name, code=code, reason=process.reason))

    def _drain(self, process: ChildProcess) -> None:
        """Take the last words of a process that has ended."""
        while process.output_fd is not None and (lines := process.read_lines()):
            self._pass_on(process, lines)
        self._end_output(process)

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            self._end_output(process)
        for process in self._processes.values():
            process.wait()

    # -- probes ---------------------------------------------------------------------------------------------------

    async def _probe_for_ever(self, client: httpx.AsyncClient) -> None:
        while True:
            if not self._core.complete_once and not self._core.stopping:
                self._out.show(self._core.phases())
            starting = [name for name, phase in self._core.phases().items() if phase is Phase.STARTING]
            await asyncio.gather(*(self._probe(client, name) for name in starting))
            if not self._core.complete_once and await self._is_whole(client):
                self._report(Complete())
            await asyncio.sleep(PROBE_EVERY_S)

    async def _probe(self, client: httpx.AsyncClient, name: str) -> None:
        process = self._processes.get(name)
        if process is None:
            return
        answered = await _is_ok(client, self._specs[name].ready_url)
        if answered and self._processes.get(name) is process:
            self._report(Answered(name=name))

    async def _is_whole(self, client: httpx.AsyncClient) -> bool:
        if any(phase is not Phase.READY for phase in self._core.phases().values()):
            return False
        try:
            return await self._whole(client)
        except httpx.HTTPError:
            return False


async def _is_ok(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
