"""What the router reads of a completion body: one decode of only the fields that its decision needs.

Keeps true: a body that another engine would take is taken (unknown fields are skipped, never judged); what is read has
its right type; the body itself is never changed. Does not know templates, tokens or workers, nor whether a value makes
sense (`n` of -1 is the worker's to refuse).
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from trieway.serving.errors import BadRequest
from trieway.serving.wire_errors import bad_json, check_utf8, field_error

Kind = Literal["chat", "completion"]
Messages = list[dict[str, Any]]
RawPrompt = str | list[str | int | list[int]]

MESSAGES_MAX = 32_768
"""Most messages in one chat. A message takes four tokens at least: more do not fit in any context served here."""
PROMPTS_MAX = 2_048
"""Most prompts in one completion."""
TOKEN_ID_MAX = 2**31 - 1


class Peeked(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A body's fields that matter to routing; None where absent or null.

    `messages` is set for a chat, `prompt` for a completion. Treat it as frozen.
    """

    model: str | None = None
    messages: Messages | None = None
    prompt: RawPrompt | None = None
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
        """The prompts of a completion, all text or all token ids; [] for a chat."""
        return [] if self.prompt is None else split_prompts(self.prompt)

    @property
    def echo_logprobs(self) -> bool:
        """Whether the prompt's own logprobs are asked for: then nothing of a cached prefix is reusable."""
        return not self.is_chat and bool(self.echo) and self.logprobs is not None and self.logprobs is not False

    @property
    def answer_tokens_max(self) -> int | None:
        """The bound on answer tokens that the body states, for one choice; None where it states none."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


# The other kind's fields may be anything, as any unknown field may.
_CHAT = msgspec.defstruct(
    "ChatPeek",
    [("prompt", Any, None), ("echo", Any, None), ("logprobs", Any, None)],
    bases=(Peeked,),
    kw_only=True,
)
_COMPLETION = msgspec.defstruct(
    "CompletionPeek",
    [("messages", Any, None), ("add_generation_prompt", Any, None), ("chat_template_kwargs", Any, None)],
    bases=(Peeked,),
    kw_only=True,
)
_decode_chat = msgspec.json.Decoder(_CHAT).decode
_decode_completion = msgspec.json.Decoder(_COMPLETION).decode


def peek(body: bytes, kind: Kind) -> Peeked:
    """Read `body`, the raw JSON of a request of `kind`. Raises BadRequest naming the field at fault."""
    check_utf8(body)
    try:
        peeked = cast(Peeked, _decode_chat(body) if kind == "chat" else _decode_completion(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_json(error) from None
    if kind == "chat":
        peeked.prompt = peeked.echo = peeked.logprobs = None
        if not peeked.messages:
            raise _missing("messages", "at least one message")
        if len(peeked.messages) > MESSAGES_MAX:
            raise field_error("messages", f"more than {MESSAGES_MAX} messages")
    else:
        peeked.messages = peeked.add_generation_prompt = peeked.chat_template_kwargs = None
        if peeked.prompt is None:
            raise _missing("prompt", "a string, a list of strings, token ids, or a list of lists of token ids")
        split_prompts(peeked.prompt)
    return peeked


def _missing(param: str, wanted: str) -> BadRequest:
    return field_error(param, f"required: {wanted}", code="missing_required_parameter")


def split_prompts(prompt: RawPrompt) -> list[str] | list[list[int]]:
    """The prompts in a `prompt` field. Raises BadRequest for empty or mixed lists and ids out of range."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if len(kinds) != 1:
        problem = "strings, token ids and lists cannot be mixed" if kinds else "the list is empty"
        raise field_error("prompt", problem)
    kind = kinds.pop()
    if kind is not int and len(prompt) > PROMPTS_MAX:
        raise field_error("prompt", f"more than {PROMPTS_MAX} prompts")
    if kind is str:
        return cast(list[str], prompt)
    lists = cast(list[list[int]], [prompt] if kind is int else prompt)
    for ids in lists:
        if not ids:
            raise field_error("prompt", "a list of token ids is empty")
        if min(ids) < 0 or max(ids) > TOKEN_ID_MAX:
            raise field_error("prompt", f"token ids are from 0 to {TOKEN_ID_MAX}")
    return lists
