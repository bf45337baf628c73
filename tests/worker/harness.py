"""A real worker server on loopback, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from trieway.meta_tree.chain import FleetKey
from trieway.serving.auth import KeyRing
from trieway.serving.chat_template import ChatTemplate
from trieway.serving.config import WorkerConfig
from trieway.serving.tracing import Tracer
from trieway.worker.assembly import Built, Model, build
from trieway.worker.core.sequence import SchedulerStats
from trieway.worker.main import Server, make_server
from trieway.worker.stepper import Stepper

from .fakes import TEMPLATE, FakeCodec, FakeRunner

T = TypeVar("T")
CONFIG = WorkerConfig(
    port=0, kv_tokens=2048, batch_tokens_max=64, running_max=8, waiting_max=16, context_tokens_max=512, seed=7
)
EPOCH = 1234


@dataclass
class Worker:
    """A running worker as a test sees it."""

    url: str
    built: Built
    runner: FakeRunner
    key: FleetKey
    server: Server
    loop: asyncio.AbstractEventLoop
    client: httpx.Client

    def ask(self, question: Callable[[Stepper], T]) -> T:
        """A question to the engine's thread."""
        return self.call(self.built.service.engine.ask(question))

    def call(self, work: Any) -> Any:
        """Runs a coroutine on the worker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def stats(self) -> SchedulerStats:
        return self.ask(lambda stepper: stepper.state().stats)

    def check(self) -> None:
        """All sums hold, and nothing is held by anyone."""

        async def proofs() -> None:
            self.built.service.feed.check()
            if self.built.service.memory is not None:
                self.built.service.memory.check()
            assert self.built.service.engine.open_samples == 0

        self.ask(lambda stepper: stepper.check())
        self.call(proofs())
        stats = self.stats()
        assert stats.running == stats.waiting == stats.kv_running == stats.kv_locked == 0
        assert stats.kv_free + stats.kv_cached == stats.kv_total

    def wait_idle(self) -> None:
        """Returns once no request is left in the scheduler."""
        wait_until(lambda: not (stats := self.stats()).running + stats.waiting)

    def wait_open(self, samples: int) -> None:
        """Returns once this many samples are open in the shell, whatever the engine is doing."""
        wait_until(lambda: self.built.service.engine.open_samples == samples)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """A whole text completion, greedy unless said otherwise."""
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})

    def chat(self, messages: list[dict[str, Any]] | str, **fields: Any) -> dict[str, Any]:
        """A whole chat completion, greedy unless said otherwise."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})

    def post(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        response = self.client.post(path, json={"model": "tiny", **body}, headers=headers)
        assert response.status_code == 200, response.text
        parsed: dict[str, Any] = response.json()
        return parsed

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed answer; it must end with [DONE]."""
        fields = {"model": "tiny", "temperature": 0, "stream": True, **body}
        with self.client.stream("POST", path, json=fields) as response:
            assert response.status_code == 200
            return chunks(response.read())

    def fleet(self, **headers: str) -> dict[str, str]:
        """Headers of a router."""
        return {"x-trieway-fleet": self.key.feed_token, **headers}

    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key.feed_token}"}


def wait_until(true: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Looks again and again, politely."""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


def chunks(body: bytes) -> list[dict[str, Any]]:
    """The JSON events of a complete SSE body."""
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@contextmanager
def running(
    config: WorkerConfig = CONFIG,
    *,
    ring: KeyRing | None = None,
    secret: bytes | None = None,
    model: Model | None = None,
    template: str | None = TEMPLATE,
    bos_text: str = "",
    width: int = 0,
    heartbeat_s: float = 0.05,
    checked: bool = True,
    tracer: Tracer | None = None,
    **changes: Any,
) -> Iterator[Worker]:
    """A worker with `changes` to its configuration. At the end its sums are proved and it must stop by itself."""
    config = replace(config, **changes)
    key = FleetKey.from_secret(secret)
    runner = FakeRunner(config.kv_tokens, config.page_size)
    runner.width = width or runner.width
    model = model or Model(
        name="tiny",
        aliases=("tiny-alias",),
        codec=FakeCodec(bos_text),
        runner=runner,
        template=None if template is None else ChatTemplate(template, "", "<|end|>"),
        weights_digest="none",
        context_tokens=4096,
    )
    built = build(config, model, key=key, ring=ring or KeyRing(), epoch=EPOCH, heartbeat_s=heartbeat_s, tracer=tracer)
    server = make_server(config, built)
    ready: threading.Event = threading.Event()
    # The protocol is named: asyncio sets TCP_NODELAY on such sockets alone, and without it each answer takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        built.service.start()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await server.listening.wait()
        ready.set()
        await serving
        await built.service.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="worker-under-test")
    thread.start()
    assert ready.wait(30)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx.Client(base_url=url, timeout=100) as client:
        worker = Worker(url, built, runner, key, server, loops[0], client)
        try:
            yield worker
            if checked:
                worker.wait_idle()
                worker.check()
        finally:
            runner.gate.set()
            client.close()
            loops[0].call_soon_threadsafe(built.service.feed.close)
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
