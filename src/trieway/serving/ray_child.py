"""The server process behind a replica: started, listened to, asked to leave, ended.

Keeps true: the child dies with the replica's process, however that ends; its lines go on to the replica's own output;
signals go only to a process that has not been reaped. Does not know what the child serves, nor Ray.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

LINE_MAX_BYTES = 16384
LINES_MAX = 20
READY = re.compile(r"^trieway (?:worker|router) ready on (?P<url>http://\S+?)(?: \(own port (?P<own>http://\S+?)\))?$")


class ChildFailed(Exception):
    """The child ended before it served. The message holds its last lines."""


class Child:
    """`command` is what follows `python -m trieway`. `ended` is called from a thread when the process is gone."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        ended: Callable[[int], None] = lambda code: None,
    ) -> None:
        self._command = [sys.executable, "-m", "trieway", *command]
        self._environment = {**os.environ, **(environment or {})}
        self._ended = ended
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._gone = threading.Event()
        self.url = ""
        """Where it serves, once it is ready."""
        self.own_url = ""
        """A port that nobody shares; the same as `url` where none does."""
        # The kernel ends the child with the *thread* that started it: this one lives as long as the child.
        self._keeper = threading.Thread(target=self._keep, name="trieway-child", daemon=True)
        self._keeper.start()

    @property
    def pid(self) -> int:
        """0 while it is not started."""
        process = self._process
        return process.pid if process is not None else 0

    @property
    def alive(self) -> bool:
        return not self._gone.is_set()

    def wait_ready(self, timeout_s: float) -> None:
        """Blocks until the child says that it serves. Raises ChildFailed."""
        if not self._ready.wait(timeout_s):
            self.kill()
            raise ChildFailed(f"not ready within {timeout_s:g} s: {self._last()}")
        if not self.url:
            raise ChildFailed(f"it ended: {self._last()}")

    def ask_to_leave(self) -> None:
        """SIGTERM: it ends its work in its own order."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def wait_gone(self, timeout_s: float) -> bool:
        """Blocks until the process has ended; False if it has not."""
        return self._gone.wait(timeout_s)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            process = self._process
            if process is not None and process.returncode is None:
                process.send_signal(number)

    def _last(self) -> str:
        return " | ".join(self._lines) or "it said nothing"

    def _keep(self) -> None:
        code = 1
        try:
            launcher = [sys.executable, "-m", "trieway.serving.ray_exec", str(os.getpid())]
            process = subprocess.Popen(
                [*launcher, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
            with self._lock:
                self._process = process
            assert process.stdout is not None
            with process.stdout as pipe:
                while line := pipe.readline(LINE_MAX_BYTES):
                    self._heard(line.decode("utf-8", errors="replace").rstrip())
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with self._lock:
                code = process.wait()
        except OSError as error:
            self._lines.append(f"cannot be started: {error}")
        finally:
            self._gone.set()
            self._ready.set()
            self._ended(code)

    def _heard(self, line: str) -> None:
        self._lines.append(line)
        print(line, flush=True)
        found = READY.match(line)
        if found is not None:
            self.url = found["url"]
            self.own_url = found["own"] or found["url"]
            self._ready.set()
