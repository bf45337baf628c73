"""Text completions: the shape of their answers.

Keeps true: with `echo` a choice's text begins with its prompt, and with logprobs the prompt's tokens come first there
too; `text_offset` counts characters of the choice's own text. Does not know sampling or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trieway.worker.generation import Output, ScoredToken
from trieway.worker.jobs import Answer, Job, Json
from trieway.worker.logprobs import TokenNames, completion_logprobs


class CompletionForm:
    """`names` shows single tokens in `logprobs`."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names

    def whole(self, job: Job, answers: Sequence[Answer], usage: Json) -> Json:
        choices = [
            {
                "index": index,
                "text": (job.prompt_of(index).shown if job.echo else "") + answer.text,
                "logprobs": self._logprobs(job, (*answer.prompt, *answer.tokens)),
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(answers)
        ]
        return {**job.head("text_completion"), "choices": choices, "usage": usage}

    def opening(self, job: Job, sample: int, output: Output) -> Iterator[Json]:
        if job.echo:
            yield self._chunk(job, sample, job.prompt_of(sample).shown, tokens=output.prompt or ())

    def chunks(self, job: Job, output: Output) -> Iterator[Json]:
        if output.text or output.tokens:
            yield self._chunk(job, output.sample, output.text, tokens=output.tokens)
        if output.finish is not None:
            yield self._chunk(job, output.sample, "", finish=output.finish)

    def closing(self, job: Job, usage: Json) -> Json:
        return {**job.head("text_completion"), "choices": [], "usage": usage}

    def _chunk(
        self, job: Job, sample: int, text: str, *, tokens: Sequence[ScoredToken] = (), finish: str | None = None
    ) -> Json:
        logprobs = self._logprobs(job, tokens) if tokens else None
        choice = {"index": sample, "text": text, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**job.head("text_completion"), "choices": [choice]}
        if job.include_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, job: Job, tokens: Sequence[ScoredToken]) -> Json | None:
        return None if job.sampling.logprobs is None else completion_logprobs(tokens, self._names)
