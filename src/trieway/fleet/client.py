"""How the commands speak to a running fleet: one client per person, errors in one line, streams timed.

It keeps true that loopback never goes through a proxy, that a key is read from a file and shown to nobody, and that
every wait is bounded. It does not know what the answers mean.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from trieway.fleet.errors import CommandError, UsageError
from trieway.serving.headers import PREDICTED_TOKENS, WORKER

TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 5.0
MESSAGE_MAX_CHARS = 300


def base_url(text: str) -> str:
    """The server's root out of what a person types: the scheme may be missing, `/v1` may follow. Raises UsageError."""
    full = text if "://" in text else f"http://{text}"
    try:
        url = httpx.URL(full)
    except httpx.InvalidURL as error:
        raise UsageError(f"{text!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"{text!r} is no HTTP URL; give one like http://127.0.0.1:8000")
    return str(url.copy_with(query=None, fragment=None)).rstrip("/").removesuffix("/v1")


def is_loopback(url: str) -> bool:
    """True if the URL's host is this machine by name or address."""
    host = httpx.URL(url).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_key(path: Path | None) -> dict[str, str]:
    """The authorization header of a key file's first line, or nothing. Raises UsageError."""
    if path is None:
        return {}
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"cannot read the key file {path}: {reason}") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise UsageError(f"the key file {path} holds no key")
    return {"authorization": f"Bearer {keys[0]}"}


def connect(url: str, key_file: Path | None = None) -> httpx.AsyncClient:
    """A client of its own, with its own connections. `url`: as `base_url` gives it."""
    return httpx.AsyncClient(
        base_url=url,
        headers=read_key(key_file),
        timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        trust_env=not is_loopback(url),
    )


async def ask(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """The JSON of an answer. Raises CommandError for what the server or the network refuses."""
    try:
        answer = await client.request(method, path, json=body)
    except httpx.HTTPError as error:
        raise CommandError(explain_network(client, error)) from None
    if answer.is_error:
        raise CommandError(explain_answer(path, answer.status_code, answer.content))
    try:
        return answer.json()
    except ValueError:
        raise CommandError(f"{client.base_url}{path.lstrip('/')} answered no JSON; is it a Trieway server?") from None


def explain_network(client: httpx.AsyncClient, error: httpx.HTTPError) -> str:
    """Why nothing came back, in one line."""
    url = str(client.base_url).rstrip("/")
    if isinstance(error, httpx.ConnectError):
        return f"nothing answers at {url}; start a fleet with `trieway up` or give its URL"
    if isinstance(error, httpx.TimeoutException):
        return f"{url} did not answer in time"
    return f"the connection to {url} broke: {str(error) or type(error).__name__}"


def explain_answer(path: str, status: int, content: bytes) -> str:
    """An error answer in one line: OpenAI's message where there is one, and what helps."""
    try:
        message = str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode("utf-8", errors="replace")
    message = " ".join(message.split())[:MESSAGE_MAX_CHARS]
    hint = "; give a key with --key-file" if status in (401, 403) else ""
    return f"{path} answered {status}: {message}{hint}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """One streamed answer. Times in seconds on one monotone clock, from the moment of sending.

    `arrivals_s`: when each piece of text came; `cached_tokens` and `worker` are None where the server does not say.
    """

    text: str
    arrivals_s: tuple[float, ...]
    sent_at_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    predicted_tokens: int | None
    worker: str | None

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.arrivals_s[0]


async def stream(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Streamed:
    """Send a completion with streaming and usage, and time its pieces. Raises CommandError."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    pieces: list[str] = []
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    sent_at = time.perf_counter()
    try:
        async with client.stream("POST", path, json=asked) as answer:
            if answer.is_error:
                raise CommandError(explain_answer(path, answer.status_code, await answer.aread()))
            async for event in _events(answer):
                if "error" in event:
                    raise CommandError(f"the stream broke: {_message(event)}")
                usage = event.get("usage") or usage
                if piece := _text(event):
                    pieces.append(piece)
                    arrivals.append(time.perf_counter() - sent_at)
            headers = answer.headers
    except httpx.HTTPError as error:
        raise CommandError(explain_network(client, error)) from None
    if not arrivals:
        raise CommandError(f"{path} answered without any text; ask for more tokens")
    return Streamed(
        text="".join(pieces),
        arrivals_s=tuple(arrivals),
        sent_at_s=sent_at,
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        completion_tokens=int(usage.get("completion_tokens", len(arrivals))),
        cached_tokens=_count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
        predicted_tokens=_count(headers.get(PREDICTED_TOKENS)),
        worker=headers.get(WORKER),
    )


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            data = line[5:].strip()
            if data == "[DONE]":
                return
            try:
                event = json.loads(data)
            except ValueError:
                raise CommandError("the stream holds an event that is no JSON") from None
            if isinstance(event, dict):
                yield event


def _message(event: Mapping[str, Any]) -> str:
    error = event["error"]
    return str(error.get("message", error) if isinstance(error, dict) else error)[:MESSAGE_MAX_CHARS]


def _text(event: Mapping[str, Any]) -> str:
    for choice in event.get("choices") or ():
        return str((choice.get("delta") or {}).get("content") or choice.get("text") or "")
    return ""


def _count(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


async def model_of(client: httpx.AsyncClient, wanted: str | None) -> str:
    """The model to ask for: the wanted one, else the first one served. Raises CommandError."""
    if wanted is not None:
        return wanted
    listed = await ask(client, "GET", "/v1/models")
    names = [str(entry["id"]) for entry in listed.get("data", ())]
    if not names:
        raise CommandError(f"{client.base_url} serves no model yet; try again once its workers are ready")
    return names[0]
