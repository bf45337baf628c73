"""The worker's full reading of OpenAI bodies: every parameter checked, none silently dropped.

Keeps true: unknown fields are ignored; a known field with an unusable value, or one that would change the answer's
form and is not built, is a BadRequest that names it. Does not know models: context bounds and vocabulary sizes are
checked by whoever has them.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

from trieway.serving.messages import normalise
from trieway.serving.peek import Messages, RawPrompt, split_prompts
from trieway.serving.wire_errors import bad_json, check_utf8, field_error

N_MAX = 128
STOP_MAX = 16
STOP_CHARS_MAX = 1_024
TOP_LOGPROBS_MAX = 20
COMPLETION_TOKENS_DEFAULT = 16
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
PRIORITY_MAX = 2**31 - 1
REPETITION_PENALTY_MIN = 0.01
"""Scores are divided by it: far smaller ones leave float32's range."""
NAME_CHARS_MAX = 1_024
"""Longest session id, salt, user or model name."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters, checked and with their defaults filled in.

    `max_tokens` None: as many as the context allows. `top_k` 0: off. `logprobs` is the number of alternatives wanted
    for each token: None where no logprobs are asked for, 0 for the chosen token's alone.
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
    """A checked completion body. `prompts` has at least one entry: all text ('' too), or all non-empty token ids."""

    model: str | None
    prompts: list[str] | list[list[int]]
    sampling: Sampling
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    session_id: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None


class _StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct, kw_only=True):
    """Fields of both kinds, as they come: null means absent."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None
    session_id: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    # Not built: they change the answer's form or its tokens. Refused by name.
    best_of: int | None = None
    logit_bias: Any = None
    response_format: Any = None
    prompt_logprobs: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: Any = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    logits_processors: Any = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class _ChatBody(_Body, kw_only=True):
    messages: Messages | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    echo: bool | None = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    documents: Any = None


class _CompletionBody(_Body, kw_only=True):
    prompt: RawPrompt | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    prompt_embeds: Any = None
    add_special_tokens: bool | None = None


B = TypeVar("B", bound=_Body)
_chat = msgspec.json.Decoder(_ChatBody)
_completion = msgspec.json.Decoder(_CompletionBody)

# field -> values that ask for nothing special, besides null
_HARMLESS_BOTH: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "prompt_logprobs": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
}
_HARMLESS_CHAT: dict[str, tuple[object, ...]] = _HARMLESS_BOTH | {
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
}
_HARMLESS_COMPLETION: dict[str, tuple[object, ...]] = _HARMLESS_BOTH | {
    "suffix": ("",),
    "prompt_embeds": (),
    "add_special_tokens": (True,),
}


def parse_chat(body: bytes) -> ChatRequest:
    """The chat completion in `body`. Raises BadRequest naming the field at fault."""
    raw = _decode(_chat, body)
    _refuse_unbuilt(raw, _HARMLESS_CHAT)
    messages = normalise(raw.messages or [])
    answer_tokens = raw.max_tokens
    if raw.max_completion_tokens is not None:
        _within("max_completion_tokens", raw.max_completion_tokens, 1, None)
        answer_tokens = raw.max_completion_tokens
    if raw.top_logprobs is not None:
        _within("top_logprobs", raw.top_logprobs, 0, TOP_LOGPROBS_MAX)
        if raw.top_logprobs and not raw.logprobs:
            raise field_error("top_logprobs", "logprobs must be true with it")
    return ChatRequest(
        model=raw.model,
        messages=messages,
        sampling=_sampling(raw, answer_tokens, (raw.top_logprobs or 0) if raw.logprobs else None),
        stream=bool(raw.stream),
        include_usage=_include_usage(raw),
        session_id=raw.session_id,
        priority=raw.priority or 0,
        cache_salt=raw.cache_salt,
        user=raw.user,
        add_generation_prompt=raw.add_generation_prompt,
        chat_template_kwargs=raw.chat_template_kwargs,
    )


