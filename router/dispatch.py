"""The hot path as it is: ask what the request is about, choose, attempt, try elsewhere, give up with the right error.

Keeps true: at most `attempts_max` workers see a request, each once, and only while the client has seen nothing; a
refusal of the last worker reaches the client as that worker wrote it. Does not know HTTP servers (hot_path.py) nor how
an attempt goes (attempt.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from trieway.meta_tree.ids import Reject, WorkerId
from trieway.router.attempt import Attempt, Failed
from trieway.router.carrier import Carrier
from trieway.router.core import Choice, Query, Rejection, RouterCore
from trieway.router.hot_path import HotRequest, Responder
from trieway.router.links import Lease, Links, Patience
from trieway.router.metrics import RouterMetrics
from trieway.router.questions import Asker, Question, request_id
from trieway.router.reply import Reply, last_words
from trieway.serving.errors import ApiError, BadRequest, Busy, Internal, NotFound, Unavailable
from trieway.serving.logs import current_request_id, current_trace_id
from trieway.serving.router_trace import RequestTrace
from trieway.serving.router_trace import begin as begin_trace
from trieway.serving.tracing import Tracer

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Tally:
    """What the metrics want to know of one request."""

    worker: str = ""
    reason: str = ""
    attempts: int = 0


class Dispatcher:
    """Serves completions requests through `links`, as the core decides."""

    def __init__(
        self,
        *,
        core: RouterCore,
        asker: Asker,
        links: Links,
        upstream: Carrier,
        metrics: RouterMetrics,
        patience: Patience,
        attempts_max: int,
        requests_max: int,
        whole_max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer | None = None,
    ) -> None:
        self._core = core
        self.asker = asker
        self._links = links
        self._upstream = upstream
        self._metrics = metrics
        self._patience = patience
        self._attempts_max = attempts_max
        self._requests_max = requests_max
        self._whole_max_bytes = whole_max_bytes
        self._clock = clock
        self._tracer = tracer
        self.running = 0
        """Requests under way."""

    async def serve(self, request: HotRequest, out: Responder) -> None:
        """See `HotPath.serve`."""
        started = self._clock()
        tally = Tally()
        identity = request_id(request.headers)
        trace = begin_trace(self._tracer, request.headers, request.path, identity)
        current_request_id.set(identity)
        current_trace_id.set(trace.id)
        reply = Reply(out, trace.answer_headers())
        status = 499
        self.running += 1
        try:
            if self.running > self._requests_max:
                raise Busy("the router has all the requests it can carry; try again later")
            await self._answer(request, identity, reply, tally, trace)
            status = reply.status
        except ApiError as error:
            status = error.status
            await reply.error(error, identity, tally.attempts or None)
        except asyncio.CancelledError:
            if not reply.started:  # a client that is gone hears nothing; others learn that this router ends
                stopping = Unavailable("the router is stopping; try again", code="stopping", retry_after_s=1.0)
                await last_words(reply.error(stopping, identity))
            raise
        except Exception:
            log.exception("request failed in the router")
            status = 500
            if not reply.started:
                await reply.error(Internal("the router failed; its log says more"), identity)
        finally:
            self.running -= 1
            took = self._clock() - started
            self._metrics.request(code=status, worker=tally.worker, reason=tally.reason, seconds=took)
            trace.end(status)
            log.debug("%d by %s (%s) in %.3f s", status, tally.worker or "nobody", tally.reason or "refused", took)

    async def _answer(
        self, request: HotRequest, identity: str, reply: Reply, tally: Tally, trace: RequestTrace
    ) -> None:
        started = self._clock()
        question = await self.asker.ask(request, identity)
        until = time.monotonic() + self._patience.total_s
        failed: Failed | None = None
        tried: frozenset[WorkerId] = frozenset()
        for number in range(1, self._attempts_max + 1):
            found = self._decide(question, tried)
            if number == 1:
                self._metrics.decided(self._clock() - started)
            if isinstance(found, Reject):
                trace.rejected(found.reason, number)
                if failed is None or found.reason == Rejection.QUEUES_FULL:
                    raise rejection(found, question.model, self._links.fresh)
                break
            query, choice = found
            tally.worker, tally.reason, tally.attempts = choice.worker, choice.reason, number
            trace.chose(choice, question.model, number)
            failed = await self._attempt(question, query, choice, number, reply, until, trace)
            if failed is None:
                return
            self._metrics.failed_attempt(choice.worker, failed.reason)
            tried |= {choice.worker}
            if failed.final:
                break
        assert failed is not None
        await _give_up(failed, reply)

    def _decide(self, question: Question, tried: frozenset[WorkerId]) -> tuple[Query, Choice] | Reject:
        now = self._clock()
        return best_of(lambda query: self._core.choose(query, now), question.queries, tried)

    async def _attempt(
        self,
        question: Question,
        query: Query,
        choice: Choice,
        number: int,
        reply: Reply,
        until: float,
        trace: RequestTrace,
    ) -> Failed | None:
        attempt = Attempt(
            core=self._core,
            upstream=self._upstream,
            metrics=self._metrics,
            link=self._links.get(choice.worker),
            question=question,
            query=query,
            choice=choice,
            number=number,
            reply=reply,
            lease=Lease(self._patience, until),
            whole_max_bytes=self._whole_max_bytes,
            clock=self._clock,
            trace=trace,
        )
        return await attempt.run()


def best_of(
    ask: Callable[[Query], Choice | Reject], queries: Iterable[Query], tried: frozenset[WorkerId]
) -> tuple[Query, Choice] | Reject:
    """The cheapest choice over the groups that serve the model (one query each; mostly there is one)."""
    best: tuple[Query, Choice] | None = None
    reject = Reject(reason=Rejection.UNKNOWN_MODEL)
    for query in queries:
        asked = replace(query, exclude=tried) if tried else query
        found = ask(asked)
        if isinstance(found, Reject):
            reject = _milder(reject, found)
        elif best is None or _cheaper(found, best[1]):
            best = (asked, found)
    return reject if best is None else best


def _cheaper(one: Choice, other: Choice) -> bool:
    """Whether `one` is to be preferred. Costs within their own error are a tie, which the emptier cache wins."""
    mine, theirs = one.row, other.row
    tie = abs(mine.cost_ms - theirs.cost_ms) <= math.hypot(mine.error_ms, theirs.error_ms)
    if one.reason == "round_robin":
        return mine.last_booked < theirs.last_booked
    if tie:
        return (mine.inflow_tokens, mine.last_booked) < (theirs.inflow_tokens, theirs.last_booked)
    return mine.cost_ms < theirs.cost_ms


_SEVERITY = (Rejection.UNKNOWN_MODEL, Rejection.NO_WORKER, Rejection.TOO_LONG, Rejection.QUEUES_FULL)


def _milder(one: Reject, other: Reject) -> Reject:
    """The rejection that says most: a full queue of one group matters more than another group without workers."""
    return max(one, other, key=lambda reject: _SEVERITY.index(Rejection(reject.reason)))


def rejection(reject: Reject, model: str, fresh: int = 0) -> ApiError:
    """The error that a client gets for a decision against it. `fresh`: workers that have not said what they serve."""
    match Rejection(reject.reason):
        case Rejection.UNKNOWN_MODEL if not fresh:
            return NotFound.model(model)
        case Rejection.QUEUES_FULL:
            return Busy(
                "the queues of all workers are full; try again later", retry_after_s=reject.retry_after_s or 1.0
            )
        case Rejection.TOO_LONG:
            return BadRequest(
                "the prompt is longer than the context of every worker of this model", code="context_length_exceeded"
            )
        case _:
            return Unavailable("no worker can take this request now", retry_after_s=reject.retry_after_s or 1.0)


async def _give_up(failed: Failed, reply: Reply) -> None:
    held = failed.held
    if held is None:
        raise failed.error
    await reply.start(held.status, held.headers)
    await reply.write(held.body, last=True)
