"""Many requests at once, too little memory, clients that leave: every answer is still the right one."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from .fakes import babble
from .harness import Worker, running
from .raw import raw_post

TEXT = "/v1/completions"
PREFIX = "a beginning that many of them share, long enough to be worth waiting for; "


def answers(worker: Worker, prompts: list[str], tokens: int) -> list[str]:
    """The answers to all prompts, asked at once."""

    def ask(prompt: str) -> str:
        with httpx.Client(base_url=worker.url, timeout=100) as client:
            body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            response = client.post(TEXT, json=body)
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["text"])

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "random"])
@pytest.mark.parametrize("page_size", [1, 8])
def test_too_little_memory_for_all_of_them(policy: Any, page_size: int) -> None:
    """Prompts fit together, their answers do not: some lose their pages and replay."""
    prompts = [f"{PREFIX[: 10 * i]}{i}" for i in range(8)]
    with running(kv_tokens=320, page_size=page_size, batch_tokens_max=64, policy=policy) as worker:
        assert answers(worker, prompts, 90) == [babble(prompt, 90) for prompt in prompts]
        assert worker.stats().preempted_total > 0


def test_a_shared_beginning_is_computed_once() -> None:
    prompts = [f"{PREFIX}{i}" for i in range(8)]
    with running() as worker:
        assert answers(worker, prompts, 20) == [babble(prompt, 20) for prompt in prompts]
        stats = worker.stats()
    assert stats.cached_tokens_total >= 7 * (len(PREFIX) - 25)


def test_random_clients_some_of_whom_leave() -> None:
    """200 requests of every kind over a small pool, a third of them cut at a random moment."""
    with running(kv_tokens=600, batch_tokens_max=64, running_max=6, waiting_max=64) as worker:

        def client(seed: int) -> None:
            rng = random.Random(seed)
            for turn in range(20):
                prompt = PREFIX[: rng.randrange(1, len(PREFIX))] + str(rng.randrange(50))
                tokens = rng.randrange(1, 60)
                body = {
                    "model": "tiny",
                    "prompt": prompt,
                    "max_tokens": tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": turn % 2 == 0,
                    "n": rng.choice([1, 1, 2]),
                }
                with raw_post(worker.url, TEXT, body) as answer:
                    if rng.random() < 0.33:
                        if turn % 2 == 0 and rng.random() < 0.5:
                            answer.read_head()
                        answer.hang_up()
                        continue
                    answer.read_head()
                    assert answer.status in (200, 429)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
            assert not thread.is_alive()
        worker.wait_idle()
        worker.check()
        assert worker.complete(PREFIX, max_tokens=30)["choices"][0]["text"] == babble(PREFIX, 30)