def parse_completion(body: bytes) -> CompletionRequest:
    """The completion in `body`; without max_tokens it answers 16, as OpenAI does. Raises BadRequest."""
    raw = _decode(_completion, body)
    _refuse_unbuilt(raw, _HARMLESS_COMPLETION)
    if raw.prompt is None:
        raise field_error("prompt", "required", code="missing_required_parameter")
    if raw.logprobs is not None:
        _within("logprobs", raw.logprobs, 0, TOP_LOGPROBS_MAX)
    answer_tokens = COMPLETION_TOKENS_DEFAULT if raw.max_tokens is None else raw.max_tokens
    return CompletionRequest(
        model=raw.model,
        prompts=split_prompts(raw.prompt),
        sampling=_sampling(raw, answer_tokens, raw.logprobs, least_tokens=0 if raw.echo else 1),
        echo=bool(raw.echo),
        stream=bool(raw.stream),
        include_usage=_include_usage(raw),
        session_id=raw.session_id,
        priority=raw.priority or 0,
        cache_salt=raw.cache_salt,
        user=raw.user,
    )


def _decode(decoder: msgspec.json.Decoder[B], body: bytes) -> B:
    check_utf8(body)
    try:
        raw = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_json(error) from None
    for name in ("model", "session_id", "cache_salt", "user"):
        value = getattr(raw, name)
        if value is not None and len(value) > NAME_CHARS_MAX:
            raise field_error(name, f"longer than {NAME_CHARS_MAX} characters")
    if raw.priority is not None:
        _within("priority", raw.priority, -PRIORITY_MAX, PRIORITY_MAX)
    if raw.stream_options is not None and not raw.stream:
        raise field_error("stream_options", "only with stream: true")
    return raw


def _refuse_unbuilt(raw: _Body, harmless: dict[str, tuple[object, ...]]) -> None:
    for name, values in harmless.items():
        value = getattr(raw, name)
        if value is not None and not any(type(value) is type(fine) and value == fine for fine in values):
            raise field_error(name, "not supported by this server with this value", code="unsupported_parameter")


def _sampling(raw: _Body, max_tokens: int | None, logprobs: int | None, *, least_tokens: int = 1) -> Sampling:
    if max_tokens is not None:
        _within("max_tokens", max_tokens, least_tokens, None)
    return Sampling(
        n=_int("n", raw.n, 1, 1, N_MAX),
        max_tokens=max_tokens,
        temperature=_number("temperature", raw.temperature, 1.0, 0.0, 2.0),
        top_p=_number("top_p", raw.top_p, 1.0, 0.0, 1.0, above=True),
        top_k=max(0, _int("top_k", raw.top_k, 0, -1, None)),
        min_p=_number("min_p", raw.min_p, 0.0, 0.0, 1.0),
        seed=None if raw.seed is None else _int("seed", raw.seed, 0, SEED_MIN, SEED_MAX),
        stop=_stop(raw.stop),
        logprobs=logprobs,
        presence_penalty=_number("presence_penalty", raw.presence_penalty, 0.0, -2.0, 2.0),
        frequency_penalty=_number("frequency_penalty", raw.frequency_penalty, 0.0, -2.0, 2.0),
        repetition_penalty=_number("repetition_penalty", raw.repetition_penalty, 1.0, REPETITION_PENALTY_MIN, 100.0),
        ignore_eos=bool(raw.ignore_eos),
    )


def _include_usage(raw: _Body) -> bool:
    return raw.stream_options is not None and bool(raw.stream_options.include_usage)


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings; empty ones are refused since they would stop everything."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > STOP_MAX:
        raise field_error("stop", f"at most {STOP_MAX} strings")
    if not all(0 < len(each) <= STOP_CHARS_MAX for each in stops):
        raise field_error("stop", f"each string has 1 to {STOP_CHARS_MAX} characters")
    return stops


def _int(name: str, value: int | None, default: int, least: int, most: int | None) -> int:
    if value is None:
        return default
    _within(name, value, least, most)
    return value


def _number(name: str, value: float | None, default: float, least: float, most: float, *, above: bool = False) -> float:
    """`above`: `least` itself is outside."""
    if value is None:
        return default
    if not math.isfinite(value) or value < least or value > most or (above and value == least):
        raise field_error(name, f"must be {'above' if above else 'at least'} {least:g} and at most {most:g}")
    return float(value)


def _within(name: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        raise field_error(name, f"must be at least {least}" + ("" if most is None else f" and at most {most}"))
