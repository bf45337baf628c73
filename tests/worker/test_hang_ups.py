"""A client that goes away: everything it held is free at once, whatever it was waiting for."""

from __future__ import annotations

from typing import Any

import pytest

from .harness import Worker, running
from .raw import raw_post

TEXT = "/v1/completions"


def body(prompt: str = "say:" + "a" * 90 + "|", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 90, "temperature": 0, **fields}


def hold(worker: Worker) -> None:
    """Closes the gate; the next step waits inside the model."""
    worker.runner.gate.clear()
    worker.runner.entered.clear()


@pytest.mark.parametrize("stream", [False, True])
def test_while_its_prompt_is_computed(worker: Worker, stream: bool) -> None:
    started = worker.stats().cancelled_total
    hold(worker)
    with raw_post(worker.url, TEXT, body(stream=stream)) as answer:
        assert worker.runner.entered.wait(30)
        answer.hang_up()
        # The shell notices while the engine is inside a step; the scheduler hears of it right after that step.
        worker.wait_open(0)
    worker.runner.gate.set()
    worker.wait_idle()
    worker.check()
    stats = worker.stats()
    assert stats.cancelled_total == started + 1
    assert len(worker.runner.steps) > 0


def test_in_the_middle_of_a_stream(worker: Worker) -> None:
    stats = worker.stats()
    with raw_post(worker.url, TEXT, body(stream=True)) as answer:
        answer.read_head()
        answer.read_chunk()
        hold(worker)
        assert worker.runner.entered.wait(30)
        answer.hang_up()
        worker.wait_open(0)
    worker.runner.gate.set()
    worker.wait_idle()
    worker.check()
    after = worker.stats()
    assert after.cancelled_total == stats.cancelled_total + 1
    assert after.generated_tokens_total - stats.generated_tokens_total < 90


def test_while_it_waits_in_the_queue() -> None:
    with running(running_max=1, waiting_max=4) as worker:
        hold(worker)
        with raw_post(worker.url, TEXT, body("say:first|")) as first:
            assert worker.runner.entered.wait(30)
            with raw_post(worker.url, TEXT, body("say:second|")) as second:
                worker.wait_open(2)
                second.hang_up()
                worker.wait_open(1)
            worker.runner.gate.set()
            first.read_head()
            assert first.status == 200
        worker.wait_idle()
        worker.check()
        stats = worker.stats()
        assert (stats.cancelled_total, stats.finished_total) == (1, 1)
        assert stats.prompt_tokens_total == len("say:first|"), "the second was never started"


def test_with_several_samples(worker: Worker) -> None:
    started = worker.stats().cancelled_total
    hold(worker)
    with raw_post(worker.url, TEXT, body(n=5, stream=True)) as answer:
        assert worker.runner.entered.wait(30)
        answer.hang_up()
        worker.wait_open(0)
    worker.runner.gate.set()
    worker.wait_idle()
    worker.check()
    assert worker.stats().cancelled_total == started + 5


def test_while_its_body_is_sent(worker: Worker) -> None:
    with raw_post(worker.url, TEXT, b"", **{"x-nothing": "1"}) as answer:
        answer.hang_up()
    with raw_post(worker.url, TEXT, b'{"half": ', **{"transfer-encoding": "chunked"}) as answer:
        answer.hang_up()
    assert worker.complete("say:fine|")["choices"][0]["text"] == "fine"


def test_a_hint_that_nobody_waits_for_is_ended_too(worker: Worker) -> None:
    hold(worker)
    with raw_post(worker.url, "/cache/prefix", body("x" * 60)) as answer:
        assert worker.runner.entered.wait(30)
        answer.hang_up()
        worker.runner.gate.set()
    worker.wait_idle()
    worker.check()


def test_what_was_computed_stays_cached(worker: Worker) -> None:
    prompt = "a long prompt that was computed before its client went away; say:" + "b" * 60 + "|"
    with raw_post(worker.url, TEXT, body(prompt, stream=True)) as answer:
        answer.read_head()
        answer.hang_up()
    worker.wait_idle()
    usage = worker.complete(prompt, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_a_hundred_of_them_leak_nothing(worker: Worker) -> None:
    for turn in range(100):
        with raw_post(worker.url, TEXT, body(f"{turn} say:" + "c" * 50 + "|", stream=turn % 2 == 0)) as answer:
            if turn % 4 == 0:
                answer.read_head()
            answer.hang_up()
    worker.wait_idle()
    worker.check()
