"""One client process' share of a run: calls go out when they are due, records come out as they end.

Keeps true (`check`): no call is sent before it is due; each call given out by the flow is pending, in flight or
recorded; a call's times count from its due time, however late the generator was. Bodies are made ahead while the loop
would idle, within a bound. Does not know other processes, nor what becomes of records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from time import monotonic

from trieway.loadgen.client.alarm import Alarm
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.exchange import Exchange
from trieway.loadgen.client.pool import Pool
from trieway.loadgen.flow import Flow, Ready
from trieway.loadgen.records import ABANDONED, INTERRUPTED, Record
from trieway.loadgen.vocabulary import Call, Hint, Workload

AHEAD_S = 1.0
AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""Requests made ahead of their due time."""
MESSAGES_MAX = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """`stop_s`: after so long nothing more is sent, and what runs may finish; None: all is sent."""

    users_max: int | None = None
    timeout_s: float = 600.0
    stop_s: float | None = None
    hints: bool = False


@dataclass(slots=True)
class Tally:
    """Counts so far, for progress."""

    sent: int = 0
    ok: int = 0
    failed: int = 0
    hints: int = 0
    hints_failed: int = 0


class Driver:
    """`record` is told of every call that ended, with its answer's text."""

    def __init__(
        self, workload: Workload, pace: Pace, dialect: Dialect, pool: Pool, record: Callable[[Record, str], None]
    ) -> None:
        self._flow = Flow(workload, users_max=pace.users_max)
        self._pace = pace
        self._dialect = dialect
        self._pool = pool
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._start = 0.0
        self._pending: list[tuple[float, int, Ready]] = []
        self._unmade: list[tuple[float, int, Ready]] = []
        self._made: dict[str, bytes] = {}
        self._made_bytes = 0
        self._number = 0
        self._alarm = Alarm(self._loop, self._turn)
        self._soon: asyncio.Handle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._stopped = False
        self._hints: dict[str, list[Hint]] = {}
        for hint in workload.hint_prefixes if pace.hints else ():
            if hint.session is not None:
                self._hints.setdefault(hint.session, []).append(hint)
        self.tally = Tally()
        self.messages: dict[str, str] = {}
        """The first thing that the server said for each kind of error."""

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return self._pool.in_flight

    @property
    def unsent(self) -> int:
        """Calls that were never sent, those abandoned apart."""
        return self._flow.unfinished - self.in_flight

    async def run(self, start_s: float) -> None:
        """Until every call has ended, `pace.stop_s` or `interrupt`. `start_s`: time zero, by time.monotonic()."""
        self._start = start_s
        if self._pace.stop_s is not None:
            self._loop.call_later(max(start_s + self._pace.stop_s - monotonic(), 0.0), self._close)
        self._take(self._flow.start(start_s))
        self._turn()
        try:
            await self._over
        finally:
            self._alarm.close()

    def interrupt(self) -> None:
        """Cut short: what is in flight is recorded as interrupted."""
        self._close()
        self._pool.interrupt()
        self._settle()

    def _close(self) -> None:
        self._stopped = True
        self._pending.clear()
        self._unmade.clear()
        self._settle()

    def _settle(self) -> None:
        nothing_left = self._stopped or not self._flow.unfinished
        if nothing_left and not self.in_flight and not self._over.done():
            self._alarm.cancel()
            self._over.set_result(None)

    # Pacing

    def _take(self, ready: list[Ready]) -> None:
        for one in ready if not self._stopped else ():
            self._number += 1
            entry = (one.due_s, self._number, one)
            heappush(self._pending, entry)
            heappush(self._unmade, entry)

    def _turn(self) -> None:
        """Send what is due, then wait for what is next, making requests meanwhile."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        while self._pending and self._pending[0][0] <= monotonic():
            self._send(heappop(self._pending)[2])
        if not self._pending:
            self._alarm.cancel()
            self._settle()
        elif self._make_one():
            self._soon = self._loop.call_soon(self._turn)
        else:
            self._alarm.set(self._pending[0][0])

    def _make_one(self) -> bool:
        """Make the request that is due next of those not made; False: nothing to do for now."""
        while self._unmade and self._made_bytes < AHEAD_BYTES_MAX:
            due, _, ready = self._unmade[0]
            if due > monotonic() + AHEAD_S:
                return False
            heappop(self._unmade)
            call = ready.call
            if due > monotonic():
                self._made[call.id] = request = self._dialect.request(call, self._flow.answers)
                self._made_bytes += len(request)
                return True
            # Sent already, or to be sent at once: it is made then.
        return False

    # Calls

    def _send(self, ready: Ready) -> None:
        call = ready.call
        for hint in self._hints.pop(call.session, ()):
            self._send_hint(hint)
        request = self._made.pop(call.id, None)
        if request is None:
            request = self._dialect.request(call, self._flow.answers)
        else:
            self._made_bytes -= len(request)

        def ended(exchange: Exchange) -> None:
            self._ended(ready, exchange)

        self.tally.sent += 1
        self._pool.send(Exchange(request, monotonic() + self._pace.timeout_s, ended))

    def _send_hint(self, hint: Hint) -> None:
        def ended(exchange: Exchange) -> None:
            self._pool.ended(exchange)
            # A hint's answer has no choices; anything with status 200 is a yes.
            self.tally.hints_failed += exchange.http != 200
            self._settle()

        self.tally.hints += 1
        self._pool.send(Exchange(self._dialect.hint(hint), monotonic() + self._pace.timeout_s, ended))

    def _ended(self, ready: Ready, exchange: Exchange) -> None:
        self._pool.ended(exchange)
        now, call = monotonic(), ready.call
        record = self._written(ready, exchange)
        if record.ok:
            self.tally.ok += 1
            text = exchange.text
            self._record(record, text)
            self._take(self._flow.answered(call.id, text, now))
        else:
            if record.status != INTERRUPTED:
                self.tally.failed += 1
            if len(self.messages) < MESSAGES_MAX and exchange.message:
                self.messages.setdefault(record.status, exchange.message)
            self._record(record, "")
            fallout = self._flow.failed(call.id, now)
            for lost in fallout.abandoned if not self._stopped else ():
                self._record(self._abandoned(lost, now), "")
            self._take(fallout.ready)
        self._turn()

    def _written(self, ready: Ready, exchange: Exchange) -> Record:
        start, call, usage = self._start, ready.call, exchange.usage
        assert exchange.status is not None, "it has ended"
        sent, first, last = (
            None if at is None else at - start for at in (exchange.sent_s, exchange.first_s, exchange.last_s)
        )
        cached = None if usage is None else usage.cached_tokens
        return Record(
            call=call.id,
            session=call.session,
            worker=exchange.worker,
            due_s=ready.due_s - start,
            sent_s=sent,
            first_s=first,
            last_s=last,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=exchange.cached_tokens if cached is None else cached,
            predicted_tokens=exchange.predicted_tokens,
            output_tokens=exchange.output_tokens,
            gaps=tuple(exchange.gaps),
            status=exchange.status,
            tenant=call.tenant,
            attempts=exchange.attempts,
        )

    def _abandoned(self, call: Call, now: float) -> Record:
        return Record(
            call=call.id, session=call.session, worker=None, due_s=now - self._start, sent_s=None, first_s=None,
            last_s=None, prompt_tokens=None, cached_tokens=None, predicted_tokens=None, output_tokens=0,
            status=ABANDONED, tenant=call.tenant,
        )  # fmt: skip

    def check(self) -> None:
        """Prove what the module promises."""
        self._flow.check()
        self._pool.check()
        assert self._made_bytes == sum(map(len, self._made.values())), "made bytes are miscounted"
        pending = {entry[2].call.id for entry in self._pending}
        assert self._made.keys() <= pending or self._stopped, "a request was made for a call that is not pending"
        waits = self._over.done() or self._alarm.armed or self._soon is not None
        assert waits or not self._pending, "nobody will send what is pending"
