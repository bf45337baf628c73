"""What cannot be served: the right status in OpenAI's shape, and the next request works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .fakes import encode
from .harness import Worker, running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture(autouse=True)
def _the_next_request_works(worker: Worker) -> Iterator[None]:
    yield
    assert worker.complete("say:still here|")["choices"][0]["text"] == "still here"


def refused(worker: Worker, status: int, path: str, body: Any, **headers: str) -> dict[str, Any]:
    """The error object of a refusal."""
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    response = worker.client.post(path, **content, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    (name,) = response.json()
    error: dict[str, Any] = response.json()[name]
    assert name == "error"
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return error


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"model": "tiny"',
        b'{"model": "tiny", "prompt": "\xff\xfe", "messages": "\xff"}',
        b'{"model": "tiny", "prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b"[" * 100_000,
    ],
)
def test_a_broken_body(worker: Worker, path: str, body: bytes) -> None:
    assert refused(worker, 400, path, body)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", "many"),
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("n", 0),
        ("n", 1.5),
        ("stop", 7),
        ("stop", [""]),
        ("stream", "yes"),
        ("seed", "x"),
        ("presence_penalty", 9),
        ("frequency_penalty", -9),
        ("repetition_penalty", 0),
        ("logit_bias", {"1": 1}),
        ("response_format", {"type": "json_object"}),
        ("priority", "high"),
        ("cache_salt", 5),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_field_with_an_unusable_value_is_named(worker: Worker, path: str, field: str, value: Any) -> None:
    body = {"model": "tiny", "prompt": "x", "messages": [{"role": "user", "content": "x"}], field: value}
    error = refused(worker, 400, path, body)
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize("messages", [[], None, "text", [{"content": "x"}], [1], [{"role": "user", "content": 5}]])
def test_unusable_messages(worker: Worker, messages: Any) -> None:
    refused(worker, 400, CHAT, {"model": "tiny", "messages": messages})


@pytest.mark.parametrize("prompt", ["", [], [[]], None, [1, "x"], [-1], [10_000], [[1], "x"], {"a": 1}, ["ok", ""]])
def test_unusable_prompts(worker: Worker, prompt: Any) -> None:
    refused(worker, 400, TEXT, {"model": "tiny", "prompt": prompt})


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_unknown_model(worker: Worker, path: str) -> None:
    body = {"model": "other", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    error = refused(worker, 404, path, body)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": "x" * 513}),
        (TEXT, {"prompt": "x" * 1_000_000}),
        (TEXT, {"prompt": [120] * 600}),
        (TEXT, {"prompt": "x" * 500, "max_tokens": 13}),
        (TEXT, {"prompt": "x", "max_tokens": 10**12}),
        (TEXT, {"prompt": ["x", "x" * 513]}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 512}]}),
    ],
)
def test_a_prompt_that_does_not_fit(worker: Worker, path: str, body: dict[str, Any]) -> None:
    error = refused(worker, 400, path, {"model": "tiny", **body})
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]


def test_a_prompt_that_just_fits(worker: Worker) -> None:
    answer = worker.complete("x" * 500, max_tokens=12)
    assert answer["usage"]["total_tokens"] == 512


def test_a_pool_smaller_than_the_context_bounds_it() -> None:
    with running(kv_tokens=128) as small:
        assert small.complete("x" * 100, max_tokens=28)["usage"]["total_tokens"] == 128
        error = refused(small, 400, TEXT, {"model": "tiny", "prompt": "x" * 100, "max_tokens": 29})
        assert error["code"] == "context_length_exceeded"


def test_more_answers_than_allowed(worker: Worker) -> None:
    with running(completions_max=4) as small:
        assert refused(small, 400, TEXT, {"model": "tiny", "prompt": ["a", "b", "c"], "n": 2})["param"] == "n"


def test_a_body_over_the_bound(worker: Worker) -> None:
    with running(body_max_bytes=10_000) as small:
        error = refused(small, 413, TEXT, b'{"prompt": "' + b"x" * 10_000)
        assert error["code"] == "body_too_large"

        def endless() -> Iterator[bytes]:
            for _ in range(1000):
                yield b"x" * 1000

        response = small.client.post(TEXT, content=endless())
        assert response.status_code == 413
        assert small.client.post("/tokenize", content=b"x" * 20_000).status_code == 413


def test_fifty_megabytes(worker: Worker) -> None:
    assert worker.client.post(CHAT, content=b"x" * 50_000_000).status_code == 413


@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/cache"])
def test_an_unknown_route(worker: Worker, path: str) -> None:
    refused(worker, 404, path, {})


def test_a_wrong_method(worker: Worker) -> None:
    response = worker.client.get(TEXT)
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"


def test_a_full_queue_is_busy_and_says_when_to_come_back(worker: Worker) -> None:
    with running(running_max=1, waiting_max=2) as small:
        small.runner.gate.clear()
        error = refused(small, 429, TEXT, {"model": "tiny", "prompt": "say:x|", "n": 4, "temperature": 0})
        assert error["code"] == "queue_full"
        response = small.client.post(TEXT, json={"model": "tiny", "prompt": "say:x|", "n": 5})
        assert int(response.headers["retry-after"]) >= 1
        small.runner.gate.set()
        small.wait_idle()
        assert small.complete("say:x|", n=2)["choices"][1]["text"] == "x"


def test_a_refused_sample_takes_its_siblings_with_it(worker: Worker) -> None:
    """Three samples are let in by the shell's bound, but one place in the scheduler's queue is taken already."""
    with running(running_max=2, waiting_max=2) as small:
        refused(small, 429, TEXT, {"model": "tiny", "prompt": "say:x|", "n": 3, "temperature": 0})
        small.wait_idle()
        small.check()


def test_the_token_bound_is_checked_before_a_long_text_is_tokenised(worker: Worker) -> None:
    longest = max(len(encode("<|user|>")), 8)
    error = refused(worker, 400, TEXT, {"model": "tiny", "prompt": "x" * (512 * longest + 1)})
    assert error["code"] == "context_length_exceeded"
