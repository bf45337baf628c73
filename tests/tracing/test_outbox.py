"""The queue to the collector: never waits, holds so much and no more, complains once a minute, ends in time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.worker.harness import wait_until
from trieway.serving import outbox as outboxes
from trieway.serving.outbox import BATCH_SPANS, COMPLAINT_S, Outbox
from trieway.serving.tracing import Finished, Kind, Span


def trace(number: int, spans: int = 3) -> Finished:
    made = [
        Span(name="s", kind=Kind.INTERNAL, span_id=index + 1, parent_id=0, began=0.0, ended=1.0)
        for index in range(spans)
    ]
    return Finished(trace_id=number + 1, state=b"", remote_parent_id=0, base_ns=0, spans=tuple(made))


class Fake:
    """Takes what comes while its gate is open; `failure` is what it answers then."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failure = ""
        self.fault: Exception | None = None
        self.batches: list[list[int]] = []
        self.stopped = 0

    def export(self, traces: Sequence[Finished]) -> str:
        self.entered.set()
        assert self.gate.wait(30)
        if self.fault is not None:
            raise self.fault
        self.batches.append([one.trace_id for one in traces])
        return self.failure

    def stop(self) -> None:
        self.stopped += 1
        self.gate.set()

    @property
    def ids(self) -> list[int]:
        return [one for batch in self.batches for one in batch]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., Outbox]


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def made(fake: Fake) -> Iterator[Make]:
    """Makes outboxes and closes them."""
    boxes: list[Outbox] = []

    def make(**settings: object) -> Outbox:
        boxes.append(Outbox(fake, **{"interval_s": 0.01, **settings}))  # type: ignore[arg-type]
        return boxes[-1]

    yield make
    fake.gate.set()
    for box in boxes:
        box.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "trieway-traces"]


def test_everything_arrives_in_order(fake: Fake, made: Make) -> None:
    box = made()
    for number in range(1000):
        box.put(trace(number))
    wait_until(lambda: len(fake.ids) == 1000)
    assert fake.ids == list(range(1, 1001))
    assert box.lost_spans == 0


def test_a_full_batch_does_not_wait_for_the_interval(fake: Fake, made: Make) -> None:
    box = made(interval_s=3600.0)
    box.put(trace(0, BATCH_SPANS // 2))
    assert not fake.entered.wait(0.05)
    box.put(trace(1, BATCH_SPANS // 2))
    wait_until(lambda: fake.ids == [1, 2])


def test_a_batch_is_bounded(fake: Fake, made: Make) -> None:
    box = made()
    fake.gate.clear()
    box.put(trace(0))
    assert fake.entered.wait(30)
    for number in range(1, 600):
        box.put(trace(number))
    fake.gate.set()
    wait_until(lambda: len(fake.ids) == 600)
    assert max(len(batch) for batch in fake.batches) == -(-BATCH_SPANS // 3)


def test_a_collector_that_hangs_costs_no_time_and_bounded_memory(fake: Fake, made: Make) -> None:
    fake.gate.clear()
    box = made(spans_max=30)
    box.put(trace(0))
    assert fake.entered.wait(30)
    began = time.monotonic()
    for number in range(1, 10_000):
        box.put(trace(number))
    assert time.monotonic() - began < 5.0, "a put never waits: ten thousand of them are done while nothing is taken"
    assert box.lost_spans == 3 * (10_000 - 10), "what is being sent takes room too"
    fake.gate.set()
    wait_until(lambda: len(fake.ids) == 10)
    assert fake.ids == list(range(1, 11)), "the oldest are kept"


def test_a_failing_collector_is_complained_of_once_a_minute(
    fake: Fake, made: Make, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    fake.failure = "503 from the collector"
    box = made(clock=clock)

    def send(count: int) -> None:
        for number in range(count):
            sent = len(fake.batches)
            box.put(trace(number))
            wait_until(lambda sent=sent: len(fake.batches) > sent)

    with caplog.at_level(logging.DEBUG):
        send(20)
        clock.now += COMPLAINT_S - 1
        send(20)
        assert [record.getMessage() for record in caplog.records] == [
            "3 spans of traces were lost: 503 from the collector"
        ]
        clock.now += 1
        wait_until(lambda: len(caplog.records) == 2)
        assert caplog.records[1].getMessage() == "117 spans of traces were lost: 503 from the collector"
        clock.now += COMPLAINT_S
        box.close()
    assert len(caplog.records) == 2, "nothing more was lost"
    assert box.lost_spans == 120


def test_a_fault_in_the_exporter_is_a_failure_like_others(
    fake: Fake, made: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fault = ValueError("secret")
    box = made()
    box.put(trace(0))
    wait_until(lambda: bool(caplog.records))
    assert caplog.records[0].getMessage() == "3 spans of traces were lost: ValueError in the exporter"
    fake.fault = None
    box.put(trace(1))
    wait_until(lambda: fake.ids == [2])


def test_close_sends_what_is_left(fake: Fake, made: Make) -> None:
    box = made(interval_s=3600.0)
    for number in range(500):
        box.put(trace(number))
    box.close()
    assert fake.ids == list(range(1, 501))
    box.put(trace(500))
    assert box.lost_spans == 3, "after the end nothing is taken"


def test_close_ends_in_its_time_while_the_collector_hangs(
    fake: Fake, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "FLUSH_S", 0.2)
    fake.gate.clear()
    box = made()
    box.put(trace(0))
    assert fake.entered.wait(30)
    began = time.monotonic()
    box.close()
    assert 0.2 <= time.monotonic() - began < 5.0
    assert fake.stopped == 1


def test_close_gives_a_failing_collector_one_more_chance(fake: Fake, made: Make) -> None:
    fake.failure = "no"
    box = made(interval_s=3600.0)
    for number in range(1000):
        box.put(trace(number))
    box.close()
    assert box.lost_spans == 3000
