"""What a user gains: a shared prefix is computed once, a chat stays where its past is, new work spreads."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.verify.conftest import MODEL
from tests.verify.fleet import report
from tests.verify.texts import prose

pytestmark = [pytest.mark.model, pytest.mark.fleet]


def stream(url: str, body: dict[str, Any]) -> tuple[float, int, str, httpx.Headers]:
    """(seconds to first content, cached tokens, text, headers) of one streamed chat on its own connection."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    text, cached, first = "", 0, 0.0
    with httpx.Client(timeout=120) as client:
        client.get(f"{url}/livez")
        began = time.perf_counter()
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    first = first or time.perf_counter() - began
                    text += chunk["choices"][0]["delta"]["content"]
                if chunk.get("usage"):
                    cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
            headers = answer.headers
    return first, cached, text, headers


def count(url: str, text: str) -> int:
    body = {"model": MODEL, "prompt": text}
    return int(httpx.post(f"{url}/tokenize", json=body, timeout=30).json()["count"])


def test_a_shared_prefix_is_computed_once(router: str) -> None:
    rng = random.Random(f"shared {time.time_ns()}")
    system = prose(rng, 1200)
    system = system[: int(len(system) * 1000 / count(router, system))]
    shared = count(router, f"<|im_start|>system\n{system}")
    questions = ["Who carries the lantern?", "What does the teacher repair in winter?"]
    results = []
    for question in questions:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        results.append(stream(router, body))
    (cold, cached_cold, _, first), (warm, cached_warm, _, second) = results
    report(
        f"shared prefix of {shared} tokens: cold {cold * 1e3:.0f} ms ({cached_cold} cached), warm {warm * 1e3:.0f} ms "
        f"({cached_warm} cached), ratio {warm / cold:.3f}"
    )
    assert 980 <= shared <= 1040
    assert cached_cold < 64
    assert cached_warm >= min(984, shared - 16)
    assert first["x-trieway-worker"] == second["x-trieway-worker"]
    assert warm <= cold / 4


def test_a_chat_of_six_turns_stays_where_its_past_is(router: str) -> None:
    rng = random.Random(f"chat {time.time_ns()}")
    messages: list[dict[str, str]] = [{"role": "system", "content": prose(rng, 40)}]
    workers: list[str] = []
    held = ""
    for turn in range(6):
        messages.append({"role": "user", "content": prose(rng, 25)})
        body = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0.8, "seed": turn}
        _, cached, text, headers = stream(router, body)
        workers.append(headers["x-trieway-worker"])
        if turn:
            # `held` is all the text of the earlier prompt and answer; less than one 64-byte block of it may be missing.
            missing = count(router, held) - cached
            tail_tokens = count(router, held[-64:])
            report(f"chat turn {turn + 1}: {cached} cached of {count(router, held)} earlier tokens on {workers[-1]}")
            assert missing < tail_tokens, f"turn {turn + 1}: {missing} earlier tokens were not cached"
        messages.append({"role": "assistant", "content": text})
        held = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        held = held.removesuffix("<|im_end|>\n")
    assert len(set(workers)) == 1, workers


def test_forty_sequential_distinct_prompts_spread(router: str) -> None:
    rng = random.Random(f"spread {time.time_ns()}")
    seen: Counter[str] = Counter()
    with httpx.Client(timeout=120) as client:
        for _ in range(40):
            body = {"model": MODEL, "prompt": prose(rng, 60), "max_tokens": 1}
            answer = client.post(f"{router}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            seen[answer.headers["x-trieway-worker"]] += 1
    report(f"40 distinct prompts one after another: {dict(seen)}")
    assert len(seen) == 2
    assert min(seen.values()) >= 12
