"""RouterCore: everything the router knows and decides, behind plain method calls.

Keeps true: every booking is released exactly once and its worker's sums follow; nothing is sent to a worker known to be
gone; speculative prefixes end with the truth; `choose` and `explain` change nothing. It owns the view, the feeds'
subscribers, the ledger, the learnt rates and the breakers. Does not know HTTP, prompts' text, tenants or clocks.
"""

from collections.abc import Sequence

from trieway.meta_tree.digest import Digest
from trieway.meta_tree.frames import Frame
from trieway.meta_tree.ids import GroupId, Reject, WorkerId
from trieway.meta_tree.view import View
from trieway.router.core.chooser import Chooser, fork
from trieway.router.core.config import CoreConfig
from trieway.router.core.feeds import Feeds
from trieway.router.core.heat import Heat
from trieway.router.core.learning import Pool
from trieway.router.core.ledger import Ledger, Open
from trieway.router.core.members import UNGROUPED, Member, Members
from trieway.router.core.report import readiness, worker_row
from trieway.router.core.speculation import EvenTokens, Speculations
from trieway.router.core.values import (
    Booking,
    Choice,
    CoreEffect,
    Explanation,
    FirstByte,
    Outcome,
    Query,
    Readiness,
    Rng,
    Settled,
    WorkerRow,
)


