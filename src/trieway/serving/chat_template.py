"""Renders chat messages to the prompt's text: the one way for router and worker, so that their bytes agree.

Keeps true: equal source, tokens, messages, options and `now` give equal text in every process of one
RENDERER_VERSION; nothing of the process (time zone, locale, random numbers, memory addresses) reaches the text. A
rendering is bounded (meter.py) and sandboxed (sandbox.py). Whatever goes wrong inside is a BadRequest: a template that
cannot render these messages refuses this request and no other. Does not know tokens.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import jinja2
from jinja2 import meta

from trieway.serving.errors import BadRequest
from trieway.serving.messages import normalise
from trieway.serving.meter import VALUE_CHARS_MAX, Meter, RenderBoundExceeded
from trieway.serving.peek import Messages
from trieway.serving.sandbox import BoundedEnvironment

RENDERER_VERSION = "1-jinja" + ".".join(jinja2.__version__.split(".")[:2])
"""Part of a group's name. Raise its first number when rendering of any template changes."""
SOURCE_CHARS_MAX = 512 * 1024
MESSAGE_CHARS_MAX = 500
_CLOCK = "strftime_now"
_CLOCK_FORMAT = re.compile(r"(?:[^%]|%-?[A-Za-z%])*\Z")
_CLOCK_FORMAT_CHARS_MAX = 256
_RESERVED = frozenset({"messages", "bos_token", "eos_token", "raise_exception", _CLOCK})


class TemplateInvalid(ValueError):
    """The template's source cannot be used; the message says why. For start-up and handshakes."""


class _Refused(Exception):
    """The template called raise_exception."""


def template_digest(source: str | None) -> str:
    """32 hex digits of a template's source; of a name for 'none' where there is none."""
    return hashlib.blake2b(b"-" if source is None else b"+" + source.encode(), digest_size=16).hexdigest()


class ChatTemplate:
    """One compiled template; any thread may render, one at a time."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        """Raises TemplateInvalid."""
        if len(source) > SOURCE_CHARS_MAX:
            raise TemplateInvalid(f"the chat template has more than {SOURCE_CHARS_MAX} characters")
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._environment = BoundedEnvironment()
        self._lock = threading.Lock()
        try:
            self.digest = template_digest(source)
            tree = self._environment.bounded_tree(source)
            self.reads_clock = _CLOCK in meta.find_undeclared_variables(tree)
            self._template = self._environment.from_string(tree)
            self._context = self._template.new_context({})
            self._globals = dict(self._template.globals)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateInvalid(f"the chat template, line {error.lineno}: {error.message}") from None
        except Exception as error:  # code from outside: a compiler may fail in any way
            raise TemplateInvalid(f"the chat template does not compile: {type(error).__name__}: {error}") from None

    def render(
        self,
        messages: Messages,
        *,
        now: float,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text for normalised `messages`; at most VALUE_CHARS_MAX characters, valid as UTF-8.

        `now`: seconds since 1970, rounded down to whole seconds, read as UTC. `extra` adds variables or replaces
        `tools`, `documents` and `add_generation_prompt`. Raises BadRequest.
        """
        variables: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        if extra:
            variables.update(extra)
            taken = _RESERVED & extra.keys()
            if taken:
                raise _refused(f"chat_template_kwargs cannot set {', '.join(sorted(taken))}", "chat_template_kwargs")
        meter = Meter(int(now))
        variables |= {
            "messages": messages,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "raise_exception": _raise_exception,
            _CLOCK: lambda pattern: _format_clock(meter.now, pattern),
        }
        try:
            with self._lock:
                return self._run(variables, meter)
        except _Refused as error:
            raise _refused(str(error), "messages") from None
        except RenderBoundExceeded as error:
            raise _refused(f"the chat template does too much for these messages: {error}", "messages") from None
        except UnicodeEncodeError:
            raise _refused("the chat template gives text that is not valid Unicode", "messages") from None
        except Exception as error:  # code from outside, on data from outside: any error is a refusal
            problem = f"the chat template failed on these messages: {type(error).__name__}: {error}"
            raise _refused(problem, "messages") from None

    def _run(self, variables: dict[str, Any], meter: Meter) -> str:
        self._environment.meter = meter
        context = self._context  # a new one costs as much as a short chat's whole rendering
        context.parent = self._globals | variables
        context.vars = {}
        context.exported_vars = set()
        try:
            text = "".join(self._template.root_render_func(context))
        finally:
            context.parent = context.vars = {}
        if len(text) > VALUE_CHARS_MAX:
            raise RenderBoundExceeded(f"a prompt of more than {VALUE_CHARS_MAX} characters")
        if not text.isascii():
            text.encode()
        return text


def _refused(problem: str, param: str) -> BadRequest:
    return BadRequest(problem[:MESSAGE_CHARS_MAX], param=param, code="chat_template_error")


def _raise_exception(message: object = "") -> None:
    """What templates call to refuse messages."""
    raise _Refused(str(message)[:MESSAGE_CHARS_MAX] if isinstance(message, str) else "the chat template refused")


def _format_clock(now: int, pattern: object) -> str:
    """strftime in UTC; only `%` and letters, since widths would be unbounded."""
    if not isinstance(pattern, str) or len(pattern) > _CLOCK_FORMAT_CHARS_MAX or not _CLOCK_FORMAT.match(pattern):
        raise ValueError(f"{_CLOCK}: a short pattern of % and letters is needed")
    return datetime.fromtimestamp(now, UTC).strftime(pattern)


class Renderable(Protocol):
    """A chat as Peeked and ChatRequest both show it."""

    @property
    def messages(self) -> Messages | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...


def render_prompt(chat: Renderable, template: ChatTemplate, now: float) -> str:
    """The one way from a chat to its prompt's text, for router and worker alike. Raises BadRequest."""
    return template.render(
        normalise(chat.messages or []),
        now=now,
        add_generation_prompt=chat.add_generation_prompt is not False,
        extra=chat.chat_template_kwargs,
    )
