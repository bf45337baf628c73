"""Bounds on what one rendering of a chat template may do.

A template comes with a model, so it is code from outside; router and worker run it on their event loops. Three bounds
hold together:

- `VALUE_CHARS_MAX`: no text, and no container written out as text, is longer;
- `MADE_CHARS_MAX`: all texts made in one rendering, thrown away or not, add up to no more;
- `TICKS_MAX` and `CPU_S_MAX`: every loop round, macro, call, filter and `in` is a tick, and each 64th looks at the CPU
  clock. What happens between two ticks works on values of bounded size. (The time counts from the first look: most
  renderings end before it, and the clock is a system call.)

Keeps true: a rendering that stays within the bounds never depends on the clock. Does not know Jinja's environment.
"""

from __future__ import annotations

import time
from typing import Any

from jinja2 import Undefined

VALUE_CHARS_MAX = 20 * 1024 * 1024
MADE_CHARS_MAX = 256 * 1024 * 1024
ITEMS_MAX = 1_000_000
TICKS_MAX = 2_000_000
CPU_S_MAX = 2.0
INT_BITS_MAX = 4_096
_LOOK_EVERY = 64
_NODE_CHARS = 8
"""What an element of a container weighs besides its own text."""


class RenderBoundExceeded(Exception):
    """The template does more than one rendering may."""


class Meter:
    """Counts one rendering. `now` is the rendering's time: whole seconds since 1970."""

    __slots__ = ("chars_left", "deadline", "now", "ticks_left")

    def __init__(self, now: int) -> None:
        self.now = now
        self.ticks_left = TICKS_MAX
        self.chars_left = MADE_CHARS_MAX
        self.deadline: float | None = None

    def tick(self) -> None:
        """One step of work."""
        self.ticks_left -= 1
        if self.ticks_left % _LOOK_EVERY == 0:
            if self.ticks_left < 0:
                raise RenderBoundExceeded(f"more than {TICKS_MAX} steps")
            used_s = time.thread_time()
            if self.deadline is None:
                self.deadline = used_s + CPU_S_MAX
            elif used_s > self.deadline:
                raise RenderBoundExceeded(f"more than {CPU_S_MAX:g} s of CPU time")

    def make(self, chars: int) -> None:
        """A text of `chars` characters is about to be made."""
        if chars > VALUE_CHARS_MAX:
            raise RenderBoundExceeded(f"a text of more than {VALUE_CHARS_MAX} characters")
        self.chars_left -= chars
        if self.chars_left < 0:
            raise RenderBoundExceeded(f"more than {MADE_CHARS_MAX} characters made in all")

    def text(self, value: Any) -> str:
        """`str(value)`, bounded; refuses objects whose text would be an address in memory."""
        kind = type(value)
        if kind is not str:
            weigh(value)
            value = str(value)
        self.make(len(value))
        return value  # type: ignore[no-any-return]


def items(count: int) -> None:
    """A list of `count` elements is about to be made."""
    if count > ITEMS_MAX:
        raise RenderBoundExceeded(f"a list of more than {ITEMS_MAX} elements")


def weigh(value: Any) -> int:
    """Characters that `value` would take written out, roughly; an element met twice counts twice.

    Raises RenderBoundExceeded over VALUE_CHARS_MAX, TypeError for what is neither text nor data.
    """
    total = 0
    stack = [value]
    while stack:
        value = stack.pop()
        total += _NODE_CHARS
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, int):
            total += value.bit_length() // 3
        elif isinstance(value, list | tuple):
            stack.extend(value)
        elif isinstance(value, range):
            total += _NODE_CHARS * len(value)
        elif isinstance(value, dict):
            stack.extend(value.keys())
            stack.extend(value.values())
        elif not (value is None or isinstance(value, float | Undefined)):
            raise TypeError(f"a {type(value).__name__} can be neither printed nor handed on")
        if total > VALUE_CHARS_MAX:
            raise RenderBoundExceeded(f"a value of more than {VALUE_CHARS_MAX} characters")
    return total


def flat(value: Any) -> Any:
    """`value` itself, weighed where it is a container: for comparisons, which would walk all of it."""
    if isinstance(value, list | tuple | dict):
        weigh(value)
    return value
