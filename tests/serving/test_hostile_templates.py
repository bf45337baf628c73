"""Templates that loop, explode, pry or print addresses: each is stopped, soon, and without much memory."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from trieway.serving import meter
from trieway.serving.bounded_filters import FILTERS
from trieway.serving.chat_template import ChatTemplate, TemplateInvalid
from trieway.serving.errors import BadRequest
from trieway.serving.meter import Meter, RenderBoundExceeded, weigh

MESSAGES = [{"role": "user", "content": "secret-" * 2000}]
MIB = 1024 * 1024


def refused(source: str, *, bytes_max: int | None = None) -> str:
    """The refusal's message; fails where the template renders, takes long, or takes more than `bytes_max`."""
    try:
        template = ChatTemplate(source)
    except TemplateInvalid as error:
        return str(error)
    if bytes_max is not None:
        tracemalloc.start()
    began = time.thread_time()
    try:
        with pytest.raises(BadRequest) as caught:
            template.render(MESSAGES, now=0)
        assert time.thread_time() - began < 6
        assert bytes_max is None or tracemalloc.get_traced_memory()[1] < bytes_max
    finally:
        tracemalloc.stop()
    assert ChatTemplate("ok").render(MESSAGES, now=0) == "ok"
    return caught.value.message


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds a hundredth as high: the same paths, sooner."""
    monkeypatch.setattr(meter, "TICKS_MAX", 40_000)
    monkeypatch.setattr(meter, "VALUE_CHARS_MAX", 200_000)
    monkeypatch.setattr(meter, "MADE_CHARS_MAX", 2_000_000)


LOOPS = {
    "nested": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filtered": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "else": (
        "{% for a in range(99999) %}{% for b in [] %}{% else %}{% for c in range(999) %}{% endfor %}"
        "{% endfor %}{% endfor %}"
    ),
    "macro doubling": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "call block": (
        "{% macro m() %}{{ caller() }}{% endmacro %}{% for a in range(99999) %}{% call m() %}x{% endcall %}{% endfor %}"
    ),
    "recursive": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "silent macro": (
        "{% macro m(n) %}{% if n %}{% set x = m(n-1) %}{% set y = m(n-1) %}{% endif %}{% endmacro %}{{ m(90) }}"
    ),
    "filters": "{% for a in range(99999) %}{% set x = messages | length %}{% endfor %}",
    "mapped": "{% for a in range(9999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "in": "{% for a in range(99999) %}{% if 'zzz' in messages[0].content %}{% endif %}{% endfor %}",
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("source", LOOPS.values(), ids=LOOPS.keys())
def test_a_loop_without_end(source: str) -> None:
    message = refused(source)
    assert "too much" in message or "RecursionError" in message


GROWTH = {
    "repeat": "{{ 'x' * 10**9 }}",
    "repeat from the left": "{{ 10**9 * 'x' }}",
    "repeat a list": "{{ [1] * 10**9 }}",
    "concat doubling": (
        "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    ),
    "add doubling": "{% set ns = namespace(s='x') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "list doubling": "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "power": "{{ 9 ** 99999999 }}",
    "squaring": "{% set ns = namespace(s=9) %}{% for a in range(60) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
    "many texts": (
        "{% set ns = namespace(s='') %}{% for a in range(9999) %}{% set ns.s = messages[0].content ~ a %}{% endfor %}"
    ),
    "output": "{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}",
    "set block": "{% set x %}{% for a in range(99999) %}{{ messages[0].content }}{% endfor %}{% endset %}",
    "literal text": "{% set x %}{% for a in range(99999) %}" + "y" * 1000 + "{% endfor %}{% endset %}",
    "literal in a macro": "{% macro m() %}"
    + "y" * 1000
    + "{% endmacro %}{% for a in range(99999) %}{{ m() }}{% endfor %}",
    "replace": "{{ messages[0].content.replace('', messages[0].content) }}",
    "replace filter": "{{ messages[0].content | replace('s', messages[0].content) }}",
    "join": "{{ messages[0].content.join(messages[0].content | list) }}",
    "join filter": "{{ messages[0].content | list | join(messages[0].content) }}",
    "join lazy": "{{ 'x'.join(range(99999) | map('string') | map('replace', '1', messages[0].content)) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent precision": "{{ '%.99999f' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent repeated": "{{ '%(a)s' * 999 % {'a': messages[0].content} }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format nested": "{{ '{:{}}'.format(1, 999999999) }}",
    "format map": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "format repeated": "{{ ('{0}' * 999).format(messages[0].content) }}",
    "format by attr": "{{ ('{:>999999999}' | attr('format'))(1) }}",
    "format by item": "{{ '{:>999999999}'['format'](1) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "center": "{{ 'x'.center(999999999) }}",
    "center filter": "{{ 'x' | center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "expandtabs": "{{ '\\t'.expandtabs(999999999) }}",
    "indent": "{{ 'x\ny' | indent(999999999) }}",
    "indent by lines": "{{ ('x\n' * 9999) | indent(99999) }}",
    "batch": "{{ [1] | batch(999999999, 0) | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "batch doubling": (
        "{% set ns = namespace(s=[1]) %}{% for a in range(9) %}"
        "{% set ns.s = [ns.s] | batch(99999, ns.s) | list %}{% endfor %}{{ ns.s }}"
    ),
    "bytes": "{{ (1).to_bytes(999999999, 'big') }}",
    "range": "{{ range(99999999) | list }}",
    "split": "{{ (messages[0].content * 40).split() | length }}{{ ('a ' * 900000).split() }}",
    "tojson indent": "{{ [[[1]]] | tojson(indent=999999999) }}",
    "tojson separators": "{{ [1, 2] | tojson(separators=(messages[0].content, ':')) }}",
    "json of a graph": (
        "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
        "{{ ns.s | tojson }}"
    ),
    "text of a graph": (
        "{% set ns = namespace(s=(1,)) %}{% for a in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ ns.s }}"
    ),
    "text of a dict graph": (
        "{% set ns = namespace(s={}) %}{% for a in range(60) %}{% set ns.s = dict(a=ns.s, b=ns.s) %}"
        "{% endfor %}{{ ns.s }}"
    ),
    "text of a wide graph": "{% set l = [messages[0].content] * 9999 %}{{ l }}",
    "compare graphs": (
        "{% set ns = namespace(s=[1], t=[1]) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}"
        "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}"
    ),
    "sum": "{{ [[1]] | sum(start=[]) }}",
    "lipsum": "{{ lipsum(n=99999) }}",
    "wordwrap": "{{ 'x y' | wordwrap(1, wrapstring=messages[0].content) }}",
    "strip": "{{ messages[0].content.strip(messages[0].content) }}",
    "namespace repr": "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
    "namespace in a list": "{{ [namespace(a=1)] }}",
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("source", GROWTH.values(), ids=GROWTH.keys())
def test_growth_without_bound(source: str) -> None:
    refused(source, bytes_max=64 * MIB)


PRYING = {
    "class": "{{ ''.__class__.__mro__ }}{{ 1 / 0 }}",
    "class call": "{{ ''.__class__() }}",
    "subclasses": "{{ ''.__class__.__base__.__subclasses__() }}",
    "function globals": "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['x'] }}",
    "cycler": "{{ cycler.__init__.__globals__.os }}",
    "attr filter": "{{ '' | attr('__class__') | attr('mro') }}{{ ('' | attr('__class__'))() }}",
    "map attribute": "{{ [''] | map(attribute='__class__') | map(attribute='mro') | list | first | first }}{{ 1 / 0 }}",
    "format attribute": "{{ '{0.__class__.__mro__}'.format('') }}",
    "self": "{{ self.__init__.__globals__ }}",
    "self's context": "{{ self._TemplateReference__context }}{{ self._TemplateReference__context.environment }}",
    "generator frame": "{{ (messages | map('string')).gi_frame.f_globals }}",
    "list append": "{{ messages.append(1) }}",
    "dict update": "{{ messages[0].update({'a': 1}) }}",
    "dict pop": "{{ messages[0].pop('role') }}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends 'x' %}",
    "internal filter": "{{ 1 | tick }}",
    "random": "{{ [1, 2] | random }}",
    "urlize": "{{ 'http://x' | urlize }}",
    "pprint": "{{ messages | pprint }}",
}


@pytest.mark.parametrize("source", PRYING.values(), ids=PRYING.keys())
def test_prying(source: str) -> None:
    before = [dict(message) for message in MESSAGES]
    refused(source)
    assert before == MESSAGES


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | map(attribute='role') }}",
        "{{ raise_exception }}",
        "{% macro m() %}{% endmacro %}{{ m }}",
        "{{ loop }}{% for a in [1] %}{{ loop }}{% endfor %}",
        "{{ ''.upper }}",
        "{{ messages | map('upper') ~ '' }}",
        "{{ [messages | select] }}",
        "{{ '%s' % (raise_exception,) }}",
        "{{ '{}'.format(raise_exception) }}",
        "{{ cycler('a') | string }}",
        "{{ {}.items }}",
    ],
)
def test_no_address_in_memory_reaches_the_text(source: str) -> None:
    """Such a text would differ between router and worker."""
    message = refused(source)
    assert " at 0x" not in message


def test_full_bounds_stop_a_loop_by_ticks_or_by_the_clock() -> None:
    message = refused(LOOPS["nested"])
    assert "steps" in message or "CPU time" in message


def test_the_clock_stops_what_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "CPU_S_MAX", 0.2)
    source = (
        "{% set s = messages[0].content * 1000 %}"
        "{% for a in range(99999) %}{% if s.count('ecre') %}{% endif %}{% endfor %}"
    )
    message = refused(source)
    assert "CPU time" in message or "characters made" in message


def test_full_bounds_hold_a_16_mib_message() -> None:
    """The largest body that the defaults let in renders."""
    messages = [{"role": "user", "content": "x" * (16 * MIB - 200)}]
    text = ChatTemplate("{{ '<u>' + messages[0]['content'] | trim + '</u>' }}").render(messages, now=0)
    assert len(text) == 16 * MIB - 200 + 7


def test_a_chat_of_many_messages_is_fast_enough() -> None:
    messages = [{"role": "user", "content": "hi"}] * 32_768
    template = ChatTemplate("{% for message in messages %}{{ '<u>' + message['content'] + '</u>' }}{% endfor %}")
    began = time.thread_time()
    assert len(template.render(messages, now=0)) == 9 * 32_768
    assert time.thread_time() - began < 2


def test_weigh_counts_what_is_met_twice() -> None:
    one = ["abc", {"k": 1}]
    assert weigh([one, one]) > 2 * weigh(one) - 8
    with pytest.raises(TypeError):
        weigh([object()])
    with pytest.raises(RenderBoundExceeded):
        weigh("x" * (meter.VALUE_CHARS_MAX + 1))


def test_a_meter_counts_ticks_and_texts() -> None:
    counted = Meter(0)
    counted.chars_left, counted.ticks_left = 10, 64
    counted.make(10)
    with pytest.raises(RenderBoundExceeded):
        counted.make(1)
    counted.ticks_left = 1
    counted.tick()
    counted.ticks_left = -63
    with pytest.raises(RenderBoundExceeded, match="steps"):
        counted.tick()


def test_the_list_of_filters_has_no_surprise() -> None:
    assert not {"random", "lipsum", "urlize", "pprint", "center", "xmlattr", "wordwrap"} & FILTERS.keys()
