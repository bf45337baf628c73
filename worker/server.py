"""The worker's HTTP app: the two completion routes as raw ASGI, everything else as small handlers (admin.py).

Keeps true: a client that goes away ends its request at once, also while nothing has been sent; every error has
OpenAI's shape; each answer carries its request's id. Logs hold ids, counts and times, never text. Does not know the
engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.routing import Route

from trieway.serving import headers as names
from trieway.serving.errors import ApiError, Internal
from trieway.serving.http import (
    BodyLimit,
    ClientGone,
    Message,
    Receive,
    Scope,
    Send,
    header_map,
    install_error_handlers,
    read_body,
    send_error,
)
from trieway.serving.logs import current_request_id, current_trace_id
from trieway.serving.tracing import Tracer
from trieway.worker.disconnect import Sent, until_gone
from trieway.worker.feed_route import FeedRoute
from trieway.worker.intake import Caller
from trieway.worker.jobs import Job
from trieway.worker.service import Service
from trieway.worker.traces import RequestTrace
from trieway.worker.traces import begin as begin_trace
from trieway.worker.usage import Tally

log = logging.getLogger(__name__)

Kind = Literal["chat", "completion"]


class CompletionsRoute:
    """`POST /v1/chat/completions` or `POST /v1/completions`."""

    def __init__(self, service: Service, kind: Kind, tracer: Tracer | None, *, body_max_bytes: int) -> None:
        self._service = service
        self._kind = kind
        self._tracer = tracer
        self._body_max_bytes = body_max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = header_map(scope)
        sent = Sent(send)
        began = time.monotonic()
        trace = begin_trace(self._tracer, scope["headers"], scope["path"], current_request_id.get())
        current_trace_id.set(trace.id)
        try:
            caller = self._service.intake.caller(headers)
            body = await read_body(receive, headers, self._body_max_bytes)
            job, tally = await until_gone(self._serve(body, caller, sent, trace), receive)
            self._log(job, tally, time.monotonic() - began)
        except ClientGone:
            trace.gone()
        except ApiError as error:
            await send_error(sent, error, trace.answer_headers())
        except Exception:
            log.exception("a request failed")
            if not sent.started:
                await send_error(sent, Internal("the worker failed on this request"), trace.answer_headers())
        finally:
            trace.end(sent.status)
        self._service.metrics.count_answer(self._kind, sent.status)

    async def _serve(self, body: bytes, caller: Caller, send: Sent, trace: RequestTrace) -> tuple[Job, Tally]:
        intake = self._service.intake
        job = await (intake.chat(body, caller) if self._kind == "chat" else intake.completion(body, caller))
        tally = Tally([len(prompt.tokens) for prompt in job.prompts], job.sampling.n)
        generation = self._service.begin(job)
        trace.queued(job, tally)
        await self._service.responder.answer(job, generation, tally, send, trace.answer_headers())
        return job, tally

    def _log(self, job: Job, tally: Tally, seconds: float) -> None:
        usage = tally.usage()
        log.info(
            "%s stream=%s prompt=%d cached=%d generated=%d ms=%.1f",
            job.id,
            job.stream,
            usage["prompt_tokens"],
            tally.cached_tokens,
            usage["completion_tokens"],
            1000 * seconds,
        )


class RequestIds:
    """ASGI middleware: takes a client's request id or makes one, and puts it on the answer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = names.request_id(header_map(scope).get(names.REQUEST_ID))
        current_request_id.set(request_id)
        header = (names.REQUEST_ID.encode(), request_id.encode("latin-1"))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, send_with_id)


def build_app(
    service: Service,
    others: Sequence[Route],
    feed_token: str,
    *,
    body_max_bytes: int,
    tracer: Tracer | None = None,
) -> Any:
    """The ASGI app of one worker. `others`: all routes but completions and feed. `tracer`: None records nothing."""

    def completions(kind: Kind) -> CompletionsRoute:
        return CompletionsRoute(service, kind, tracer, body_max_bytes=body_max_bytes)

    routes = [
        Route("/v1/chat/completions", completions("chat"), methods=["POST"]),
        Route("/v1/completions", completions("completion"), methods=["POST"]),
        Route("/cache/feed", FeedRoute(service, feed_token), methods=["GET"]),
        *others,
    ]
    app = Starlette(routes=routes)
    install_error_handlers(app)
    return RequestIds(BodyLimit(app, body_max_bytes))
