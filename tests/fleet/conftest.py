"""A stand-in OpenAI server, for the commands that look at a running fleet."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

CHARS_PER_TOKEN = 5


def common_prefix(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


class StandInServer(http.server.ThreadingHTTPServer):
    """Counts five characters as a token, remembers prompts, answers `a b c ...`; keeps what it was asked."""

    daemon_threads = False
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[str] = []
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.authorizations: list[str | None] = []
        self.canned: dict[str, tuple[int, Any]] = {}
        self.context_tokens_max = 100_000
        self.usage_reported = True
        self.break_streams = False
        self.names = ("w0",)
        """Workers that streams come from, in turn."""
        self.counts_steps = False
        self.steps = 0
        self.fails_after: int | None = None
        """Completions that are answered; the others get a 500."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def usage(self, prompt: str, completion_tokens: int) -> dict[str, Any]:
        shared = max((common_prefix(prompt, old) for old in self.seen), default=0)
        self.seen.append(prompt)
        usage: dict[str, Any] = {"completion_tokens": completion_tokens}
        usage["prompt_tokens"] = len(prompt) // CHARS_PER_TOKEN
        if self.usage_reported:
            usage["prompt_tokens_details"] = {"cached_tokens": shared // CHARS_PER_TOKEN}
        return usage


class Handler(http.server.BaseHTTPRequestHandler):
    server: StandInServer
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers.get("authorization"))
        if self.path in self.server.canned:
            self.answer(*self.server.canned[self.path])
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": "stand-in"}]})
        elif self.path == "/metrics" and self.server.counts_steps:
            self.answer(200, f"trieway_worker_step_seconds_count {self.server.steps}.0\n".encode())
        else:
            self.answer(404, {"error": {"message": "no such thing"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append((self.path, body))
        self.server.authorizations.append(self.headers.get("authorization"))
        if self.path in self.server.canned:
            self.answer(*self.server.canned[self.path])
        elif self.path == "/tokenize":
            self.answer(200, {"count": len(body["prompt"]) // CHARS_PER_TOKEN})
        else:
            self.complete(body)

    def complete(self, body: dict[str, Any]) -> None:
        chat = "messages" in body
        prompt = "".join(message["content"] for message in body["messages"]) if chat else body["prompt"]
        if len(prompt) // CHARS_PER_TOKEN > self.server.context_tokens_max:
            self.answer(400, {"error": {"message": "too long"}})
            return
        if self.server.fails_after is not None and len(self.server.seen) >= self.server.fails_after:
            self.answer(500, {"error": {"message": "broken"}})
            return
        usage = self.server.usage(prompt, body["max_tokens"])
        self.server.steps += body["max_tokens"]
        if not body.get("stream"):
            self.answer(200, {"choices": [{"text": "a"}], "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-trieway-worker", self.server.names[len(self.server.seen) % len(self.server.names)])
        self.send_header("x-trieway-predicted-tokens", "7")
        self.end_headers()
        for number in range(body["max_tokens"]):
            piece = "abc"[number % 3] + " "
            choice = {"delta": {"content": piece}} if chat else {"text": piece}
            self.event({"choices": [choice]})
            if self.server.break_streams:
                self.wfile.write(b"event: error\n")
                self.event({"error": {"message": "worker died"}})
                return
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")


@pytest.fixture
def server() -> Iterator[StandInServer]:
    with StandInServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()
