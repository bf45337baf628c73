"""`trieway calibrate URL`: how fast one worker computes prompts and answers, measured from outside.

It keeps true that every prompt is new to the cache, that a rate is fitted over several lengths (so the fixed cost of a
request is apart from it), and that a decode step is timed only while all streams of its batch run. It assumes that
nobody else uses the worker meanwhile; a router's URL gives one worker's figures only if it has one worker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import httpx

from trieway.fleet.client import Streamed, ask, connect, model_of, stream
from trieway.fleet.console import Console
from trieway.fleet.errors import CommandError
from trieway.fleet.fitting import Decode, DecodePoint, Prefill, PrefillPoint, fit_decode, fit_prefill
from trieway.fleet.options import Access
from trieway.fleet.prose import CHARS_PER_TOKEN, prose

REPORT_VERSION = 1
PREFILL_TOKENS = (64, 256, 512, 1024)
DECODE_SHAPES = ((1, 32), (2, 32), (4, 32), (8, 32), (1, 1024), (8, 512))
"""Batches as (streams, prompt tokens of each)."""
DECODE_TOKENS = 33
REPEATS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The whole report."""

    version: int
    model: str
    repeats: int
    prefill: Prefill
    decode: Decode

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`, rounded to what a measurement can tell."""
        return {key: _rounded(value) for key, value in asdict(self).items()}


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value


async def calibrate(access: Access, model: str | None, repeats: int, console: Console) -> Calibration:
    """Measure the server at `access`. Raises CommandError."""
    async with connect(access.url, access.key_file) as client:
        name = await model_of(client, model)
        await _prompt(client, name, 64)  # one-off costs of a fresh process
        prompts = [await _prefill(client, name, size, repeats, console) for size in PREFILL_TOKENS]
        prefill = [point for point in prompts if point is not None]
        if len({point.tokens for point in prefill}) < 2:
            raise CommandError(
                f"{access.url} took prompts of fewer than two lengths; its context is too short to measure"
            )
        batches = [await _decode(client, name, shape, repeats, console) for shape in DECODE_SHAPES]
        decode = [point for point in batches if point is not None]
        if not decode:
            raise CommandError(f"{access.url} streamed no batch of answers to its end; try again when it is idle")
    console.clear()
    return Calibration(
        version=REPORT_VERSION,
        model=name,
        repeats=repeats,
        prefill=fit_prefill(prefill),
        decode=fit_decode(decode),
    )


def _fresh(tokens: int) -> str:
    return prose(secrets.randbits(48), int(tokens * CHARS_PER_TOKEN))


async def _prompt(client: httpx.AsyncClient, model: str, tokens: int) -> tuple[int, float]:
    """One new prompt and one token of answer: (prompt tokens computed, seconds)."""
    body = {"model": model, "prompt": _fresh(tokens), "max_tokens": 1, "temperature": 0}
    began = time.perf_counter()
    answer = await ask(client, "POST", "/v1/completions", body)
    took_s = time.perf_counter() - began
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return int(usage["prompt_tokens"]) - int(cached), took_s


async def _prefill(
    client: httpx.AsyncClient, model: str, tokens: int, repeats: int, console: Console
) -> PrefillPoint | None:
    console.step(f"prefill of about {tokens:,} tokens, {repeats} times")
    try:
        taken = [await _prompt(client, model, tokens) for _ in range(repeats)]
    except CommandError as error:
        if "answered 400" in str(error):
            return None  # longer than the model's context
        raise
    computed = round(median(count for count, _ in taken))
    return PrefillPoint(tokens=computed, ms=median(took_s for _, took_s in taken) * 1e3)


async def _decode(
    client: httpx.AsyncClient, model: str, shape: tuple[int, int], repeats: int, console: Console
) -> DecodePoint | None:
    batch, tokens = shape
    console.step(f"decode of {batch} at a time after {tokens:,} tokens, {repeats} times")
    taken = []
    for _ in range(repeats):
        streams = [_long_answer(client, model, _fresh(tokens)) for _ in range(batch)]
        try:
            answers = await asyncio.gather(*streams)
        except CommandError as error:
            if "answered 400" in str(error):
                return None
            raise
        if (step_s := step_seconds(answers)) is not None:
            taken.append((step_s, sum(answer.prompt_tokens for answer in answers) / batch + DECODE_TOKENS / 2))
    if not taken:
        return None
    context = round(median(context for _, context in taken))
    return DecodePoint(batch=batch, context_tokens=context, step_ms=median(step_s for step_s, _ in taken) * 1e3)


async def _long_answer(client: httpx.AsyncClient, model: str, prompt: str) -> Streamed:
    body = {"model": model, "prompt": prompt, "max_tokens": DECODE_TOKENS, "temperature": 0, "ignore_eos": True}
    return await stream(client, "/v1/completions", body)


def step_seconds(answers: Sequence[Streamed]) -> float | None:
    """Mean time of a decode step while all streams ran: tokens a stream got between the last start and the first end.
    None where they did not run together."""
    starts = max(answer.sent_at_s + answer.arrivals_s[0] for answer in answers)
    ends = min(answer.sent_at_s + answer.arrivals_s[-1] for answer in answers)
    steps = []
    for answer in answers:
        times = [answer.sent_at_s + arrival for arrival in answer.arrivals_s]
        inside = [moment for moment in times if starts <= moment <= ends]
        if len(inside) < 2 or answer.completion_tokens < 2:
            return None
        tokens_each = (answer.completion_tokens - 1) / (len(times) - 1)  # a piece may hold more than one token
        steps.append((inside[-1] - inside[0]) / ((len(inside) - 1) * tokens_each))
    return median(steps)
