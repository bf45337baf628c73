"""Every parameter of the contract: its default, its range, its name in the refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.serving.errors import BadRequest
from trieway.serving.schema import (
    COMPLETION_TOKENS_DEFAULT,
    ChatRequest,
    CompletionRequest,
    Sampling,
    parse_chat,
    parse_completion,
)

from .test_peek import MALFORMED

MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse_completion(json.dumps({"prompt": "Hi", **fields}).encode())


def refusal(kind: str, **fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        chat(**fields) if kind == "chat" else completion(**fields)
    return caught.value


def test_defaults() -> None:
    assert chat() == ChatRequest(model=None, messages=MESSAGES, sampling=Sampling())
    wanted = Sampling(max_tokens=COMPLETION_TOKENS_DEFAULT)
    assert completion() == CompletionRequest(model=None, prompts=["Hi"], sampling=wanted)


def test_everything_at_once() -> None:
    shared: dict[str, Any] = {
        "model": "m",
        "n": 3,
        "max_tokens": 9,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -5,
        "stop": ["a", "b"],
        "presence_penalty": -2,
        "frequency_penalty": 2.0,
        "repetition_penalty": 1.2,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
        "session_id": "s",
        "priority": -3,
        "cache_salt": "salt",
    }
    sampling = Sampling(
        n=3,
        max_tokens=9,
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-5,
        stop=("a", "b"),
        logprobs=4,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.2,
        ignore_eos=True,
    )
    common: dict[str, Any] = {"stream": True, "include_usage": True, "user": "u", "session_id": "s"}
    common |= {"model": "m", "priority": -3, "cache_salt": "salt", "sampling": sampling}
    extra = {"add_generation_prompt": False, "chat_template_kwargs": {"a": 1}}
    assert chat(**shared, **extra, logprobs=True, top_logprobs=4) == ChatRequest(messages=MESSAGES, **extra, **common)
    assert completion(**shared, logprobs=4, echo=True) == CompletionRequest(prompts=["Hi"], echo=True, **common)


def test_null_means_absent() -> None:
    names = [*Sampling.__struct_fields__, "model", "stream", "stream_options", "user", "session_id", "priority"]
    names += ["cache_salt", "best_of", "logit_bias", "response_format", "echo"]
    assert chat(**dict.fromkeys([*names, "tools", "tool_choice", "top_logprobs", "max_completion_tokens"])) == chat()
    assert completion(**dict.fromkeys([*names, "suffix"])) == completion()


def test_unknown_fields_are_ignored() -> None:
    assert chat(metadata={"a": 1}, store=True, service_tier="auto", x_new=[1]) == chat()
    assert completion(metadata={"a": 1}, x_new=[1]) == completion()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("n", [0, -1, 129, 1.5, "1", True]),
        ("max_tokens", [-1, 0, 1.5, "9"]),
        ("temperature", [-0.1, 2.1, "1", [], True]),
        ("top_p", [0, -0.1, 1.1]),
        ("top_k", [-2, 1.5]),
        ("min_p", [-0.1, 1.1]),
        ("seed", [2**63, -(2**63) - 1, 0.5, "1"]),
        ("stop", [5, [5], [""], "", ["a"] * 17, ["x" * 1025]]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("repetition_penalty", [0, -1, 101, 1e-300, 0.009]),
        ("ignore_eos", [1, "yes"]),
        ("stream", [1, "yes"]),
        ("stream_options", [5, {"include_usage": 5}]),
        ("priority", ["high", 0.5, 2**31]),
        ("session_id", [5, "x" * 1025]),
        ("cache_salt", [5, "x" * 1025]),
        ("model", [5, "x" * 1025]),
        ("user", [5]),
    ],
)
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_unusable_values_are_refused_by_name(kind: str, field: str, values: list[Any]) -> None:
    for value in values:
        error = refusal(kind, **{field: value})
        assert (error.param or "").startswith(field), (value, error.message)
        assert error.message.startswith(field)


UNBUILT: dict[str, list[tuple[str, Any]]] = {
    "both": [
        ("best_of", 2),
        ("logit_bias", {"5": 1}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("prompt_logprobs", 1),
        ("structured_outputs", {"json": {}}),
        ("guided_json", {}),
        ("use_beam_search", True),
        ("min_tokens", 5),
        ("stop_token_ids", [5]),
        ("skip_special_tokens", False),
        ("truncate_prompt_tokens", 5),
    ],
    "chat": [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("chat_template", "{{ 1 }}"),
        ("continue_final_message", True),
        ("echo", True),
    ],
    "completion": [("suffix", "end"), ("prompt_embeds", "x"), ("add_special_tokens", False)],
}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (kind, field, value)
        for kind in ("chat", "completion")
        for group in ("both", kind)
        for field, value in UNBUILT[group]
    ],
)
def test_what_is_not_built_is_refused_by_name(kind: str, field: str, value: Any) -> None:
    error = refusal(kind, **{field: value})
    assert error.param == field
    assert error.code == "unsupported_parameter"


def test_values_that_ask_for_nothing_special_pass() -> None:
    harmless: dict[str, Any] = {"logit_bias": {}, "best_of": 1, "response_format": {"type": "text"}, "min_tokens": 0}
    assert chat(**harmless, tools=[], tool_choice="none", modalities=["text"], functions=[], echo=False) == chat()
    assert completion(**harmless, suffix="") == completion()


def test_logprobs_of_a_chat() -> None:
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).sampling.logprobs == 20
    assert chat(logprobs=False, top_logprobs=0).sampling.logprobs is None
    for fields in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}):
        assert refusal("chat", **fields).param == "top_logprobs"
    assert refusal("chat", logprobs=5).param == "logprobs"


def test_logprobs_of_a_completion() -> None:
    assert completion(logprobs=0).sampling.logprobs == 0
    for value in (-1, 21, True):
        assert refusal("completion", logprobs=value).param == "logprobs"


def test_answer_lengths() -> None:
    assert chat(max_completion_tokens=7, max_tokens=9).sampling.max_tokens == 7
    assert refusal("chat", max_completion_tokens=0).param == "max_completion_tokens"
    assert completion(max_tokens=0, echo=True).sampling.max_tokens == 0
    assert completion(max_tokens=10**9).sampling.max_tokens == 10**9


def test_top_k_off() -> None:
    assert chat(top_k=-1).sampling.top_k == 0 == chat(top_k=0).sampling.top_k


def test_stop_forms() -> None:
    assert chat(stop="x").sampling.stop == ("x",)
    assert chat(stop=[]).sampling.stop == ()


def test_stream_options_need_a_stream() -> None:
    assert refusal("chat", stream_options={"include_usage": True}).param == "stream_options"
    assert not chat(stream=True, stream_options={}).include_usage


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("x", "messages"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
            "messages[0].content[0].type",
        ),
    ],
)
def test_messages_are_checked(messages: Any, param: str) -> None:
    assert refusal("chat", messages=messages).param == param


@pytest.mark.parametrize("prompt", [None, [], [[]], ["a", 1], [-1], 5, [["x"]]])
def test_prompts_are_checked(prompt: Any) -> None:
    assert (refusal("completion", prompt=prompt).param or "").startswith("prompt")


def test_prompts_of_every_form() -> None:
    assert completion(prompt=["a", ""]).prompts == ["a", ""]
    assert completion(prompt=[1, 2]).prompts == [[1, 2]]
    assert completion(prompt=[[1], [2]]).prompts == [[1], [2]]


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bodies(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_chat(body)
    with pytest.raises(BadRequest):
        parse_completion(body)


@given(
    fields=st.dictionaries(
        st.sampled_from(["n", "temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "logprobs", "tools"]),
        st.none()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=4)
        | st.booleans(),
    )
)
def test_whatever_passes_is_in_range(fields: dict[str, Any]) -> None:
    for parse in (chat, completion):
        try:
            sampling = parse(**fields).sampling
        except BadRequest:
            continue
        assert 1 <= sampling.n <= 128
        assert 0 <= sampling.temperature <= 2
        assert 0 < sampling.top_p <= 1
        assert sampling.top_k >= 0
        assert sampling.max_tokens is None or sampling.max_tokens >= 1
        assert all(sampling.stop)


def test_no_refusal_repeats_the_prompt() -> None:
    body = json.dumps({"prompt": "secret words", "temperature": "secret value"}).encode()
    with pytest.raises(BadRequest) as caught:
        parse_completion(body)
    assert "secret" not in caught.value.message