class RouterCore:
    """The state machine of one router. Not thread-safe: one task calls it. `now` never goes back."""

    def __init__(self, config: CoreConfig, rng: Rng) -> None:
        """ValueError: no such policy."""
        self.config = config
        self._rng = rng
        self._members = Members()
        self._pools: dict[str, Pool] = {}
        self._view = View(config.tree_bytes_max, config.learned_blocks_max)
        self._ledger = Ledger(inflow_halflife_s=config.inflow_halflife_s)
        self._speculations = Speculations(
            self._view, alive_max=config.speculations_max, age_max_s=config.speculation_max_s
        )
        self._feeds = Feeds(config, self._members, self._view, self._ledger, self._speculations)
        self._heat = Heat(halflife_s=config.heat_halflife_s, forks_max=config.heat_forks_max)
        self._chooser = Chooser(config, self._members, self._view, self._ledger, self._heat)
        self._began_at: float | None = None

    # The registry.
    def add_worker(
        self,
        worker: WorkerId,
        url: str,
        now: float,
        *,
        model: str,
        aliases: Sequence[str] = (),
        group: GroupId | None = None,
        has_feed: bool = True,
        context_tokens: int | None = None,
        kv_tokens: int | None = None,
        page_size: int = 1,
        running_max: int | None = None,
    ) -> None:
        """Make a worker known and choosable. Again for a known id: it is back (new epoch, group or model).

        A known worker that was not gone keeps its blocks and bookings, unless its group or kind of feed changed.
        OverflowError: `workers_max` reached.
        """
        if self._began_at is None:
            self._began_at = now
        pool = self._pools.setdefault(model, Pool(self.config))
        grouped = UNGROUPED if group is None else group
        member = self._members.get(worker)
        if member is None:
            if len(self._members) >= self.config.workers_max:
                raise OverflowError(f"the registry is full at {self.config.workers_max} workers")
            member = Member(self.config, worker, pool, now)
            self._ledger.add_worker(worker, now)
            self._enter(member, grouped, has_feed)
        elif member.group != grouped or member.has_feed != has_feed:
            self._feeds.new_incarnation(member, now)
            self._view.drop_worker(worker)
            self._enter(member, grouped, has_feed)
        member.pool = pool
        member.url = url
        member.context_tokens, member.kv_tokens = context_tokens, kv_tokens
        member.page_size, member.running_max = max(page_size, 1), running_max
        member.gone = member.draining = False
        member.heard_at = now
        self._members.put(member, model=model, aliases=aliases)
        self._drop_idle_pools()

    def _enter(self, member: Member, group: GroupId, has_feed: bool) -> None:
        member.group, member.has_feed = group, has_feed
        self._view.add_worker(member.worker, group, approximate=not has_feed)
        if has_feed:
            self._feeds.subscriber(member)
        else:
            member.subscriber = None

    def _drop_idle_pools(self) -> None:
        used = {member.model for member in self._members}
        for model in [model for model in self._pools if model not in used]:
            del self._pools[model]

    def remove_worker(self, worker: WorkerId, now: float) -> None:
        """Forget a worker and its blocks; its open bookings stay valid until released. KeyError if unknown."""
        self._members.remove(worker)
        self._speculations.drop_worker(worker)
        self._ledger.drop_worker(worker)
        self._view.drop_worker(worker)
        self._drop_idle_pools()

    def drain(self, worker: WorkerId, now: float) -> None:
        """Give the worker nothing new; it is idle once its row shows `booked == 0`. KeyError if unknown."""
        self._members[worker].draining = True

    def has_worker(self, worker: WorkerId) -> bool:
        return worker in self._members

    def workers(self, now: float) -> tuple[WorkerRow, ...]:
        """Every registered worker, gone ones too, in the order of their registration."""
        return tuple(worker_row(self.config, member, self._ledger, self._view, now) for member in self._members)

    def models(self) -> tuple[str, ...]:
        """Model names of all registered workers, without aliases, sorted."""
        return tuple(sorted({member.model for member in self._members}))

    # The feeds.
    def resume(self, worker: WorkerId) -> tuple[int | None, int | None]:
        """(since, epoch) to subscribe with; (None, None): from a snapshot. KeyError if unknown."""
        return self._feeds.resume(self._members[worker])

    def feed_frame(self, worker: WorkerId, frame: Frame, now: float) -> list[CoreEffect]:
        """Apply one frame. WireError: the worker speaks another wire, block size or seed; do not reconnect blindly.

        A frame of a worker that was removed meanwhile is ignored.
        """
        member = self._members.get(worker)
        return [] if member is None else self._feeds.frame(member, frame, now)

    def feed_lost(self, worker: WorkerId, now: float, *, gone: bool) -> None:
        """The feed ended. gone: the process is dead, so its blocks vanish and nothing is sent until it is back:
        until its new feed says Hello, or it is added again. Unknown workers are ignored."""
        member = self._members.get(worker)
        if member is None:
            return
        self._feeds.lost(member)
        if gone and not member.gone:
            self._feeds.gone(member, now)

    def tick(self, now: float) -> list[CoreEffect]:
        """Time passes: silent feeds, speculations past their end. Call some four times a second."""
        self._speculations.expire(now)
        self._view.sweep()
        return self._feeds.tick(now)

    # A request's life: choose, book, receipt, release.
    def choose(self, query: Query, now: float) -> Choice | Reject:
        """Where the request should go. Counts nothing, inserts nothing; draws from the rng only to break ties."""
        return self._chooser.choose(query, self._rng, now)

    def book(self, query: Query, choice: Choice, now: float) -> Booking:
        """Count the work and expect the prefix there. The caller owns the booking until it calls `release`.

        Call it in the same turn as `choose`: the worker may not have left in between.
        """
        row = choice.row
        booking = Booking(
            id=self._ledger.next_id(),
            worker=choice.worker,
            uncached_tokens=row.uncached_tokens,
            predicted_tokens=choice.predicted_tokens,
            available_tokens=choice.available_tokens,
            prompt_tokens=choice.prompt_tokens,
            predicted_ttft_ms=choice.predicted_ttft_ms,
            booked_at=now,
        )
        others = [other.ttft_ms for other in choice.rows if other.worker != choice.worker]
        self._ledger.open(
            booking,
            now,
            interference_ms=row.interference_ms,
            alternative_ms=min(others, default=None),
            prompt_bytes=query.prompt_bytes,
        )
        self._members[choice.worker].breaker.booked(booking.id, now)
        if query.group is not None and query.hashes and query.reuse_max != 0:
            self._expect(query, choice, booking, now)
        return booking

    def _expect(self, query: Query, choice: Choice, booking: Booking, now: float) -> None:
        """Siblings that come before the worker's events shall find this prompt."""
        assert query.group is not None
        if choice.matched[0]:
            self._heat.used(fork(query.hashes, choice.matched[0]), now)
        usable = EvenTokens(len(query.hashes), choice.matched, booking.prompt_tokens, query.prompt_bytes)
        self._speculations.begin(booking.id, booking.worker, query.hashes, usable, now)
        self._view.touch(query.group, query.hashes, now)

    def receipt(self, booking_id: int, first: FirstByte, now: float) -> Settled:
        """The answer's first byte came. At most once per booking, before its release (asserted)."""
        entry, service_ms = self._ledger.first_byte(booking_id, now)
        booking = entry.booking
        prompt = booking.prompt_tokens if first.prompt_tokens is None else first.prompt_tokens
        if first.prompt_tokens:
            pool = self._pool_of(entry)
            if pool is not None:
                pool.bytes_per_token.observe(entry.prompt_bytes, first.prompt_tokens)
        member = self._members.get(booking.worker) if entry.book is not None else None
        if member is not None:
            cached = booking.predicted_tokens if first.cached_tokens is None else first.cached_tokens
            self._learn(member, entry, max(prompt - cached, 0), service_ms, first.prefill_ms, now)
            self._know(member, booking_id, first)
        ttft_ms = (now - booking.booked_at) * 1e3
        regret_ms = 0.0 if entry.alternative_ms is None else max(ttft_ms - entry.alternative_ms, 0.0)
        return Settled(
            worker=booking.worker,
            ttft_ms=ttft_ms,
            predicted_ttft_ms=booking.predicted_ttft_ms,
            available_tokens=booking.available_tokens,
            chosen_tokens=booking.predicted_tokens,
            delivered_tokens=first.cached_tokens,
            regret_ms=regret_ms,
        )

    def _pool_of(self, entry: Open) -> Pool | None:
        member = self._members.get(entry.booking.worker)
        return None if member is None else member.pool

    def _learn(
        self, member: Member, entry: Open, tokens: int, service_ms: float, prefill_ms: float | None, now: float
    ) -> None:
        """A sample of the prefill line, freed of what the decodes alongside cost."""
        if prefill_ms is not None:
            service_ms = min(service_ms, prefill_ms)
        service_ms = max(service_ms - entry.interference_ms, service_ms / 3.0)
        book = entry.book
        assert book is not None
        expected_ms = member.prefill(now).at(tokens)
        for sample in book.sample(tokens, service_ms, expected_ms, alone=entry.alone):
            member.observe_prefill(sample.tokens, sample.ms, now, sample.weight)

    def _know(self, member: Member, booking_id: int, first: FirstByte) -> None:
        """What the receipt says of the prompt's blocks."""
        subscriber = member.subscriber
        if subscriber is None:
            self._speculations.learn(booking_id)
        elif first.epoch is not None and first.epoch == subscriber.epoch:
            self._speculations.computed(booking_id, first.number, subscriber.number)

    def release(self, booking_id: int, outcome: Outcome, now: float) -> None:
        """The request ended, however it did. Exactly once per booking (asserted)."""
        entry = self._ledger.close(booking_id, now)
        if entry.book is None:
            return  # of an incarnation that ended: its speculation and its breaker went with it
        member = self._members[entry.booking.worker]
        answered = outcome is Outcome.OK or not entry.pending
        if answered and not member.has_feed:
            self._speculations.learn(booking_id)
        else:
            self._speculations.released(booking_id, computed=answered, fed=member.has_feed)
        if outcome in (Outcome.WORKER_ERROR, Outcome.TIMEOUT):
            member.breaker.failed(booking_id, now)
        elif outcome is Outcome.CANCELLED:
            member.breaker.ended(booking_id)
        else:
            member.breaker.succeeded()

    def explain(self, query: Query, now: float) -> Explanation:
        """`choose` without the rng: the most probable worker, each candidate's costs and probability."""
        return self._chooser.explain(query, now)

    # Views for the control plane.
    def ready(self, now: float) -> Readiness:
        """How much of the fleet is known; ready with some worker up and enough feeds loaded, or after a wait."""
        return readiness(self.config, self._members, self._began_at, now)

    def digest(self, worker: WorkerId) -> Digest:
        """The view's digest of one worker. KeyError if unknown."""
        return self._view.digest(worker)

    def tree(self, depth: int | None = None) -> dict[str, object]:
        """Summary of the meta-tree as JSON values (hashes and counts, never text); depth: with a bounded dump."""
        found: dict[str, object] = {"summary": self._view.summary(), "speculations": len(self._speculations)}
        if depth is not None:
            found["dump"] = self._view.dump(depth)
        return found

    @property
    def open_bookings(self) -> int:
        """Bookings not yet released, those of dead incarnations too."""
        return len(self._ledger)

    @property
    def tree_bytes(self) -> int:
        """Estimated memory of the meta-tree."""
        return self._view.bytes

    def check(self) -> None:
        """Prove that books, speculations and views agree; AssertionError otherwise."""
        self._members.check()
        self._ledger.check()
        self._speculations.check()
        self._heat.check()
        self._view.check()
        assert {member.model for member in self._members} == set(self._pools)
        for member in self._members:
            self._ledger.book_of(member.worker)
            assert member.has_feed == (member.subscriber is not None)
            if member.gone:
                assert self._view.blocks(member.worker) == 0, "a gone worker holds nothing"
