"""The engine's thread: failing steps, a broken engine, order of what it says, its end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from trieway.serving.errors import Internal, Unavailable
from trieway.worker.stepper import FAILED_STEPS_MAX

from .fakes import babble
from .harness import Worker, running, wait_until

TEXT = "/v1/completions"


def fails_on(worker: Worker, length: int) -> None:
    """Steps that hold a prompt of `length` tokens raise."""
    worker.runner.fault = lambda work: (
        RuntimeError("bad request SECRET") if any(len(one.tokens) == length for one in work) else None
    )


def test_a_failing_step_costs_its_own_requests_alone(worker: Worker) -> None:
    fails_on(worker, 33)
    try:
        response = worker.client.post(TEXT, json={"model": "tiny", "prompt": "x" * 33})
        assert response.status_code == 500
        error = response.json()["error"]
        assert error["code"] == "internal_error"
        assert "SECRET" not in error["message"]
        assert worker.complete("fine", max_tokens=4)["choices"][0]["text"] == babble("fine", 4)
    finally:
        worker.runner.fault = lambda work: None
    worker.check()
    assert worker.client.get("/livez").status_code == 200


def test_a_failing_sample_fails_its_siblings(worker: Worker) -> None:
    fails_on(worker, 33)
    try:
        response = worker.client.post(TEXT, json={"model": "tiny", "prompt": ["fine", "x" * 33, "also fine"]})
        assert response.status_code == 500
    finally:
        worker.runner.fault = lambda work: None
    worker.wait_idle()
    worker.check()


def test_an_engine_that_fails_step_after_step_is_given_up() -> None:
    with running(checked=False) as worker:
        worker.runner.fault = lambda work: RuntimeError("lost device")
        codes = [
            worker.client.post(TEXT, json={"model": "tiny", "prompt": "x"}).status_code for _ in range(FAILED_STEPS_MAX)
        ]
        assert set(codes) == {500}
        wait_until(worker.built.service.fatal.is_set)
        assert "steps in a row failed" in worker.built.service.fatal_reason
        assert worker.client.get("/livez").status_code == 503
        assert worker.client.get("/readyz").status_code == 503
        assert worker.client.post(TEXT, json={"model": "tiny", "prompt": "x"}).status_code == 503


def test_a_broken_engine_ends_what_waits_for_it() -> None:
    with running(checked=False) as worker:
        worker.runner.gate.clear()
        codes: list[int] = []
        post = {"model": "tiny", "prompt": "x", "max_tokens": 400}
        waiting = threading.Thread(target=lambda: codes.append(worker.client.post(TEXT, json=post).status_code))
        waiting.start()
        assert worker.runner.entered.wait(30)

        def broken(_: Any) -> None:
            raise AssertionError("our own bug")

        asked = asyncio.run_coroutine_threadsafe(worker.built.service.engine.ask(broken), worker.loop)
        wait_until(lambda: worker.built.service.engine._commands.qsize() > 0)
        worker.runner.gate.set()
        with pytest.raises(Internal):
            asked.result(30)
        waiting.join(30)
        assert codes == [500]
        with pytest.raises(Unavailable):
            worker.ask(lambda stepper: stepper.check())


def test_a_stopping_worker_takes_nothing_new_and_finishes_the_rest() -> None:
    with running(checked=False) as worker:
        worker.runner.gate.clear()
        answers: list[str] = []
        running_one = threading.Thread(target=lambda: answers.append(worker.complete("x", max_tokens=9)["id"]))
        running_one.start()
        assert worker.runner.entered.wait(30)
        draining = asyncio.run_coroutine_threadsafe(worker.built.service.drain(30), worker.loop)
        wait_until(lambda: worker.built.service.draining)
        response = worker.client.post(TEXT, json={"model": "tiny", "prompt": "x"})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "draining"
        assert worker.client.get("/readyz").status_code == 503
        assert worker.client.get("/livez").status_code == 200
        assert worker.client.get("/cache/feed", headers=worker.bearer()).status_code == 503
        assert worker.built.service.load().draining
        assert not draining.done()
        worker.runner.gate.set()
        draining.result(30)
        running_one.join(30)
        assert len(answers) == 1


def test_draining_is_bounded() -> None:
    with running(checked=False) as worker:
        worker.runner.gate.clear()
        codes: list[int] = []
        post = {"model": "tiny", "prompt": "x", "max_tokens": 400}
        stuck = threading.Thread(target=lambda: codes.append(worker.client.post(TEXT, json=post).status_code))
        stuck.start()
        assert worker.runner.entered.wait(30)
        worker.call(worker.built.service.drain(0.05))
        worker.runner.gate.set()
        worker.call(worker.built.service.stop())
        stuck.join(30)
        assert codes == [503]


def test_events_of_a_question_come_before_its_answer(worker: Worker) -> None:
    worker.complete("x" * 128, max_tokens=1)
    assert worker.built.service.feed.publisher.blocks == 2

    async def flushed() -> int:
        await worker.built.service.engine.ask(lambda stepper: stepper.flush())
        return worker.built.service.feed.publisher.blocks

    assert worker.call(flushed()) == 0
