"""One request on its way through the worker's shell: what was asked, and the forms in which it is answered.

Keeps true: choices are numbered prompt by prompt (prompt i, sample j -> i * n + j). Does not know HTTP or the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trieway.serving.schema import Sampling
from trieway.worker.generation import Output, ScoredToken
from trieway.worker.prompts import Prompt

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """`id`, `created` (whole seconds since 1970) and `model` are as the answer shows them."""

    id: str
    created: int
    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    max_tokens: tuple[int, ...]
    """For each prompt, the most tokens to generate."""
    form: Form
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    priority: int = 0

    @property
    def prompt_logprobs(self) -> int | None:
        """Alternatives for each prompt token, None where the prompt's own are not asked for."""
        return self.sampling.logprobs if self.echo else None

    def prompt_of(self, sample: int) -> Prompt:
        return self.prompts[sample // self.sampling.n]

    def head(self, kind: str) -> Json:
        """The members that every object of the answer begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(kw_only=True, slots=True)
class Answer:
    """All that one sample gave."""

    texts: list[str] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    prompt: tuple[ScoredToken, ...] = ()
    finish: str | None = None
    path: tuple[int, ...] = ()

    def add(self, output: Output) -> None:
        self.texts.append(output.text)
        self.tokens.extend(output.tokens)
        self.prompt = output.prompt or self.prompt
        self.finish = output.finish or self.finish
        self.path = output.path or self.path

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Form(Protocol):
    """How an API shows answers."""

    def whole(self, job: Job, answers: Sequence[Answer], usage: Json) -> Json:
        """The body of an answer in one piece; answers in order of their samples."""
        ...

    def opening(self, job: Job, sample: int, output: Output) -> Iterable[Json]:
        """Chunks that precede a sample's first text; `output` is its first one."""
        ...

    def chunks(self, job: Job, output: Output) -> Iterable[Json]:
        """Chunks that show one output."""
        ...

    def closing(self, job: Job, usage: Json) -> Json:
        """The last chunk, where usage was asked for."""
        ...
