"""Virtual time: one timeline for the whole fleet, and the clock that each process reads off it.

Keeps true: calls run in the order of their times, those of one time in the order in which they were asked for; no clock
runs backwards, whatever is done to its rate. Does not know who calls.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[..., Any]


class Timeline:
    """`now` is seconds from the start of the world."""

    __slots__ = ("_heap", "_serial", "now", "steps")

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._serial = 0

    def __len__(self) -> int:
        """Calls to come."""
        return len(self._heap)

    def at(self, when: float, call: Call, *arguments: Any) -> None:
        """Runs `call(*arguments)` at `when`, or now if that has passed."""
        self._serial += 1
        heapq.heappush(self._heap, (max(when, self.now), self._serial, call, arguments))

    def after(self, delay: float, call: Call, *arguments: Any) -> None:
        """Runs `call(*arguments)` `delay` seconds from now."""
        assert delay >= 0.0
        self.at(self.now + delay, call, *arguments)

    def step(self) -> bool:
        """Runs the next call; False if there is none."""
        if not self._heap:
            return False
        self.now, _, call, arguments = heapq.heappop(self._heap)
        self.steps += 1
        call(*arguments)
        return True


class LocalClock:
    """What a process takes for the time: monotone, from a start of its own, a little fast or slow."""

    __slots__ = ("_local", "_rate", "_since", "_timeline")

    def __init__(self, timeline: Timeline, start: float = 0.0, rate: float = 1.0) -> None:
        """`rate`: its seconds per true second."""
        assert rate > 0.0
        self._timeline = timeline
        self._since = timeline.now
        self._local = start
        self._rate = rate

    def now(self) -> float:
        """Local seconds."""
        return self.at(self._timeline.now)

    def at(self, when: float) -> float:
        """Local seconds at a true time not before the clock's last change."""
        return self._local + (when - self._since) * self._rate

    def skew(self, rate: float) -> None:
        """From now on it runs at another rate."""
        assert rate > 0.0
        self._local, self._since, self._rate = self.now(), self._timeline.now, rate
