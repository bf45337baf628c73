"""`trieway demo URL`: a long shared prefix asked about by two clients, then a chat; a table of what the cache saved.

It keeps true that the prefix is new to every cache (its seed is drawn for each run), so the first row is cold. It
works with any OpenAI-compatible server; columns that a server does not report show a dash.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from trieway.fleet.client import Streamed, ask, connect, model_of, stream
from trieway.fleet.console import Console, count, milliseconds, table
from trieway.fleet.errors import CommandError
from trieway.fleet.options import Access
from trieway.fleet.prose import CHARS_PER_TOKEN, prose

ANSWER_TOKENS = 16
SIZING_ROUNDS_MAX = 4
QUESTIONS = (
    "Who is named in these notes?",
    "Which season do the notes speak of?",
)
TURNS = (
    "Say one thing about the river.",
    "And one about the market.",
    "Which of the two is larger?",
    "Thank you. Say goodbye.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One row: a request and what came of it."""

    title: str
    answer: Streamed


async def demo(access: Access, model: str | None, prefix_tokens: int, seed: int | None, console: Console) -> str:
    """Run the conversation; returns the table and its reading. Raises CommandError."""
    seed = seed if seed is not None else secrets.randbits(32)
    async with connect(access.url, access.key_file) as first, connect(access.url, access.key_file) as second:
        name = await model_of(first, model)
        console.step(f"writing a prefix of about {prefix_tokens:,} tokens (seed {seed})")
        system = await _sized(first, name, prefix_tokens, seed)
        await _answer(first, name, [{"role": "user", "content": "Hello."}])  # one-off costs of a fresh process
        steps = []
        for client, title, question in zip((first, second), ("cold", "warm, another client"), QUESTIONS, strict=True):
            console.step(f"asking: {title}")
            messages = [_message("system", system), _message("user", question)]
            steps.append(Step(title=title, answer=await _answer(client, name, messages)))
        steps += await _chat(second, name, system, console)
    console.clear()
    return report(steps)


async def _chat(client: httpx.AsyncClient, model: str, system: str, console: Console) -> list[Step]:
    messages = [_message("system", system)]
    steps = []
    for number, question in enumerate(TURNS, 1):
        console.step(f"chat, turn {number} of {len(TURNS)}")
        messages.append(_message("user", question))
        answer = await _answer(client, model, messages)
        messages.append(_message("assistant", answer.text))
        steps.append(Step(title=f"chat, turn {number}", answer=answer))
    return steps


async def _answer(client: httpx.AsyncClient, model: str, messages: Sequence[dict[str, str]]) -> Streamed:
    body = {"model": model, "messages": list(messages), "max_tokens": ANSWER_TOKENS, "temperature": 0}
    return await stream(client, "/v1/chat/completions", body)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


async def _sized(client: httpx.AsyncClient, model: str, tokens: int, seed: int) -> str:
    """Text of at least `tokens` tokens, a few more; by guess where the server does not tokenise."""
    chars = int(tokens * CHARS_PER_TOKEN)
    for _ in range(SIZING_ROUNDS_MAX):
        text = prose(seed, chars)
        held = await _count_tokens(client, model, text)
        if held is None or tokens <= held <= tokens * 1.02 + 8:
            return text
        chars = int(chars * (tokens * 1.01 + 2) / max(1, held))
    return text


async def _count_tokens(client: httpx.AsyncClient, model: str, text: str) -> int | None:
    try:
        answer = await ask(client, "POST", "/tokenize", {"model": model, "prompt": text})
        return int(answer["count"] if "count" in answer else len(answer["tokens"]))
    except (CommandError, KeyError, TypeError, ValueError):
        return None


def report(steps: Sequence[Step]) -> str:
    """The table, and one line that says what it shows."""
    header = ("request", "prompt tokens", "cached", "predicted", "first token", "worker")
    rows = [
        (
            step.title,
            count(step.answer.prompt_tokens),
            count(step.answer.cached_tokens),
            count(step.answer.predicted_tokens),
            milliseconds(step.answer.first_s),
            step.answer.worker or "-",
        )
        for step in steps
    ]
    return f"{table(header, rows)}\n\n{_reading(steps)}"


def _reading(steps: Sequence[Step]) -> str:
    cold, warm = steps[0].answer, steps[1].answer
    ratio = cold.first_s / warm.first_s
    compared = f"{ratio:.1f} times sooner" if ratio >= 1 else f"{1 / ratio:.1f} times later"
    text = (
        f"Warm, the first token came {compared}: {milliseconds(cold.first_s)} cold, {milliseconds(warm.first_s)} warm."
    )
    if warm.cached_tokens is not None:
        text += f" {warm.cached_tokens:,} of {warm.prompt_tokens:,} prompt tokens came from the cache."
    workers = {step.answer.worker for step in steps[2:]} - {None}
    if workers:
        text += " The chat stayed on one worker." if len(workers) == 1 else f" The chat used {len(workers)} workers."
    return text
