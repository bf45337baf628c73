"""Stop strings: never shown, not even in part, however the text is cut into tokens."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .fakes import encode
from .harness import Worker

TEXT = "/v1/completions"


@pytest.mark.parametrize(
    ("said", "stop", "shown"),
    [
        ("one STOP! two", ["STOP!"], "one "),
        ("one STOP! two", "STOP!", "one "),
        ("STOP!", ["STOP!"], ""),
        ("one STO", ["STOP!"], "one STO"),
        ("aab and", ["ab", "b"], "a"),
        ("x😀y", ["😀"], "x"),
        ("x😀y", ["y"], "x😀"),
        ("the end", ["e e"], "th"),
        ("abc", ["c"], "ab"),
        ("abc", ["zzz", "b"], "a"),
    ],
)
def test_text_ends_before_a_stop_string(worker: Worker, said: str, stop: str | list[str], shown: str) -> None:
    choice = worker.complete(f"say:{said}|", stop=stop)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (shown, "stop")
    events = worker.stream(TEXT, prompt=f"say:{said}|", stop=stop)
    assert "".join(event["choices"][0]["text"] for event in events) == shown
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_the_tokens_of_a_stop_string_are_not_shown_either(worker: Worker) -> None:
    logprobs = worker.complete("say:ab STOP! c|", stop=["STOP!"], logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", " "]
    events = worker.stream(TEXT, prompt="say:ab STOP! c|", stop=["STOP!"], logprobs=1)
    told = [token for event in events for token in (event["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
    assert told == ["a", "b", " "]


def test_generation_ends_with_the_stop_string(worker: Worker) -> None:
    usage = worker.complete("say:ab STOP! and much more|", stop=["STOP!"])["usage"]
    assert usage["completion_tokens"] == len(encode("ab STOP!"))


def test_a_stop_string_at_the_limit_is_a_stop(worker: Worker) -> None:
    choice = worker.complete("say:abX|", stop=["X"], max_tokens=3)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")


def test_held_back_text_comes_out_at_the_limit(worker: Worker) -> None:
    choice = worker.complete("say:abSTO|", stop=["STOP!"], max_tokens=3)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abSTO", "length")


def test_what_came_before_a_stop_string_is_reusable_later(worker: Worker) -> None:
    prompt = "say:words words words STOP! rest|"
    shown = worker.complete(prompt, stop=["STOP!"], max_tokens=40)["choices"][0]["text"]
    usage = worker.complete(prompt + shown, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.text(alphabet="abST OP!é😀the", min_size=1, max_size=14),
    stops=st.lists(st.text(alphabet="abST OP!é😀", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_no_chunk_ever_holds_a_stop_string(worker: Worker, said: str, stops: list[str]) -> None:
    events = worker.stream(TEXT, prompt=f"say:{said}|", stop=stops, max_tokens=60)
    shown = "".join(event["choices"][0]["text"] for event in events)
    ends = [said.find(stop) + len(stop) for stop in stops if stop in said]
    if ends:
        end = min(ends)
        longest = max(len(stop) for stop in stops if said[:end].endswith(stop))
        assert shown == said[: end - longest]
    else:
        assert shown == said
