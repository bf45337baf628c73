"""Chats over HTTP: shapes, turns that hit prompt and answer, templates and tenants."""

from __future__ import annotations

import datetime
from typing import Any

from .fakes import TEMPLATE, encode
from .harness import Worker, running


def test_a_chat_has_openais_shape(worker: Worker) -> None:
    answer = worker.chat("say:good day|")
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    prompt = len(encode("<|user|>say:good day|<|end|><|bot|>"))
    generated = len(encode("good day")) + 1
    assert answer == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "good day", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_without_max_tokens_a_chat_may_fill_the_context() -> None:
    with running(context_tokens_max=100) as worker:
        answer = worker.chat("babble", ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 100
    assert answer["choices"][0]["finish_reason"] == "length"


def test_logprobs_have_the_chats_shape(worker: Worker) -> None:
    choice = worker.chat("say:a😀|", logprobs=True, top_logprobs=3)["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == "a😀"
    assert [entry["token"] for entry in content] == ["a", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80"]
    assert [entry["bytes"] for entry in content] == [[0x61], [0xF0, 0x9F], [0x98, 0x80]]
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0] == {key: entry[key] for key in ("token", "logprob", "bytes")}
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
    plain = worker.chat("say:ab|", logprobs=True)["choices"][0]["logprobs"]
    assert [entry["top_logprobs"] for entry in plain["content"]] == [[], []]
    assert plain["refusal"] is None


def test_every_turn_hits_the_earlier_prompt_and_answer(worker: Worker) -> None:
    messages: list[dict[str, Any]] = []
    before = 0
    for turn in range(4):
        messages.append({"role": "user", "content": f"turn {turn}, say:the answer and number {turn} is STOP!|"})
        answer = worker.chat(messages)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= before - 1, "all but the end token that was sampled last"
        before = answer["usage"]["total_tokens"]
        messages.append(answer["choices"][0]["message"])


def test_an_answer_comes_back_as_the_tokens_that_were_generated(worker: Worker) -> None:
    # The model spells "the " letter by letter; a tokenizer would take one token for it.
    first = worker.complete(encode("spell"), max_tokens=1)
    assert first["usage"]["completion_tokens"] == 1
    answer = worker.complete("say:t h|", stop=[" "])["choices"][0]["text"]
    assert answer == "t"
    again = worker.complete("say:t h|t", max_tokens=1)["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1


def test_content_parts_are_one_text(worker: Worker) -> None:
    parts = [{"type": "text", "text": "say:pa"}, {"type": "text", "text": "rts|"}]
    assert worker.chat([{"role": "user", "content": parts}])["usage"]["prompt_tokens"] > 4


def test_n_answers_of_a_chat(worker: Worker) -> None:
    answer = worker.chat("say:twice|", n=2)
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [
        (0, "twice"),
        (1, "twice"),
    ]


def test_max_completion_tokens_counts(worker: Worker) -> None:
    assert worker.chat("say:abcdef|", max_completion_tokens=2)["choices"][0]["message"]["content"] == "ab"


def test_a_model_without_a_template_refuses_chats() -> None:
    with running(template=None) as worker:
        response = worker.client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        )
        assert worker.complete("say:ok|")["choices"][0]["text"] == "ok"
    assert response.status_code == 400
    assert "template" in response.json()["error"]["message"]


def test_a_template_gets_its_time_from_a_router_that_shows_the_token() -> None:
    clock = "{{ strftime_now('%Y-%m-%d') }}" + TEMPLATE
    body = {"messages": [{"role": "user", "content": "say:x|"}], "temperature": 0}
    with running(template=clock) as worker:
        moment = datetime.datetime(2001, 2, 3, tzinfo=datetime.UTC).timestamp()
        worker.post("/v1/chat/completions", body, **worker.fleet(**{"x-trieway-render-time": str(moment)}))
        same_day = worker.post("/v1/completions", {"prompt": "2001-02-03<|user|>say:x|<|end|><|bot|>"})
        assert same_day["usage"]["prompt_tokens_details"]["cached_tokens"] > 10
        worker.post("/v1/chat/completions", body, **{"x-trieway-render-time": str(moment)})
        today = worker.post("/v1/completions", {"prompt": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}<|user|>say"})
        assert today["usage"]["prompt_tokens_details"]["cached_tokens"] > 10, "nobody vouched: the worker's own clock"
