"""What the router reads of a completion body: one decode of only the fields that its decision needs.

Keeps true: a body that another engine would take is taken (unknown fields are skipped, never judged); what is read has
its right type; the body itself is never changed. Does not know templates, tokens or workers.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trieway.serving.errors import BadRequest

Kind = Literal["chat", "completion"]
Messages = list[dict[str, Any]]
Prompt = str | list[str] | list[int] | list[list[int]]

MESSAGES_MAX = 32_768
"""Most messages in one chat, and most prompts in one completion."""


class Peeked(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A body's fields that matter to routing; None where absent or null.

    `messages` is set for a chat, `prompt` for a completion. Treat it as frozen.
    """

    model: str | None = None
    messages: Messages | None = None
    prompt: str | list[str | int | list[int]] | None = None
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    session_id: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None
    echo: bool | None = None
    logprobs: bool | int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def is_chat(self) -> bool:
        return self.messages is not None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts of a completion, one for each choice group; [] for a chat."""
        if self.prompt is None:
            return []
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return self.prompt  # type: ignore[return-value]

    @property
    def echo_logprobs(self) -> bool:
        """Whether the prompt's own logprobs are asked for: then nothing of a cached prefix is reusable."""
        return not self.is_chat and bool(self.echo) and self.logprobs is not None and self.logprobs is not False

    @property
    def answer_tokens_max(self) -> int | None:
        """The bound on answer tokens that the body states, for one choice; None where it states none."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


_decode = msgspec.json.Decoder(Peeked).decode


def peek(body: bytes, kind: Kind) -> Peeked:
    """Read `body`, the raw JSON of a request of `kind`. Raises BadRequest naming the field at fault."""
    raise NotImplementedError
