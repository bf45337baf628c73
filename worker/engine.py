"""The engine's thread: takes commands from the event loop, steps, and hands back what each step gave.

Keeps true: scheduler, model and sampler are touched by this thread alone; the loop gets a step's cache events before
its outputs, and an answer to a question after the events that it caused; a failing step ends its own requests, an
engine that cannot go on says so once and ends all of them. Bounds: `samples_max` open samples (commands are bounded
with them) and DELIVERIES_MAX unread deliveries. Does not know HTTP, text or tokens.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from trieway.meta_tree.events import CacheEvent
from trieway.meta_tree.ids import Reject
from trieway.serving.errors import ApiError, BadRequest, Busy, Internal, Unavailable
from trieway.worker.generation import Generation
from trieway.worker.stepper import Sample, State, Stepper, StepReport

log = logging.getLogger(__name__)

T = TypeVar("T")
DELIVERIES_MAX = 64


class Listener(Protocol):
    """Who hears of the engine, on the event loop's thread."""

    def on_step(self, events: Sequence[CacheEvent], state: State, report: StepReport | None) -> None: ...

    def on_fatal(self, reason: str) -> None: ...


@dataclass(kw_only=True, slots=True)
class _Delivery:
    """One trip to the loop."""

    events: list[CacheEvent] = field(default_factory=list)
    state: State | None = None
    report: StepReport | None = None
    failures: list[tuple[Sequence[str], ApiError]] = field(default_factory=list)
    replies: list[Callable[[], None]] = field(default_factory=list)


