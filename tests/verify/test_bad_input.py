"""Bad input gets the right 4xx in OpenAI's shape, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.verify.conftest import MODEL

pytestmark = [pytest.mark.model, pytest.mark.fleet]
GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def chat(**change: Any) -> bytes:
    return json.dumps(GOOD | change).encode()


CASES: dict[str, tuple[bytes, int]] = {
    "malformed JSON": (b'{"model": "smollm2-135m", "messages": [', 400),
    "not an object": (b"[1, 2]", 400),
    "empty body": (b"", 400),
    "messages of the wrong type": (chat(messages="hi"), 400),
    "a message of the wrong type": (chat(messages=[7]), 400),
    "content of the wrong type": (chat(messages=[{"role": "user", "content": 5}]), 400),
    "empty messages": (chat(messages=[]), 400),
    "no messages": (json.dumps({"model": MODEL}).encode(), 400),
    "unknown model": (chat(model="nobody"), 404),
    "model of the wrong type": (chat(model=3), 400),
    "negative max_tokens": (chat(max_tokens=-4), 400),
    "zero n": (chat(n=0), 400),
    "too long a prompt": (chat(messages=[{"role": "user", "content": "word " * 20_000}]), 400),
    "invalid UTF-8": (b'{"model": "smollm2-135m", "messages": [{"role": "user", "content": "\xff\xfe"}]}', 400),
    "a lone surrogate": (
        b'{"model":"smollm2-135m","messages":[{"role":"user","content":"\\ud800"}],"max_tokens":1}',
        400,
    ),
    "NaN": (b'{"model":"smollm2-135m","messages":[{"role":"user","content":"x"}],"temperature":NaN}', 400),
    "stream of the wrong type": (chat(stream="yes"), 400),
    "a stop list too long": (chat(stop=["a"] * 500), 400),
    "deep nesting": (b'{"model":"smollm2-135m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_bodies(server: str, http: httpx.Client, name: str) -> None:
    body, status = CASES[name]
    answer = http.post(f"{server}/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    assert http.post(f"{server}/v1/chat/completions", content=chat()).status_code == 200


@pytest.mark.parametrize("prompt", ["", [], [[]], [1, -5], [10**9], ["a", 3], {"a": 1}, None], ids=str)
def test_bad_prompts(server: str, http: httpx.Client, prompt: object) -> None:
    answer = http.post(f"{server}/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"]
    assert http.post(f"{server}/v1/chat/completions", content=chat()).status_code == 200


def test_a_body_of_50_mb(server: str, http: httpx.Client) -> None:
    big = chat(messages=[{"role": "user", "content": "x" * 50_000_000}])
    try:
        answer = http.post(f"{server}/v1/chat/completions", content=big)
    except httpx.WriteError:  # The server may hang up on the rest of a body that it has refused.
        answer = None
    if answer is not None:
        assert answer.status_code == 413
        assert answer.json()["error"]["type"]

    def pieces() -> Any:
        for _ in range(50):
            yield b" " * 1_000_000

    try:
        chunked = http.post(f"{server}/v1/chat/completions", content=pieces())
    except httpx.WriteError:
        chunked = None
    assert chunked is None or chunked.status_code == 413
    assert http.post(f"{server}/v1/chat/completions", content=chat()).status_code == 200


def test_unknown_paths_and_methods(server: str, http: httpx.Client) -> None:
    assert http.get(f"{server}/v1/nothing").status_code == 404
    assert http.get(f"{server}/v1/chat/completions").status_code == 405
    for path in ("/v1/nothing",):
        assert set(http.get(server + path).json()["error"]) >= {"message", "type", "param", "code"}
