"""A timer finer than the event loop's: uvloop and epoll wake at whole milliseconds, Linux' timerfd at microseconds.

Keeps true: it rings once for each setting, never before its time; a later setting replaces an earlier one. Elsewhere
than on Linux the loop's own timers serve, up to a millisecond late. Does not know what is due.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from time import monotonic

_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
LOOP_TIMER_S = 0.001


class _Moment(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Moment), ("value", _Moment))


def _library() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        return library if hasattr(library, "timerfd_create") else None
    except OSError:
        return None


class Alarm:
    """Calls `ring` when its time has come. `close` it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._library = _library()
        self._file = -1
        self._handle: asyncio.TimerHandle | None = None
        self.armed = False
        if self._library is not None:
            self._file = int(self._library.timerfd_create(1, _FLAGS))  # 1: CLOCK_MONOTONIC
        if self._file >= 0:
            loop.add_reader(self._file, self._read)

    def set(self, at_s: float) -> None:
        """By time.monotonic(); what has passed rings at once."""
        self.armed = True
        if self._file < 0:
            self._stop_handle()
            self._handle = self._loop.call_later(max(at_s - monotonic(), LOOP_TIMER_S), self._woken)
            return
        nanoseconds = max(int(at_s * 1e9) + 1, 1)  # 0 would disarm it
        self._write(_Moment(nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000))

    def cancel(self) -> None:
        """It will not ring."""
        if self.armed:
            self.armed = False
            self._stop_handle()
            if self._file >= 0:
                self._write(_Moment(0, 0))

    def close(self) -> None:
        """Give its file back."""
        self.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _write(self, moment: _Moment) -> None:
        assert self._library is not None
        setting = _Setting(_Moment(0, 0), moment)
        failed = self._library.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(setting), None)
        assert not failed, f"timerfd_settime: {os.strerror(ctypes.get_errno())}"

    def _read(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # set anew since it woke the loop
        self._woken()

    def _woken(self) -> None:
        if self.armed:
            self.armed = False
            self._ring()

    def _stop_handle(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
