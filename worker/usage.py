"""What a request cost: OpenAI's `usage` and the fleet's receipt.

Keeps true: a prompt counts once however many samples continue it, with the cache hit of its first sample; cached tokens
are what the engine really took from its cache. Does not know text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trieway.serving.headers import Receipt
from trieway.worker.generation import Begun, Output


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """How one sample went: when its first token came and its latest one, in seconds of the engine's clock."""

    sample: int
    begun: Begun
    first_at: float
    last_at: float
    generated_tokens: int


class Tally:
    """Sums over the outputs of one request with `n` samples for each of its prompts (sample = prompt * n + j)."""

    def __init__(self, prompt_tokens: Sequence[int], n: int) -> None:
        self._prompt_tokens = tuple(prompt_tokens)
        self._n = n
        self._begun: dict[int, Begun] = {}
        self._generated: dict[int, int] = {}
        self._first_at: dict[int, float] = {}
        self._last_at: dict[int, float] = {}
        self.broken = False
        """Whether the answer was cut after its start."""

    def add(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if output.begun is not None:
                self._begun[output.sample] = output.begun
                self._first_at[output.sample] = output.at
            self._last_at[output.sample] = output.at
            self._generated[output.sample] = max(output.generated, self._generated.get(output.sample, 0))

    @property
    def began(self) -> bool:
        """Whether any sample has its first token."""
        return bool(self._begun)

    @property
    def generated_tokens(self) -> int:
        return sum(self._generated.values())

    @property
    def cached_tokens(self) -> int:
        return sum(begun.cached_tokens for begun in self._firsts())

    def usage(self) -> dict[str, Any]:
        """The `usage` object."""
        prompt, generated = sum(self._prompt_tokens), self.generated_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def receipt(self, *, epoch: int, number: int, waiting: int) -> Receipt:
        """Over the prompts that have begun by now: all of them once the request is done."""
        firsts = self._firsts()
        return Receipt(
            prompt=sum(begun.prompt_tokens for begun in firsts),
            cached=sum(begun.cached_tokens for begun in firsts),
            epoch=epoch,
            number=number,
            queue_ms=max((begun.queue_ms for begun in firsts), default=0.0),
            prefill_ms=sum(begun.prefill_ms for begun in firsts),
            waiting=waiting,
        )

    def courses(self) -> list[Course]:
        """Of every sample that has begun, in the order in which they did."""
        return [
            Course(
                sample=sample,
                begun=begun,
                first_at=self._first_at[sample],
                last_at=self._last_at[sample],
                generated_tokens=self._generated[sample],
            )
            for sample, begun in self._begun.items()
        ]

    def _firsts(self) -> list[Begun]:
        """For each prompt that has begun, the sample that began first."""
        first_of: dict[int, Begun] = {}
        for sample, begun in self._begun.items():
            first_of.setdefault(sample // self._n, begun)
        return list(first_of.values())
