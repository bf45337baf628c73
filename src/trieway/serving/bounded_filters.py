"""The filters and tests that chat templates may use, each behind the meter.

Keeps true: a filter not listed here does not exist; what a listed one gives within bounds is what Jinja's own gives.
`tojson` is the one of the chat-template convention (plain JSON, no HTML escapes). Filters whose names begin with `%`
are internal: sandbox.py puts them into a template's tree, no template can name them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, MappingView, Sized
from typing import Any

from jinja2 import pass_context
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import _PassArg

from trieway.serving import bounded_ops
from trieway.serving.meter import Meter, RenderBoundExceeded, flat, items, weigh

Filter = Callable[..., Any]

NUMBER_MAX = 100_000
"""Largest number given to a filter as an argument: widths, sizes of batches."""
JSON_INDENT_MAX = 16

_CONSTANT = ("attr", "count", "d", "default", "first", "items", "last", "length")
_LAZY = ("map", "reject", "rejectattr", "select", "selectattr")
_TEXT = ("capitalize", "e", "escape", "format", "indent", "lower", "replace", "safe", "string", "title", "trim")
_MORE_TEXT = ("truncate", "upper", "wordcount")
_NUMBERS = ("abs", "float", "int", "max", "min", "round", "sum")
_ITEMS = ("batch", "dictsort", "groupby", "list", "slice", "sort", "unique")
_WHOLE = (*_TEXT, *_MORE_TEXT, *_NUMBERS, *_ITEMS, "join", "reverse")
_COMPARING = (
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "eq",
    "equalto",
    "ne",
    "ge",
    "gt",
    "greaterthan",
    "le",
    "lt",
    "lessthan",
)


def _meter(context: Context) -> Meter:
    return context.environment.meter  # type: ignore[attr-defined,no-any-return]


def _own_argument(function: Filter) -> Callable[[Context], tuple[Any, ...]]:
    """What Jinja's own filter wants before its value: nothing, or one part of the context."""
    wanted = _PassArg.from_obj(function)
    if wanted is _PassArg.context:
        return lambda context: (context,)
    if wanted is _PassArg.eval_context:
        return lambda context: (context.eval_ctx,)
    if wanted is _PassArg.environment:
        return lambda context: (context.environment,)
    return lambda context: ()


def _cheap(function: Filter) -> Filter:
    """For filters that neither walk nor copy their value."""
    own = _own_argument(function)

    @pass_context
    def bounded(context: Context, *args: Any, **kwargs: Any) -> Any:
        _meter(context).tick()
        return function(*own(context), *args, **kwargs)

    return bounded


def _whole(name: str, function: Filter) -> Filter:
    """For filters that walk all of their value and may make a new one."""
    own = _own_argument(function)
    growth = _GROWTH.get(name)

    @pass_context
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(context)
        meter.tick()
        if isinstance(value, Iterator | MappingView):
            value = bounded_ops.listed(value)
        size = weigh(value) + weigh(args) + weigh(kwargs)
        if any(isinstance(each, int) and abs(each) > NUMBER_MAX for each in (*args, *kwargs.values())):
            raise RenderBoundExceeded(f"a number over {NUMBER_MAX} given to the filter {name}")
        if name in _ITEMS and isinstance(value, Sized):
            items(len(value))
        meter.make(size if growth is None else size + growth(value, *args, **kwargs))
        return function(*own(context), value, *args, **kwargs)

    return bounded


def _replace_growth(value: Any, old: Any = "", new: Any = "", count: Any = None) -> int:
    return bounded_ops.replaced_chars(str(value), str(old), str(new))


def _indent_growth(value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:
    step = len(width) if isinstance(width, str) else int(width)
    return (str(value).count("\n") + 1) * step


def _join_growth(value: Any, d: Any = "", attribute: Any = None) -> int:
    return len(str(d)) * len(value) if isinstance(value, Sized) else 0


def _format_growth(value: Any, *args: Any, **kwargs: Any) -> int:
    pattern = str(value)
    bounded_ops.check_percent(pattern)
    return pattern.count("%") * (weigh(args) + weigh(kwargs))


def _sum_growth(value: Any, attribute: Any = None, start: Any = 0) -> int:
    if not isinstance(start, int | float):
        raise TypeError("sum adds numbers only")
    return 0


_GROWTH: dict[str, Callable[..., int]] = {
    "replace": _replace_growth,
    "indent": _indent_growth,
    "join": _join_growth,
    "format": _format_growth,
    "sum": _sum_growth,
}


@pass_context
def tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`value` as JSON, with json.dumps' arguments."""
    meter = _meter(context)
    meter.tick()
    value = bounded_ops.listed(value) if isinstance(value, Iterator | MappingView) else value
    if isinstance(indent, str) or (indent is not None and not 0 <= indent <= JSON_INDENT_MAX):
        raise RenderBoundExceeded(f"tojson: an indent from 0 to {JSON_INDENT_MAX} is needed")
    if separators is not None and sum(map(len, separators)) > JSON_INDENT_MAX:
        raise RenderBoundExceeded("tojson: separators are too long")
    meter.make(weigh(value))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    meter.make(len(text))
    return text


@pass_context
def _tick(context: Context, value: Any) -> Any:
    _meter(context).tick()
    return value


@pass_context
def _round(context: Context, literal_chars: int) -> str:
    meter = _meter(context)
    meter.tick()
    meter.make(literal_chars)
    return ""


@pass_context
def _text(context: Context, value: Any) -> str:
    return _meter(context).text(value)


@pass_context
def _add(context: Context, *parts: Any) -> Any:
    """Sums from the left. Plain strings, the usual case, are joined at once."""
    meter = _meter(context)
    chars = 0
    for part in parts:
        if type(part) is not str:
            break
        chars += len(part)
    else:
        meter.make(chars)
        return "".join(parts)
    total = parts[0]
    for part in parts[1:]:
        total = bounded_ops.add(meter, total, part)
    return total


@pass_context
def _concat(context: Context, *parts: Any) -> str:
    meter = _meter(context)
    texts = [meter.text(part) for part in parts]
    meter.make(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _container(context: Context, value: Any) -> Any:
    weigh(value)
    return value


@pass_context
def _compare(context: Context, value: Any) -> Any:
    _meter(context).tick()
    return flat(value)


def _comparing(function: Any) -> Callable[..., Any]:
    return lambda value, *args: function(flat(value), *args)


FILTERS: dict[str, Filter] = {
    **{name: _cheap(JINJA_FILTERS[name]) for name in (*_CONSTANT, *_LAZY)},
    **{name: _whole(name, JINJA_FILTERS[name]) for name in _WHOLE},
    "tojson": tojson,
}
INTERNAL: dict[str, Filter] = {
    "%tick": _tick,
    "%round": _round,
    "%text": _text,
    "%add": _add,
    "%concat": _concat,
    "%container": _container,
    "%compare": _compare,
}
TESTS: dict[str, Callable[..., Any]] = {name: _comparing(JINJA_TESTS[name]) for name in _COMPARING}
