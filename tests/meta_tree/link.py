"""A worker's publisher, a router's subscriber and view, and the wire between them, without a socket."""

from __future__ import annotations

from collections.abc import Iterable

from trieway.meta_tree.events import CacheEvent, Replaced
from trieway.meta_tree.frames import Frame, FrameReader, WorkerLoad, encode
from trieway.meta_tree.ids import GroupId, WorkerId
from trieway.meta_tree.publisher import Publisher
from trieway.meta_tree.subscriber import Apply, AskBuckets, LoadReport, Reset, Resubscribe, Subscriber
from trieway.meta_tree.view import View

SEED = "0123456789abcdef"
GROUP = GroupId("group")
LOAD = WorkerLoad(
    running=0,
    waiting=0,
    waiting_tokens=0,
    running_tokens=0,
    prefill_tokens_per_s=0.0,
    decode_step_ms=0.0,
    kv_free_tokens=1,
    kv_cached_tokens=0,
    kv_total_tokens=1,
)


class Link:
    """One worker's feed into a view. Frames really pass through bytes."""

    def __init__(self, worker: str = "w", view: View | None = None, ring_events_max: int = 8, epoch: int = 1) -> None:
        self.worker = WorkerId(worker)
        self.view = view or View()
        self.view.add_worker(self.worker, GROUP)
        self.ring_events_max = ring_events_max
        self.publisher = self.incarnation(epoch)
        self.subscriber = Subscriber(SEED, lambda: self.view.digest(self.worker), GROUP)
        self.now = 0.0
        self.connected = False
        self.sent = 0
        self.asked: list[tuple[int, ...]] = []
        self.reasons: list[str] = []
        self.loads = 0

    def incarnation(self, epoch: int) -> Publisher:
        return Publisher(epoch=epoch, seed_id=SEED, group=GROUP, ring_events_max=self.ring_events_max)

    def restart(self) -> None:
        """The worker dies and comes back empty, with a new epoch."""
        self.publisher = self.incarnation(self.publisher.epoch + 1)
        self.cut()

    def cut(self) -> None:
        self.connected = False
        self.subscriber.disconnected()

    def connect(self) -> None:
        since, epoch = self.subscriber.resume
        self.connected = True
        self.sent = self.publisher.number
        self.carry(self.publisher.subscribe(since, epoch))

    def pump(self) -> None:
        """Sends what was published since; a stream that fell off the ring gets a snapshot."""
        if not self.connected:
            self.connect()
            return
        frames = self.publisher.after(self.sent)
        self.sent = self.publisher.number
        self.carry(self.publisher.snapshot() if frames is None else frames)

    def beat(self) -> None:
        self.now += 1.0
        self.pump()
        self.carry([self.publisher.heartbeat(LOAD)])

    def answer(self) -> None:
        """Answers what was asked for, from the worker's state now."""
        while self.asked:
            self.carry([self.publisher.buckets(self.asked.pop(0))])

    def publish(self, *events: CacheEvent) -> None:
        self.publisher.publish(events)
        self.publisher.check()

    def carry(self, frames: Iterable[Frame]) -> None:
        for frame in FrameReader().feed(b"".join(map(encode, frames))):
            self.receive(frame)

    def receive(self, frame: Frame) -> None:
        for effect in self.subscriber.handle(frame, self.now):
            match effect:
                case Apply():
                    changed = self.view.apply(self.worker, effect.event)
                    if isinstance(effect.event, Replaced):
                        self.subscriber.healed(changed)
                case Reset():
                    self.view.reset_worker(self.worker)
                case AskBuckets():
                    self.asked.append(effect.indices)
                case LoadReport():
                    self.loads += 1
                case Resubscribe():
                    self.reasons.append(effect.reason)
                    self.connected = False
        self.subscriber.check()
        self.view.check()

    def agrees(self) -> bool:
        return self.view.digest(self.worker).buckets() == self.publisher.heartbeat(LOAD).buckets

    def settle(self, beats: int = 5) -> None:
        """Heartbeats and answers until both ends agree; a few must do."""
        for _ in range(beats):
            self.beat()
            self.answer()
            self.now += 30.0
