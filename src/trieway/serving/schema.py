"""The worker's full reading of OpenAI bodies. (Signatures first; parsing lands next.)"""

from __future__ import annotations

from typing import Any

import msgspec

from trieway.serving.peek import Messages


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters, checked and with their defaults filled in.

    `max_tokens` None: as many as the context allows. `top_k` 0: off. `top_logprobs` is the number of alternatives
    for each token, None where no logprobs are asked for (0: the chosen token's alone).
    """

    n: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked chat completion body. `messages` are normalised: content is text (messages.py)."""

    model: str | None
    messages: Messages
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    session_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked completion body. `prompts` has at least one entry: all text, or all token ids."""

    model: str | None
    prompts: tuple[str, ...] | tuple[tuple[int, ...], ...]
    sampling: Sampling
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    session_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None


def parse_chat(body: bytes) -> ChatRequest:
    """Raises BadRequest naming the field at fault."""
    raise NotImplementedError


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises BadRequest naming the field at fault."""
    raise NotImplementedError
