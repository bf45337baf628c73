"""What a worker's feed, or its silence, does to what the router believes of that worker.

Keeps true: blocks, speculations and bookings of an incarnation end together with it; a gone worker holds nothing and
comes back only with a new Hello or by being added again; silence ends in forgetting, for lost deletes make ghosts. Does
not know sockets: it says when to subscribe again, the shell does it.
"""

from trieway.meta_tree import subscriber as feed
from trieway.meta_tree.digest import Digest
from trieway.meta_tree.events import Replaced
from trieway.meta_tree.frames import Frame, Heartbeat, Hello
from trieway.meta_tree.view import View
from trieway.router.core.config import CoreConfig
from trieway.router.core.ledger import Ledger
from trieway.router.core.members import Member, Members, new_breaker
from trieway.router.core.speculation import Speculations
from trieway.router.core.values import AskBuckets, CoreEffect, Resubscribe


class Feeds:
    """The subscribers of all members, and the changes that their effects make."""

    def __init__(
        self, config: CoreConfig, members: Members, view: View, ledger: Ledger, speculations: Speculations
    ) -> None:
        self._config = config
        self._members = members
        self._view = view
        self._ledger = ledger
        self._speculations = speculations

    def subscriber(self, member: Member) -> feed.Subscriber:
        """A subscriber that knows nothing yet; the one before leaves its counts behind."""
        old = member.subscriber
        if old is not None:
            member.gaps_before += old.gaps
            member.resyncs_before += old.resyncs
        worker = member.worker

        def digest() -> Digest:
            return self._view.digest(worker)

        member.subscriber = feed.Subscriber(self._config.seed_id, digest, group=member.group or None)
        return member.subscriber

    def resume(self, member: Member) -> tuple[int | None, int | None]:
        return (None, None) if member.subscriber is None else member.subscriber.resume

    def frame(self, member: Member, frame: Frame, now: float) -> list[CoreEffect]:
        """Apply one frame. WireError: refuse the worker."""
        subscriber = member.subscriber
        if subscriber is None:
            return []
        if isinstance(frame, Hello):
            member.gone = False
        if member.gone:
            return []  # what a dead process had still on the wire
        effects: list[CoreEffect] = []
        for effect in subscriber.handle(frame, now):
            effects += self._perform(member, subscriber, effect, now)
        member.heard_at = now
        member.told_silent = False
        self._speculations.applied(member.worker, subscriber.number)
        if isinstance(frame, Heartbeat):
            self._speculations.heartbeat(member.worker)
        return effects

    def _perform(
        self, member: Member, subscriber: feed.Subscriber, effect: feed.SubscriberEffect, now: float
    ) -> list[CoreEffect]:
        worker = member.worker
        match effect:
            case feed.Apply():
                if isinstance(effect.event, Replaced):
                    subscriber.healed(self._view.apply(worker, effect.event))
                else:
                    self._view.apply(worker, effect.event)
            case feed.Reset():
                self._view.reset_worker(worker)
                if member.epoch is not None and effect.epoch != member.epoch:
                    self.new_incarnation(member, now)
                member.epoch = effect.epoch
            case feed.LoadReport():
                member.report(effect.load, self._config.step_tokens, now)
                self._ledger.reconcile(worker, effect.load, now)
            case feed.AskBuckets():
                member.differing = len(effect.indices)
                return [AskBuckets(worker=worker, indices=effect.indices)]
            case feed.Resubscribe():
                since, epoch = subscriber.resume
                return [Resubscribe(worker=worker, reason=effect.reason, since=since, epoch=epoch)]
        return []

    def new_incarnation(self, member: Member, now: float) -> None:
        """The process is another one: nothing that was booked at or expected of the old one weighs on it."""
        self._speculations.drop_worker(member.worker)
        self._ledger.drop_worker(member.worker)
        self._ledger.add_worker(member.worker, now)
        member.breaker = new_breaker(self._config)
        member.load = None
        member.epoch = None

    def forget(self, member: Member) -> None:
        """Drop what is known of the worker's cache; the next stream begins with a snapshot."""
        self._view.reset_worker(member.worker)
        if member.has_feed:
            self.subscriber(member)

    def gone(self, member: Member, now: float) -> None:
        """The process is dead: its prefixes vanish at once and it is not chosen until it is back."""
        member.gone = True
        self.forget(member)
        self.new_incarnation(member, now)

    def lost(self, member: Member) -> None:
        """The stream ended, the process may live: what is known stays until `feed_grace_s` has passed."""
        if member.subscriber is not None:
            member.subscriber.disconnected()

    def tick(self, now: float) -> list[CoreEffect]:
        """Silent feeds: ask again once, then forget."""
        effects: list[CoreEffect] = []
        for member in self._members:
            subscriber = member.subscriber
            if subscriber is None or member.gone:
                continue
            silent_s = now - member.heard_at
            if silent_s > self._config.feed_grace_s and subscriber.epoch is not None:
                self.forget(member)
            if silent_s > self._config.heartbeat_timeout_s and not member.told_silent:
                member.told_silent = True
                since, epoch = self.resume(member)
                reason = f"silent for {silent_s:.0f} s"
                effects.append(Resubscribe(worker=member.worker, reason=reason, since=since, epoch=epoch))
        return effects
