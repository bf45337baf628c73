"""Operators and text methods of templates, each checked before it can grow.

Keeps true: a result within bounds equals what plain Python gives. Does not know Jinja's tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

from trieway.serving.meter import INT_BITS_MAX, ITEMS_MAX, Meter, RenderBoundExceeded, items, weigh

STRIP_CHARS_MAX = 1_024
_WIDE = re.compile(r"\d{5}")
_PERCENT_STAR = re.compile(r"%[^%a-zA-Z]*\*")


def add(meter: Meter, left: Any, right: Any) -> Any:
    """`left + right`."""
    if isinstance(left, str) and isinstance(right, str):
        meter.make(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        items(len(left) + len(right))
    return _bounded_int(left + right)


def multiply(meter: Meter, left: Any, right: Any) -> Any:
    """`left * right`."""
    if isinstance(left, int) and not isinstance(right, int):
        left, right = right, left
    if isinstance(right, int):
        if isinstance(left, str):
            meter.make(len(left) * max(0, right))
        elif isinstance(left, list | tuple):
            items(len(left) * max(0, right))
    return _bounded_int(left * right)


def power(meter: Meter, left: Any, right: Any) -> Any:
    """`left ** right`."""
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(0, right) > INT_BITS_MAX:
        raise RenderBoundExceeded(f"a number of more than {INT_BITS_MAX} bits")
    return left**right


def modulo(meter: Meter, left: Any, right: Any) -> Any:
    """`left % right`, of numbers or as text formatting."""
    if not isinstance(left, str):
        return left % right
    check_percent(left)
    meter.make(len(left) + left.count("%") * weigh(right))
    return left % right


def _bounded_int(value: Any) -> Any:
    if type(value) is int and value.bit_length() > INT_BITS_MAX:
        raise RenderBoundExceeded(f"a number of more than {INT_BITS_MAX} bits")
    return value


BINOPS: dict[str, Callable[[Meter, Any, Any], Any]] = {"+": add, "*": multiply, "**": power, "%": modulo}


def listed(values: Any) -> Any:
    """`values`, as a list where it is lazy."""
    if isinstance(values, list | tuple | dict | str):
        return values
    taken = list(islice(values, ITEMS_MAX + 1))
    items(len(taken))
    return taken


def before_text_method(meter: Meter, owner: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Bounds `owner.name(*args)` before it runs; gives the arguments to run it with."""
    if name == "join" and args:
        args = (listed(args[0]),)
        meter.make(weigh(args[0]) + len(owner) * len(args[0]))
    elif name == "replace" and len(args) >= 2:
        meter.make(replaced_chars(owner, args[0], args[1]))
    elif name in {"split", "rsplit"} and args and isinstance(args[0], str) and args[0]:
        items(owner.count(args[0]))
    elif name in {"split", "rsplit", "splitlines"}:
        items(len(owner) // 2)
    elif name in {"strip", "lstrip", "rstrip"} and args and isinstance(args[0], str):
        if len(args[0]) > STRIP_CHARS_MAX:
            raise RenderBoundExceeded(f"more than {STRIP_CHARS_MAX} characters to strip")
        meter.make(len(owner))
    else:
        meter.make(len(owner))
    return args


def replaced_chars(text: str, old: Any, new: Any) -> int:
    """At most how long `text.replace(old, new)` is."""
    if not isinstance(old, str) or not isinstance(new, str):
        return len(text)
    return len(text) + text.count(old) * len(new)


def check_percent(pattern: str) -> None:
    """Refuses `'%99999d'` and `'%*d'` in a percent format."""
    if _WIDE.search(pattern) or _PERCENT_STAR.search(pattern):
        raise RenderBoundExceeded("a field width of more than 9999, or one that is an argument")


def check_format(pattern: str) -> None:
    """Refuses `'{:>99999}'.format` and nested fields, whose width would come from the arguments."""
    depth = 0
    for char in pattern.replace("{{", "").replace("}}", ""):
        depth += (char == "{") - (char == "}")
        if depth > 1:
            raise RenderBoundExceeded("nested fields in a format")
    if _WIDE.search(pattern):
        raise RenderBoundExceeded("a field width of more than 9999")


def formatted(meter: Meter, run: Callable[..., str], fields: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Runs a checked `format`, whose pattern has `fields` fields, where even all arguments in each of them would do."""
    meter.make(fields * (weigh(args) + weigh(kwargs)))
    return run(*args, **kwargs)
