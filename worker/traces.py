"""What a worker records of a request: its wait in the queue, its prefill, its decoding.

Keeps true: the times are the engine's own (the receipt's, and when steps ended); spans of one sample follow each other
without a gap; of many samples the first `SAMPLES_MAX` are shown. No attribute holds what a client wrote, but for its
request id. Does not know HTTP or the engine.
"""

from __future__ import annotations

from collections.abc import Iterable

from trieway.serving import headers as names
from trieway.serving.trace_context import TraceContext
from trieway.serving.tracing import Trace, Tracer
from trieway.worker.jobs import Job
from trieway.worker.usage import Course, Tally

SAMPLES_MAX = 8
_CLIENT_GONE = 499
"""As the router counts it: the client went before its answer was whole."""


class RequestTrace:
    """A request that is not recorded."""

    __slots__ = ()

    @property
    def id(self) -> str:
        """The trace id for logs; empty where nothing is recorded."""
        return ""

    def answer_headers(self) -> list[tuple[str, str]]:
        """What the answer says of the trace."""
        return []

    def queued(self, job: Job, tally: Tally) -> None:
        """The engine has it; `tally` counts its outputs from now on."""

    def gone(self) -> None:
        """The client has hung up."""

    def end(self, status: int) -> None:
        """The request is over, with `status` as its answer had it. Call it once."""


UNTRACED = RequestTrace()


def begin(
    tracer: Tracer | None, headers: Iterable[tuple[bytes, bytes]], route: str, request_id: str | None
) -> RequestTrace:
    """The trace of a request. `route` is a path of ours, never the client's."""
    if tracer is None:
        return UNTRACED
    found = tracer.begin(headers, f"POST {route}")
    return UNTRACED if isinstance(found, TraceContext) else Recorded(found, route, request_id or "")


class Recorded(RequestTrace):
    """A request that is recorded."""

    __slots__ = ("_gone", "_job", "_queued_at", "_tally", "_trace")

    def __init__(self, trace: Trace, route: str, request_id: str) -> None:
        self._trace = trace
        self._job: Job | None = None
        self._tally: Tally | None = None
        self._queued_at = 0.0
        self._gone = False
        trace.root.attributes = {
            "http.request.method": "POST",
            "http.route": route,
            "trieway.request_id": request_id,
        }

    @property
    def id(self) -> str:
        return self._trace.id

    def answer_headers(self) -> list[tuple[str, str]]:
        return [(names.TRACE_ID, self._trace.id)]

    def queued(self, job: Job, tally: Tally) -> None:
        self._job, self._tally, self._queued_at = job, tally, self._trace.now()

    def gone(self) -> None:
        self._gone = True

    def end(self, status: int) -> None:
        root = self._trace.root
        root.attributes["http.response.status_code"] = _CLIENT_GONE if self._gone else status
        if status >= 500:
            root.error = str(status)
        if self._job is not None and self._tally is not None:
            self._generated(self._job, self._tally)
        self._trace.finish()

    def _generated(self, job: Job, tally: Tally) -> None:
        root, usage, courses = self._trace.root, tally.usage(), tally.courses()
        root.attributes |= {
            "gen_ai.request.model": job.model,
            "trieway.stream": job.stream,
            "trieway.samples": len(job.prompts) * job.sampling.n,
            "trieway.prompt_tokens": usage["prompt_tokens"],
            "trieway.cached_tokens": tally.cached_tokens,
            "trieway.generated_tokens": tally.generated_tokens,
        }
        if tally.broken:
            root.error = "broken"
        for course in courses[:SAMPLES_MAX]:
            self._course(course)
        if not courses:
            self._trace.span("queue", self._queued_at).attributes["trieway.sample"] = 0

    def _course(self, course: Course) -> None:
        begun = course.begun
        admitted_at = course.first_at - begun.prefill_ms / 1e3
        queue = self._trace.span("queue", admitted_at - begun.queue_ms / 1e3)
        queue.attributes = {"trieway.sample": course.sample}
        queue.ended = admitted_at
        prefill = self._trace.span("prefill", admitted_at)
        prefill.attributes = {
            "trieway.sample": course.sample,
            "trieway.prompt_tokens": begun.prompt_tokens,
            "trieway.cached_tokens": begun.cached_tokens,
        }
        prefill.ended = course.first_at
        decode = self._trace.span("decode", course.first_at)
        decode.attributes = {"trieway.sample": course.sample, "trieway.generated_tokens": course.generated_tokens}
        decode.ended = course.last_at
