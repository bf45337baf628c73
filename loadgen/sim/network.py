"""The network: delays between processes, streams that deliver in order, links that are cut and healed.

Keeps true: what is sent on a stream arrives once and in order, unless a mishap (loss, duplicate, out of turn) befalls
it; while a link is cut nothing passes, and what waited passes once it is healed; nothing of a closed stream arrives.
Does not know what is sent.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from math import log
from typing import Any

from trieway.loadgen.sim.clock import Timeline
from trieway.loadgen.sim.config import NetworkSetup

Message = tuple[Callable[..., None], tuple[Any, ...]]


class Network:
    """Ways between named processes."""

    def __init__(self, timeline: Timeline, setup: NetworkSetup, rng: random.Random) -> None:
        self.timeline = timeline
        self.setup = setup
        self.rng = rng
        self.mishaps = setup.loss + setup.duplicate + setup.reorder > 0.0
        """False: streams are whole and in order (set so when the world heals)."""
        self._cuts: dict[tuple[str, str], list[Stream]] = {}

    def delay(self) -> float:
        """Seconds that one message takes."""
        setup = self.setup
        return setup.delay_s - setup.jitter_s * log(1.0 - self.rng.random()) if setup.jitter_s else setup.delay_s

    def is_cut(self, one: str, other: str) -> bool:
        """Nothing passes between these two now."""
        return bool(self._cuts) and _link(one, other) in self._cuts

    def cut(self, one: str, other: str) -> None:
        """From now on nothing passes, either way."""
        self._cuts.setdefault(_link(one, other), [])

    def heal(self, one: str, other: str) -> None:
        """What waited passes now."""
        for stream in self._cuts.pop(_link(one, other), ()):
            stream.resume()

    def heal_all(self) -> None:
        """No cut, and no mishap any more."""
        self.mishaps = False
        for one, other in list(self._cuts):
            self.heal(one, other)

    def wait(self, stream: Stream) -> None:
        """`stream` has something to deliver over a link that is cut."""
        self._cuts[stream.link].append(stream)

    def unlucky(self, chance: float) -> bool:
        """Whether a mishap of this chance befalls a message."""
        return self.mishaps and chance > 0.0 and self.rng.random() < chance


class Stream:
    """One direction of a connection. `frail`: mishaps befall its messages."""

    __slots__ = ("_frail", "_last", "_network", "_queue", "_waits", "link", "open")

    def __init__(self, network: Network, one: str, other: str, *, frail: bool = False) -> None:
        self.link = _link(one, other)
        self.open = True
        self._network = network
        self._queue: deque[Message] = deque()
        self._last = 0.0
        self._waits = False
        self._frail = frail

    def send(self, call: Callable[..., None], *arguments: Any) -> None:
        """Calls it at the other end, after the network's delay."""
        network = self._network
        if self._frail and network.mishaps:
            if network.unlucky(network.setup.loss):
                return
            if network.unlucky(network.setup.duplicate):
                self._push(call, arguments)
            if network.unlucky(network.setup.reorder):
                network.timeline.after(20.0 * network.delay(), self._overtaken, call, arguments)
                return
        self._push(call, arguments)

    def close(self) -> None:
        """Nothing arrives any more."""
        self.open = False
        self._queue.clear()

    def resume(self) -> None:
        """The link is healed."""
        self._waits = False
        for _ in range(len(self._queue)):
            self._network.timeline.after(self._network.delay(), self._arrive)

    def _push(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        timeline = self._network.timeline
        self._queue.append((call, arguments))
        self._last = max(self._last, timeline.now + self._network.delay())
        timeline.at(self._last, self._arrive)

    def _arrive(self) -> None:
        if not self._queue or self._waits:
            return
        if self._network.is_cut(*self.link):
            self._waits = True
            self._network.wait(self)
            return
        call, arguments = self._queue.popleft()
        call(*arguments)

    def _overtaken(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.open and not self._network.is_cut(*self.link):
            call(*arguments)


def _link(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
