"""Streamed answers: their chunks, how they are written, and how they end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trieway.serving.headers import Receipt

from .fakes import babble, encode
from .harness import EPOCH, Worker, chunks
from .raw import raw_post

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_chat_stream_has_openais_chunks(worker: Worker) -> None:
    events = worker.stream(CHAT, messages=user("say:hay|"))
    first, *middle, last = events
    assert {event["id"] for event in events} == {first["id"]}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert all("usage" not in event for event in events)
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert [event["choices"][0]["delta"] for event in middle] == [{"content": "h"}, {"content": "a"}, {"content": "y"}]
    assert all(event["choices"][0]["finish_reason"] is None for event in middle)
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]


def test_a_completion_stream_has_openais_chunks(worker: Worker) -> None:
    events = worker.stream(TEXT, prompt="say:hi|")
    assert {event["object"] for event in events} == {"text_completion"}
    assert [event["choices"][0] for event in events] == [
        {"index": 0, "text": "h", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "i", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"},
    ]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_comes_last_when_it_is_asked_for(worker: Worker, path: str) -> None:
    prompt = {"messages": user("say:hay|")} if path == CHAT else {"prompt": "say:hay|"}
    worker.stream(path, **prompt)
    *events, last = worker.stream(path, **prompt, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events)
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_streams_say_what_whole_answers_say(worker: Worker) -> None:
    asked = {"prompt": ["first", "say:😀 STOP!|"], "n": 2, "max_tokens": 7, "echo": True, "logprobs": 2, "seed": 3}
    whole = worker.complete(**asked, temperature=0.9)
    events = worker.stream(TEXT, **asked, temperature=0.9)
    for choice in whole["choices"]:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine][-1] == choice["finish_reason"]
        for key in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            told = [item for part in mine if part["logprobs"] for item in part["logprobs"][key]]
            assert told == choice["logprobs"][key]


def test_every_choice_of_a_stream_has_its_role_once_and_first(worker: Worker) -> None:
    events = worker.stream(CHAT, messages=user("say:abc|"), n=3)
    for index in range(3):
        deltas = [e["choices"][0]["delta"] for e in events if e["choices"][0]["index"] == index]
        assert deltas[0]["role"] == "assistant"
        assert all("role" not in delta for delta in deltas[1:])
        assert "".join(delta.get("content", "") for delta in deltas) == "abc"


def test_a_character_is_never_torn(worker: Worker) -> None:
    events = worker.stream(TEXT, prompt="say:é😀ü|")
    assert [event["choices"][0]["text"] for event in events if event["choices"][0]["text"]] == ["é", "😀", "ü"]


def test_a_character_cut_by_the_limit_shows_as_replaced_at_the_end(worker: Worker) -> None:
    events = worker.stream(TEXT, prompt="say:a😀|", max_tokens=2)
    assert "".join(event["choices"][0]["text"] for event in events) == "a\ufffd"
    assert worker.complete("say:a😀|", max_tokens=2)["choices"][0]["text"] == "a\ufffd"


def test_what_a_step_gives_is_one_write(worker: Worker) -> None:
    body = {"model": "tiny", "prompt": "say:abcd|", "n": 3, "stream": True, "temperature": 0}
    with raw_post(worker.url, TEXT, body) as answer:
        answer.read_head()
        writes = [write.count(b"data: ") for write in answer.chunks()]
    # The samples start one step apart at most; from then on each step writes one event for each of them.
    assert sum(writes) == 3 * 5 + 1
    assert len(writes) <= 6


def test_nothing_is_sent_before_the_first_token(worker: Worker) -> None:
    worker.runner.gate.clear()
    worker.runner.entered.clear()
    body = {"model": "tiny", "prompt": "say:ab|", "stream": True, "temperature": 0}
    with raw_post(worker.url, TEXT, body) as answer:
        assert worker.runner.entered.wait(30)
        assert answer.silent()
        worker.runner.gate.set()
        answer.read_head()
        assert answer.status == 200
        list(answer.chunks())


@pytest.mark.parametrize("stream", [False, True])
def test_the_receipt_is_in_the_headers(worker: Worker, stream: bool) -> None:
    prompt = "a prompt that fills more than one block of sixty-four bytes, and then some: say:x|"
    count = len(encode(prompt))
    for cached in (0, count - 1):
        body = {"model": "tiny", "prompt": prompt, "stream": stream, "temperature": 0}
        response = worker.client.post(TEXT, json=body, headers={"x-request-id": "mine"})
        receipt = Receipt.parse(response.headers["x-trieway-receipt"])
        assert receipt is not None
        assert (receipt.prompt, receipt.cached, receipt.epoch) == (count, cached, EPOCH)
        assert receipt.number <= worker.built.service.feed.publisher.number
        assert receipt.prefill_ms >= 0
        assert receipt.queue_ms >= 0
        assert response.headers["x-trieway-cached-tokens"] == str(cached)
        assert response.headers["x-request-id"] == "mine"
        assert response.headers["server"] == "trieway-worker"


def test_a_stream_is_an_event_stream(worker: Worker) -> None:
    response = worker.client.post(TEXT, json={"model": "tiny", "prompt": "say:x|", "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert len(chunks(response.content)) == 2


def test_a_stream_that_breaks_ends_with_an_error_event(worker: Worker) -> None:
    start = len(encode("say:abcdef|"))
    broken = RuntimeError("the device is on fire: SECRET PROMPT")
    worker.runner.fault = lambda work: broken if work[0].start >= start + 2 else None
    body = {"model": "tiny", "prompt": "say:abcdef|", "stream": True, "temperature": 0}
    try:
        response = worker.client.post(TEXT, json=body)
    finally:
        worker.runner.fault = lambda work: None
    assert response.status_code == 200
    *events, last, end = response.text.split("\n\n")
    assert [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events] == ["a", "b", "c"]
    assert end == ""
    kind, data = last.split("\n")
    assert kind == "event: error"
    error = json.loads(data.removeprefix("data: "))["error"]
    assert error["code"] == "internal_error"
    assert "SECRET" not in error["message"]


def test_babble_is_what_the_model_says(worker: Worker) -> None:
    events = worker.stream(TEXT, prompt="anything", max_tokens=8)
    assert "".join(event["choices"][0]["text"] for event in events) == babble("anything", 8)