class Engine:
    """Start it on a running loop; `submit` and `ask` belong to that loop's thread."""

    def __init__(self, stepper: Stepper, *, samples_max: int) -> None:
        self._stepper = stepper
        self._samples_max = samples_max
        self._commands: queue.SimpleQueue[Callable[[_Delivery], None]] = queue.SimpleQueue()
        self._open: dict[str, Generation] = {}
        self._asked: set[asyncio.Future[Any]] = set()
        self._unread = threading.Semaphore(DELIVERIES_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trieway-engine", daemon=True)
        self._broken: str | None = None
        self._loop: asyncio.AbstractEventLoop
        self._listener: Listener

    @property
    def alive(self) -> bool:
        """Whether steps are still made."""
        return self._thread.is_alive() and self._broken is None

    @property
    def open_samples(self) -> int:
        """Samples whose generation has not ended."""
        return len(self._open)

    def start(self, listener: Listener) -> None:
        """Starts the thread; `listener` is called on the running loop from then on."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._thread.start()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after its current step; open generations fail."""
        self._stopping.set()
        self._commands.put(lambda _: None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout_s)
        self._fail_all(Unavailable("the worker is stopping", code="stopping"))

    def submit(self, samples: Sequence[Sample]) -> Generation:
        """Queues samples that belong together: all are taken or none. A refusal comes through the generation.

        Raises:
            Busy: samples_max are open.
            Unavailable: the engine has ended.
        """
        if not self.alive or self._stopping.is_set():
            raise Unavailable("the worker's engine does not run", code="engine_stopped")
        if len(self._open) + len(samples) > self._samples_max:
            raise Busy("this worker's queue is full; try again later")
        ids = [sample.request.id for sample in samples]
        generation = Generation(ids, self._cancel)
        self._open.update(dict.fromkeys(ids, generation))
        self._commands.put(lambda delivery: self._add(samples, delivery))
        return generation

    async def ask(self, question: Callable[[Stepper], T]) -> T:
        """Runs `question` on the engine's thread between two steps; cache events it caused are published first.

        A question that raises breaks the engine: it is our own code. Raises Unavailable if the engine has ended.
        """
        if not self.alive:
            raise Unavailable("the worker's engine does not run", code="engine_stopped")
        answer: asyncio.Future[T] = self._loop.create_future()

        def run(delivery: _Delivery) -> None:
            result = question(self._stepper)
            delivery.replies.append(lambda: None if answer.done() else answer.set_result(result))

        self._asked.add(answer)
        try:
            self._commands.put(run)
            return await answer
        finally:
            self._asked.discard(answer)

    # On the event loop's thread

    def _cancel(self, generation: Generation) -> None:
        ids = [name for name in generation.samples if self._open.pop(name, None) is not None]
        self._commands.put(lambda _: self._stepper.cancel(ids))

    def _deliver(self, delivery: _Delivery) -> None:
        self._unread.release()
        assert delivery.state is not None
        self._listener.on_step(delivery.events, delivery.state, delivery.report)
        if delivery.report is not None:
            for name, outputs in delivery.report.outputs.items():
                generation = self._open.get(name)
                if generation is not None:
                    if outputs[-1].finish is not None:
                        del self._open[name]
                    generation.push(outputs)
        for ids, error in delivery.failures:
            for name in ids:
                self._fail(name, error)
        for reply in delivery.replies:
            reply()

    def _fail(self, name: str, error: ApiError) -> None:
        """Ends a sample's whole generation: its siblings have no use without it."""
        generation = self._open.pop(name, None)
        if generation is not None:
            siblings = [other for other in generation.samples if self._open.pop(other, None) is not None]
            if siblings:
                self._commands.put(lambda _: self._stepper.cancel(siblings))
            generation.fail(error)

    def _fail_all(self, error: ApiError) -> None:
        for generation in dict.fromkeys(self._open.values()):
            generation.fail(error)
        self._open.clear()
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(error)

    def _on_broken(self, reason: str) -> None:
        self._fail_all(Internal("the worker's engine failed", code="engine_failed"))
        self._listener.on_fatal(reason)

    # On the engine's thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
        except Exception as error:
            log.exception("the engine cannot go on")
            self._broken = f"{type(error).__name__}: {error}"
            self._call_loop(self._on_broken, self._broken)

    def _turn(self) -> None:
        """Commands that have come, one step, one delivery."""
        delivery = _Delivery()
        acted = self._obey(delivery)
        report = None if self._stopping.is_set() else self._stepper.step()
        if report is None and not acted:
            return
        if report is not None and report.failed:
            delivery.failures.append((report.failed, Internal("the model failed on this request")))
        delivery.report = report
        delivery.events = self._stepper.drain_events()
        delivery.state = self._stepper.state()
        self._post(delivery)

    def _obey(self, delivery: _Delivery) -> bool:
        """Runs what is queued; waits for a command while there is nothing to compute."""
        acted = False
        idle = not self._stepper.has_work()
        while True:
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return acted
            command(delivery)
            acted, idle = True, False

    def _add(self, samples: Sequence[Sample], delivery: _Delivery) -> None:
        try:
            reject = self._stepper.add(samples)
        except Exception:
            log.exception("a request could not be queued")
            delivery.failures.append(
                ([sample.request.id for sample in samples], Internal("the request could not be queued"))
            )
            return
        if reject is not None:
            delivery.failures.append(([sample.request.id for sample in samples], refusal(reject)))

    def _post(self, delivery: _Delivery) -> None:
        while not self._unread.acquire(timeout=0.1):
            if self._stopping.is_set():
                return
        self._call_loop(self._deliver, delivery)

    def _call_loop(self, call: Callable[[T], None], value: T) -> None:
        try:
            self._loop.call_soon_threadsafe(call, value)
        except RuntimeError:
            # The loop is closed: nobody is left to hear it.
            self._stopping.set()


def refusal(reject: Reject) -> ApiError:
    """The scheduler's refusal as an error for the client."""
    if reject.reason == "too_long":
        return BadRequest("the prompt and its answer do not fit this model's context", code="context_length_exceeded")
    if reject.reason == "queue_full":
        return Busy("this worker's queue is full; try again later", retry_after_s=reject.retry_after_s or 1.0)
    return BadRequest(f"the request cannot be run: {reject.reason}")
