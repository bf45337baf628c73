"""The queue between a server and its trace collector, emptied by a thread.

Keeps true: `put` never waits, whatever the collector does; at most `spans_max` spans are held, later ones are lost and
counted; a collector that fails is complained of once a minute; `close` returns within its bound. One thread puts. Does
not know OpenTelemetry or how a batch is sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from trieway.serving.tracing import Finished

log = logging.getLogger(__name__)

SPANS_MAX = 16384
BATCH_SPANS = 512
INTERVAL_S = 1.0
COMPLAINT_S = 60.0
FLUSH_S = 5.0
FLUSH_FAILING_S = 0.5
"""A collector that failed last time is not waited for."""


class Exporter(Protocol):
    """What sends batches, on the outbox's thread."""

    def export(self, traces: Sequence[Finished]) -> str:
        """Sends them, with its own bound on time; empty once they are taken, else why not, fit for a log."""
        ...

    def stop(self) -> None:
        """Ends an `export` that is under way as soon as it can be; called from another thread."""
        ...


class Outbox:
    """Starts its thread at once."""

    def __init__(
        self,
        exporter: Exporter,
        *,
        spans_max: int = SPANS_MAX,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exporter = exporter
        self._spans_max = spans_max
        self._interval_s = interval_s
        self._clock = clock
        self._traces: deque[Finished] = deque()
        # Each counter is written by one thread alone, so none of them needs a lock.
        self._put_spans = 0
        self._taken_spans = 0
        self._refused_spans = 0
        self._failed_spans = 0
        self._told_spans = 0
        self._complained_at: float | None = None
        self._failure = ""
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="trieway-traces", daemon=True)
        self._thread.start()

    @property
    def lost_spans(self) -> int:
        """Spans that did not reach the collector, since the start."""
        return self._refused_spans + self._failed_spans

    def put(self, trace: Finished) -> None:
        """Takes a trace, or drops it where there is no room."""
        count = len(trace.spans)
        held = self._put_spans - self._taken_spans
        if held + count > self._spans_max or self._closing:
            self._refused_spans += count
            return
        self._put_spans += count
        self._traces.append(trace)
        if held + count >= BATCH_SPANS and not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Sends what is left, for at most `FLUSH_S` and `FLUSH_FAILING_S` (where the collector fails, twice the
        latter); what is then left is lost."""
        self._closing = True
        self._wake.set()
        self._thread.join(FLUSH_FAILING_S if self._failure else FLUSH_S)
        self._exporter.stop()
        self._thread.join(FLUSH_FAILING_S)
        if self._thread.is_alive():
            log.warning("%d spans of traces were lost: the collector is too slow", self._put_spans - self._taken_spans)

    # On the outbox's thread

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._interval_s)
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._traces:
            self._send(self._batch())
            if self._failure and self._closing:
                self._give_up()
            self._complain()
        self._complain()

    def _give_up(self) -> None:
        """What a failing collector has not had by the end is lost."""
        while self._traces:
            count = len(self._traces.popleft().spans)
            self._failed_spans += count
            self._taken_spans += count

    def _batch(self) -> list[Finished]:
        batch: list[Finished] = []
        count = 0
        while self._traces and count < BATCH_SPANS:
            batch.append(self._traces.popleft())
            count += len(batch[-1].spans)
        return batch

    def _send(self, batch: list[Finished]) -> None:
        count = sum(len(trace.spans) for trace in batch)
        try:
            self._failure = self._exporter.export(batch)
        except Exception as error:
            self._failure = f"{type(error).__name__} in the exporter"
        if self._failure:
            self._failed_spans += count
        # Only now: what is being sent still takes room.
        self._taken_spans += count

    def _complain(self) -> None:
        lost = self.lost_spans - self._told_spans
        now = self._clock()
        if not lost or (self._complained_at is not None and now - self._complained_at < COMPLAINT_S):
            return
        self._told_spans += lost
        self._complained_at = now
        log.warning("%d spans of traces were lost: %s", lost, self._failure or "more than the collector took")
