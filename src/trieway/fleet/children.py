"""One child process: started, listened to, signalled, and reaped with everything it started.

It keeps true that a child dies with its supervisor (Linux: PR_SET_PDEATHSIG), that it has its own process group so a
terminal's Ctrl-C reaches only the supervisor, and that signals go only to process ids that this supervisor started
and has not reaped yet. It does not know why a child is started or stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trieway.fleet.lifecycle import Role

LINE_MAX_BYTES = 16 * 1024  # a longer line of a child's output is cut in pieces
READ_BYTES = 64 * 1024
ERROR_PREFIX = "trieway: error: "
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildSpec:
    """What to start and how to see that it serves. `environment` is put over the supervisor's own; None removes.
    `core`: the only one that it may use; None: all."""

    name: str
    role: Role
    command: tuple[str, ...]
    ready_url: str
    environment: Mapping[str, str | None] = field(default_factory=dict)
    core: int | None = None


def _in_the_child(parent: int, core: int | None) -> Callable[[], None]:
    """For the child, between fork and exec: keep to its core, and die when the thread that forked dies, also if it
    already has."""

    def arrange() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    return arrange


class ChildProcess:
    """A running child. Start it from the main thread: on Linux it dies with the thread that started it."""

    def __init__(self, spec: ChildSpec) -> None:
        """Start the process. Raises OSError where the command cannot be run."""
        self.spec = spec
        self.reason: str | None = None  # what the child itself said was wrong
        self._rest = b""
        self._process = subprocess.Popen(
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in {**os.environ, **spec.environment}.items() if value is not None},
            process_group=0,
            preexec_fn=_in_the_child(os.getpid(), spec.core),
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)

    @property
    def pid(self) -> int:
        """The process id, ours until `reap` has returned a code."""
        return self._process.pid

    @property
    def output_fd(self) -> int | None:
        """The descriptor to watch for output, None once it has ended."""
        return None if self._pipe.closed else self._pipe.fileno()

    def read_lines(self) -> list[str] | None:
        """The whole lines that have come since; None at the end of the output (then call `close_output`)."""
        try:
            data = os.read(self._pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [self._note(line) for line in lines]

    def close_output(self) -> list[str]:
        """End listening; what was not ended by a newline comes as a last line."""
        self._pipe.close()
        rest, self._rest = self._rest, b""
        return [self._note(rest)] if rest else []

    def _note(self, raw: bytes) -> str:
        line = raw[:LINE_MAX_BYTES].decode("utf-8", errors="replace").rstrip("\r")
        if line.startswith(ERROR_PREFIX):
            self.reason = line[len(ERROR_PREFIX) :]
        return line

    def ask_to_leave(self) -> None:
        """SIGTERM to the child alone: it ends its own work in its own order."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the child and to what it started."""
        self._signal_group(signal.SIGKILL)

    def reap(self) -> int | None:
        """The exit code if the process has ended (negative: the signal), else None. Leftovers of its group are killed
        first, while its id still is ours."""
        if not hasattr(os, "waitid"):  # macOS: ends are seen only by reaping
            return self._process.poll()
        if self._process.returncode is None and _has_ended(self.pid):
            self._signal_group(signal.SIGKILL)
            self._process.wait()
        return self._process.returncode

    def wait(self) -> int:
        """Block until the process has ended, for use after `kill`."""
        return self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            os.kill(self.pid, number)  # not reaped, so the id cannot have passed to another process

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
                pass


def _has_ended(pid: int) -> bool:
    """True if this child, not reaped yet, has ended."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
