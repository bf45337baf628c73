"""Short turns on the processor, so that long ones of others are cut when a request is due.

Linux, since 6.12, wakes a process with shorter turns ahead of those with longer ones, at the same share of the
processor and without any privilege. Keeps true: where that cannot be asked for, nothing changes. On two cores with
eight busy processes it took lag p99 from 5.5 to 4 ms, which is that kernel's tick: without preemption it looks no
sooner. Below that helps real-time priority alone (`chrt -f 1`, privileged: 0.06 ms there).
"""

from __future__ import annotations

import ctypes
import platform
import sys

TURN_NS = 100_000
"""The shortest that the kernel grants; a request takes about as long."""
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of sched_setattr and sched_getattr: the C library does not name them."""


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def take_short_turns(turn_ns: int = TURN_NS) -> bool:
    """For this process, if its policy is the common one; whether the kernel took it."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return False
    library = ctypes.CDLL(None)
    set_call, get_call = calls
    found = _Attributes()
    if library.syscall(get_call, 0, ctypes.byref(found), ctypes.sizeof(found), 0) or found.policy:
        return False
    found.size, found.runtime_ns = ctypes.sizeof(found), turn_ns
    return not library.syscall(set_call, 0, ctypes.byref(found), 0)


def turn_ns() -> int | None:
    """How long this process' turns are; None: the kernel does not say."""
    calls = _CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        return None
    found = _Attributes()
    failed = ctypes.CDLL(None).syscall(calls[1], 0, ctypes.byref(found), ctypes.sizeof(found), 0)
    return None if failed else int(found.runtime_ns)
