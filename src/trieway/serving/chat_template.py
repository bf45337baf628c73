"""Renders chat messages to the prompt's text. (Signatures first; the sandbox lands next.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from trieway.serving.peek import Messages

RENDERER_VERSION = "1-jinja3.1"


class TemplateInvalid(ValueError):
    """The template's source cannot be used; the message says why. For start-up and handshakes."""


class ChatTemplate:
    """One compiled template. `render` gives equal text for equal input in any process of the same RENDERER_VERSION."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        """Raises TemplateInvalid."""
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.digest: str = ""
        self.reads_clock: bool = False

    def render(
        self,
        messages: Messages,
        *,
        now: float,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `now`: seconds since 1970, rounded down to whole seconds, UTC. Raises BadRequest."""
        raise NotImplementedError


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
    raise NotImplementedError
