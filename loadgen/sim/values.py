"""What travels between the simulated processes.

Keeps true: plain values; a prompt is bytes, an answer is known in advance and told token by token. Does not know who
sends what when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from trieway.loadgen.records import Gaps
from trieway.meta_tree.chain import Chain
from trieway.worker.core.sequence import FirstToken


class End(StrEnum):
    """How a request ended at its router; `OK`, or an error with the HTTP status that a client would see."""

    OK = "ok"
    NO_WORKER = "no_worker"  # 503
    QUEUES_FULL = "queues_full"  # 429
    TOO_LONG = "too_long"  # 400
    UNKNOWN_MODEL = "unknown_model"  # 404
    WORKER_ERROR = "worker_error"  # 502
    BROKEN_STREAM = "broken_stream"
    """The stream broke after its first token: an error event."""
    TIMEOUT = "timeout"  # 504
    ROUTER_LOST = "router_lost"
    HUNG_UP = "hung_up"
    """The client went away by itself."""


@dataclass(slots=True, eq=False)
class Ask:
    """A client's request as router and worker see it. `answer`: the tokens that the model will say."""

    id: str
    chain: Chain
    prompt: bytes
    answer: Sequence[int]
    max_tokens: int
    priority: int = 0
    session: str | None = None
    stream: bool = True
    hint: bool = False
    _hashes: list[int] | None = field(default=None, repr=False)

    @property
    def hashes(self) -> list[int]:
        """Of the prompt's whole blocks; computed once, whoever asks."""
        if self._hashes is None:
            self._hashes = self.chain.hashes(self.prompt)
        return self._hashes


@dataclass(frozen=True, slots=True)
class First:
    """The first token with its receipt."""

    token: FirstToken
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Done:
    """The whole answer."""

    output_tokens: int
    gaps: Gaps
