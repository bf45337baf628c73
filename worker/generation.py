"""One request's generation as the event loop sees it: all its samples, their outputs in order, and how to end it.

Keeps true: what one engine step produced for a request is taken by its reader in one piece; every generation ends
exactly once (all samples finished, failed, or cancelled), and a cancel reaches the engine at most once. Lives on the
event loop's thread alone. Does not know HTTP, or what computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from trieway.serving.errors import ApiError


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredToken:
    """One token with its text position and log probabilities (natural, of the raw model distribution).

    `offset` counts characters from the start of the choice's own text. `logprob` is None for a first prompt token,
    which nothing precedes. `top` holds as many (token, logprob) pairs as were asked for, best first.
    """

    token: int
    offset: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A sample's prompt is computed: the receipt's numbers."""

    prompt_tokens: int
    cached_tokens: int
    queue_ms: float
    prefill_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What one step gave one sample. `finish` is stop or length with the last output, else None.

    `tokens` is empty unless log probabilities were asked for. `prompt` comes once, with `begun`, where the prompt's own
    were asked for. `generated` counts sampled tokens so far, an end-of-text token included. `path` comes with `finish`:
    all sampled tokens. `at` is when the step ended, in seconds of the engine's clock.
    """

    sample: int
    text: str = ""
    tokens: tuple[ScoredToken, ...] = ()
    begun: Begun | None = None
    prompt: tuple[ScoredToken, ...] | None = None
    finish: str | None = None
    generated: int = 0
    path: tuple[int, ...] = ()
    at: float = 0.0


class Generation:
    """The reader's end. `samples` are the engine's ids, in the order of `Output.sample`."""

    def __init__(self, samples: Sequence[str], cancel: Callable[[Generation], None]) -> None:
        assert samples
        self.samples = tuple(samples)
        self._cancel = cancel
        self._open = set(range(len(samples)))
        self._batch: list[Output] = []
        self._error: ApiError | None = None
        self._wake = asyncio.Event()
        self.cancelled = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return not self._open

    def push(self, outputs: Sequence[Output]) -> None:
        """Adds a step's outputs; those after the end (a cancel that crossed them) are dropped."""
        if self.ended:
            return
        for output in outputs:
            self._batch.append(output)
            if output.finish is not None:
                self._open.discard(output.sample)
        self._wake.set()

    def fail(self, error: ApiError) -> None:
        """Ends it: the reader gets what came before, then the error."""
        if not self.ended:
            self._error = error
            self._open.clear()
            self._wake.set()

    def cancel(self) -> None:
        """Ends it now; the engine frees all that it holds. Does nothing once it has ended."""
        if not self.ended:
            self.cancelled = True
            self._open.clear()
            self._batch.clear()
            self._wake.set()
            self._cancel(self)

    async def batches(self) -> AsyncIterator[list[Output]]:
        """Everything that has come since the last look, until the end.

        Raises:
            ApiError: the engine refused or failed the request.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._batch = self._batch, []
            if batch:
                yield batch
            if self._error is not None and not self._batch:
                raise self._error
            if self.ended and not self._batch:
                return
