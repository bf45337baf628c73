"""From a running generation to the bytes of its HTTP answer.

Keeps true: nothing is sent before the first token, so that a refusal is a plain error response and the receipt stands
in the headers; what one step gave a stream is one write; an answer's last byte comes after its cache events are on the
feed and its tokens are remembered; a stream that breaks ends with an error event; on any way out the generation is
ended. Does not know routes or bodies.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from trieway.serving import headers as names
from trieway.serving.errors import ApiError, Internal, sse_error
from trieway.serving.http import SSE_CONTENT_TYPE, SSE_DONE, Send, encode_headers, send_response, sse
from trieway.worker.feed import Feed
from trieway.worker.generation import Generation, Output
from trieway.worker.jobs import Answer, Job
from trieway.worker.prompts import Prompts
from trieway.worker.usage import Tally

log = logging.getLogger(__name__)

HeaderPairs = list[tuple[str, str]]


class Responder:
    """Answers jobs. `waiting` gives the scheduler's queue length for receipts."""

    def __init__(self, feed: Feed, prompts: Prompts, waiting: Callable[[], int]) -> None:
        self._feed = feed
        self._prompts = prompts
        self._waiting = waiting

    async def answer(self, job: Job, generation: Generation, tally: Tally, send: Send, headers: HeaderPairs) -> None:
        """Sends the whole answer, counted in `tally`; `headers` are added to its own.

        Raises:
            ApiError: before the first byte.
        """
        try:
            if job.stream:
                await self._stream(job, generation, tally, send, headers)
            else:
                await self._whole(job, generation, tally, send, headers)
        finally:
            generation.cancel()

    async def _whole(self, job: Job, generation: Generation, tally: Tally, send: Send, headers: HeaderPairs) -> None:
        answers = [Answer() for _ in generation.samples]
        async for outputs in self._outputs(job, generation, tally):
            for output in outputs:
                answers[output.sample].add(output)
        self._remember(job, answers)
        body = msgspec.json.encode(job.form.whole(job, answers, tally.usage()))
        await self._feed.settle()
        await send_response(send, 200, body, headers=[*headers, *self._receipt(tally)])

    async def _stream(self, job: Job, generation: Generation, tally: Tally, send: Send, headers: HeaderPairs) -> None:
        writer = _StreamWriter(job, send)
        try:
            async for outputs in self._outputs(job, generation, tally):
                writer.add(outputs)
                if not writer.started:
                    if not tally.began:
                        continue
                    await writer.start([*headers, *self._receipt(tally)])
                if not generation.ended:
                    await writer.flush()
            self._remember(job, writer.answers)
            await self._feed.settle()
            await writer.finish(tally)
        except ApiError as error:
            if not writer.started:
                raise
            tally.broken = True
            await writer.fail(error)
        except Exception:
            if not writer.started:
                raise
            log.exception("a stream failed")
            tally.broken = True
            await writer.fail(Internal("the worker failed while streaming this answer"))

    async def _outputs(self, job: Job, generation: Generation, tally: Tally) -> AsyncIterator[list[Output]]:
        async for outputs in generation.batches():
            tally.add(outputs)
            yield outputs

    def _remember(self, job: Job, answers: Sequence[Answer]) -> None:
        for sample, answer in enumerate(answers):
            self._prompts.remember(job.prompt_of(sample), answer.text, answer.path)

    def _receipt(self, tally: Tally) -> HeaderPairs:
        publisher = self._feed.publisher
        receipt = tally.receipt(epoch=publisher.epoch, number=publisher.number, waiting=self._waiting())
        return [(names.RECEIPT, receipt.encode()), (names.CACHED_TOKENS, str(tally.cached_tokens))]


class _StreamWriter:
    """Gathers a step's chunks and writes them at once."""

    def __init__(self, job: Job, send: Send) -> None:
        self._job = job
        self._send = send
        self._pending: list[bytes] = []
        self.answers = [Answer() for _ in range(len(job.prompts) * job.sampling.n)]
        self._opened = [False] * len(self.answers)
        self.started = False

    def add(self, outputs: Sequence[Output]) -> None:
        job = self._job
        for output in outputs:
            self.answers[output.sample].add(output)
            if not self._opened[output.sample]:
                self._opened[output.sample] = True
                self._pending += [_event(chunk) for chunk in job.form.opening(job, output.sample, output)]
            self._pending += [_event(chunk) for chunk in job.form.chunks(job, output)]

    async def start(self, headers: HeaderPairs) -> None:
        own = [
            ("content-type", SSE_CONTENT_TYPE),
            ("cache-control", "no-cache"),
            ("x-accel-buffering", "no"),
        ]
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": encode_headers(own + headers)})

    async def flush(self) -> None:
        if self._pending:
            data, self._pending = b"".join(self._pending), []
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, tally: Tally) -> None:
        if self._job.include_usage:
            self._pending.append(_event(self._job.form.closing(self._job, tally.usage())))
        await self._end(SSE_DONE)

    async def fail(self, error: ApiError) -> None:
        await self._end(sse_error(error))

    async def _end(self, last: bytes) -> None:
        data, self._pending = b"".join((*self._pending, last)), []
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


def _event(chunk: object) -> bytes:
    return sse(msgspec.json.encode(chunk))
