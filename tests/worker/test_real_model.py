"""The worker with the real SmolLM2: over HTTP, the whole way from text to text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from trieway.serving.config import WorkerConfig
from trieway.worker.main import load_model

from .harness import Worker, running

pytestmark = pytest.mark.model
NAME = "smollm2-135m"


@pytest.fixture(scope="module")
def real(smollm2_dir: Path) -> Iterator[Worker]:
    config = WorkerConfig(
        port=0, model=str(smollm2_dir), served_model_name=NAME, dtype="fp32", kv_tokens=8192, device="cpu", seed=1
    )
    with running(config, model=load_model(config)) as worker:
        yield worker


@pytest.fixture
def client(real: Worker) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=real.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


def text(tokens: int, seed: str) -> str:
    """A prompt of roughly that many tokens."""
    return " ".join(f"{seed} sentence number {i} stands here." for i in range(tokens // 9))


def test_a_chat_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=20,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None


def test_every_parameter_of_the_client(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello"}],
        max_completion_tokens=6,
        n=2,
        temperature=0.7,
        top_p=0.9,
        seed=5,
        stop=["\n\n\n"],
        logprobs=True,
        top_logprobs=3,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        user="someone",
        extra_body={"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True, "priority": 1,
                    "session_id": "s", "cache_salt": "c", "never_heard_of": 1},
    )  # fmt: skip
    assert len(chat.choices) == 2
    assert chat.choices[0].logprobs is not None
    assert len(chat.choices[0].logprobs.content or []) == 6
    whole = client.completions.create(
        model=NAME, prompt=["One", "Two"], max_tokens=4, echo=True, logprobs=2, n=2, temperature=0.5, seed=1
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[2].text.startswith("Two")
    assert client.models.list().data[0].id == NAME


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Name three colours."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    told = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in told if c.choices) == whole.choices[0].message.content
    assert told[-1].usage is not None
    assert whole.usage is not None
    assert told[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_hit_says_what_a_cold_prompt_says(real: Worker) -> None:
    prompt = text(150, "every")
    cold = real.complete(prompt, model=NAME, max_tokens=12)
    warm = real.complete(prompt, model=NAME, max_tokens=12)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] < 64
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == warm["usage"]["prompt_tokens"] - 1
    assert warm["choices"] == cold["choices"]


def test_a_chat_reuses_prompt_and_answer(real: Worker) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": text(120, "system")}]
    total = 0
    for turn in range(3):
        messages.append({"role": "user", "content": f"Question {turn}: what is {turn} plus {turn}?"})
        answer = real.chat(messages, model=NAME, max_tokens=12, temperature=0.8, seed=turn)
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= total - 1
        total = usage["total_tokens"]
        messages.append(answer["choices"][0]["message"])


def test_stop_strings_and_limits(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=NAME, prompt="Count: 1, 2, 3, 4,", max_tokens=30, temperature=0, stop=[" 7", "7"]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "7" not in answer.choices[0].text
    assert "5" in answer.choices[0].text


def test_errors_reach_the_client_as_its_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=NAME, prompt=text(9000, "long"))
    assert refused.value.code == "context_length_exceeded"


def test_probes_answer_during_a_long_prefill(real: Worker) -> None:
    done = threading.Event()

    def prefill() -> None:
        try:
            real.complete(text(1200, "long"), model=NAME, max_tokens=1)
        finally:
            done.set()

    thread = threading.Thread(target=prefill)
    thread.start()
    slowest, probes = 0.0, 0
    while not done.is_set():
        began = time.monotonic()
        assert real.client.get("/livez").status_code == 200
        slowest, probes = max(slowest, time.monotonic() - began), probes + 1
        done.wait(0.02)
    thread.join()
    assert probes > 3
    assert slowest < 1.0


def test_echo_scores_agree_with_scores_of_generated_tokens(real: Worker) -> None:
    told = real.complete("The quick brown", model=NAME, max_tokens=8, logprobs=2)["choices"][0]
    whole = real.complete("The quick brown" + told["text"], model=NAME, max_tokens=0, echo=True, logprobs=2)["choices"][
        0
    ]
    generated, echoed = told["logprobs"], whole["logprobs"]
    count = len(generated["tokens"])
    assert echoed["tokens"][-count:] == generated["tokens"]
    for given, again in zip(generated["token_logprobs"], echoed["token_logprobs"][-count:], strict=True):
        assert given == pytest.approx(again, abs=1e-3)
