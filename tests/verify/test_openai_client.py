"""The client that users bring, against router and worker: every endpoint and parameter of the contract."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import openai
import pytest

from tests.verify.conftest import MODEL

pytestmark = [pytest.mark.model, pytest.mark.fleet]
SYSTEM = {"role": "system", "content": "You answer in few words."}
QUESTION: list[Any] = [SYSTEM, {"role": "user", "content": "Name three colours."}]


@pytest.fixture
def client(server: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]


def test_chat_answers_with_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=8, temperature=0, user="someone", extra_body={"ignore_eos": True}
    )
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    again = client.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=8, temperature=0)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= again.usage.prompt_tokens - 1
    assert choice.message.content.startswith(again.choices[0].message.content or "-")


def test_content_parts_are_text(client: openai.OpenAI) -> None:
    parts: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " hi."}]}
    ]
    whole: list[Any] = [{"role": "user", "content": "Say hi."}]
    first = client.chat.completions.create(model=MODEL, messages=parts, max_tokens=4, temperature=0)
    second = client.chat.completions.create(model=MODEL, messages=whole, max_tokens=4, temperature=0)
    assert first.choices[0].message.content
    assert first.usage is not None
    assert second.usage is not None


def test_a_stream_equals_the_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_n_and_seed(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=10, n=3, temperature=1.2, top_p=0.95, seed=seed,
            extra_body={"top_k": 40, "min_p": 0.01},
        )  # fmt: skip
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage is not None
        assert answer.usage.completion_tokens >= 3
        return [choice.message.content for choice in answer.choices]

    assert ask(5) == ask(5)
    assert len(set(ask(5))) > 1


def test_n_in_a_stream(client: openai.OpenAI) -> None:
    texts = ["", ""]
    for chunk in client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=6, n=2, temperature=1.0, seed=1, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert all(texts)


def test_stop_strings_are_never_shown(client: openai.OpenAI) -> None:
    prompt = "1, 2, 3, 4, 5, 6, 7,"
    free = client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0).choices[0].text
    stop = free[3:6]
    halted = client.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0, stop=[stop, "\n\n\n"])
    assert halted.choices[0].finish_reason == "stop"
    assert halted.choices[0].text == free[: free.index(stop)]


def test_penalties_change_the_answer(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> str:
        return client.completions.create(
            model=MODEL, prompt="the the the the the", max_tokens=8, temperature=0, **more
        ).choices[0].text  # fmt: skip

    plain = ask()
    assert ask(extra_body={"repetition_penalty": 1.8}) != plain
    assert ask(presence_penalty=2.0, frequency_penalty=2.0) != plain


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.token == entry.top_logprobs[0].token
        assert bytes(entry.bytes or []).decode(errors="replace") == entry.token


def test_completion_logprobs_with_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The sky is blue", max_tokens=3, temperature=0, logprobs=2, echo=True
    )
    (choice,) = answer.choices
    assert choice.text.startswith("The sky is blue")
    assert choice.logprobs is not None
    tokens, values = choice.logprobs.tokens or [], choice.logprobs.token_logprobs or []
    assert "".join(tokens) == choice.text
    assert values[0] is None
    assert all(value <= 0 for value in values[1:])
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert not answer.usage.prompt_tokens_details.cached_tokens


def test_every_form_of_prompt(client: openai.OpenAI, server: str) -> None:
    text = "A short prompt"
    ids = httpx.post(f"{server}/tokenize", json={"model": MODEL, "prompt": text}, timeout=30).json()["tokens"]
    back = httpx.post(f"{server}/detokenize", json={"model": MODEL, "tokens": ids}, timeout=30).json()
    assert back["prompt"] == text
    one = client.completions.create(model=MODEL, prompt=text, max_tokens=4, temperature=0)
    as_ids = client.completions.create(model=MODEL, prompt=ids, max_tokens=4, temperature=0)
    many = client.completions.create(model=MODEL, prompt=[text, "Another one"], max_tokens=4, temperature=0, n=2)
    many_ids = client.completions.create(model=MODEL, prompt=[ids, ids], max_tokens=4, temperature=0)
    assert as_ids.choices[0].text == one.choices[0].text == many.choices[0].text
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in many_ids.choices] == [one.choices[0].text] * 2


def test_ignore_eos_runs_to_the_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Say yes."}], max_tokens=24, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24


def test_extensions_and_headers(client: openai.OpenAI, server: str) -> None:
    body = {"session_id": "s-1", "priority": -1, "cache_salt": "pepper", "a_field_from_the_future": {"x": [1]}}
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, max_tokens=2, extra_body=body,
        extra_headers={"x-request-id": "req-7", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"},
    )  # fmt: skip
    assert raw.headers["x-request-id"] == "req-7"
    assert int(raw.headers["x-trieway-cached-tokens"]) >= 0
    again = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=2, extra_body={"cache_salt": uuid.uuid4().hex}
    )
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert not again.usage.prompt_tokens_details.cached_tokens, "salts keep caches apart"


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"logit_bias": {"1": 5}},
        {"max_tokens": -1},
        {"temperature": "hot"},
        {"n": 0},
        {"top_p": 3},
    ],
    ids=str,
)
def test_what_cannot_be_done_is_named(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2, extra_body=extra)
    assert next(iter(extra)) in str(caught.value)


def test_an_unknown_model_is_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=QUESTION)


def test_probes_and_metrics(server: str, http: httpx.Client) -> None:
    for path in ("/livez", "/readyz", "/health"):
        assert http.get(server + path).status_code == 200
    metrics = http.get(f"{server}/metrics")
    assert metrics.status_code == 200
    assert "trieway_" in metrics.text


def test_the_prefix_hint_makes_a_prefix_resident(server: str, http: httpx.Client) -> None:
    prompt = "Hinted once, found later. " * 12
    hint = http.post(f"{server}/cache/prefix", json={"model": MODEL, "prompt": prompt})
    assert hint.status_code == 200, hint.text
    answer = http.post(
        f"{server}/v1/completions", json={"model": MODEL, "prompt": prompt + "And now?", "max_tokens": 1}
    ).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 60
