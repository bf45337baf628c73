"""Chat completions: the shape of their answers.

Keeps true: the shapes are OpenAI's, chunk by chunk (role, text, finish). Does not know sampling or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trieway.worker.generation import Output
from trieway.worker.jobs import Answer, Job, Json
from trieway.worker.logprobs import TokenNames, chat_logprobs


class ChatForm:
    """`names` shows single tokens in `logprobs`."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names

    def whole(self, job: Job, answers: Sequence[Answer], usage: Json) -> Json:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": None if job.sampling.logprobs is None else chat_logprobs(answer.tokens, self._names),
                "finish_reason": answer.finish,
            }
            for index, answer in enumerate(answers)
        ]
        return {**job.head("chat.completion"), "choices": choices, "usage": usage}

    def opening(self, job: Job, sample: int, output: Output) -> Iterator[Json]:
        yield self._chunk(job, sample, {"role": "assistant", "content": "", "refusal": None})

    def chunks(self, job: Job, output: Output) -> Iterator[Json]:
        if output.text or output.tokens:
            logprobs = chat_logprobs(output.tokens, self._names) if output.tokens else None
            yield self._chunk(job, output.sample, {"content": output.text}, logprobs=logprobs)
        if output.finish is not None:
            yield self._chunk(job, output.sample, {}, finish=output.finish)

    def closing(self, job: Job, usage: Json) -> Json:
        return {**job.head("chat.completion.chunk"), "choices": [], "usage": usage}

    def _chunk(
        self, job: Job, sample: int, delta: Json, *, logprobs: Json | None = None, finish: str | None = None
    ) -> Json:
        choice = {"index": sample, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**job.head("chat.completion.chunk"), "choices": [choice]}
        if job.include_usage:
            chunk["usage"] = None
        return chunk
