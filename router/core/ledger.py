"""The ledger of booked work: every open request, whose it is, and what it still owes its worker.

Keeps true: a booking is opened once, gets its first byte at most once and is closed exactly once; each worker's sums
equal the sums over its open bookings; a booking whose worker died or left stays valid, weighs on nobody, and is closed
by its owner like any other. A worker's own numbers are reconciled with ours: what it has beyond our bookings is other
routers' work, what it no longer has is done. Does not know rates or prefixes.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import WorkerId
from trieway.router.core.rates import Mean
from trieway.router.core.values import Booking

ARRIVAL_S = 0.25
"""A booking younger than this may not have reached the worker when it counted its load."""
STEP_S = 1.0
"""A worker's numbers may be as old as its last step: what ended since then may still be in them."""
COMPANY_WEIGHT = 0.25
"""What a time measured while other requests were open there counts: it is theirs too."""
RECENT_MAX = 256
"""First bytes and ends remembered for that."""
BATCHED_SHARE = 0.25
"""A first byte sooner than this share of its predicted time, and of the time of the one before, came out of the same
step as that one."""
BATCHED_MAX = 8


class Sample(NamedTuple):
    """So many uncached tokens took so long."""

    tokens: float
    ms: float
    weight: float


class Open:
    """One open booking and what only the ledger needs of it."""

    __slots__ = ("alone", "alternative_ms", "book", "booking", "first_byte_at", "interference_ms", "prompt_bytes")

    def __init__(
        self,
        booking: Booking,
        book: "Book",
        *,
        interference_ms: float = 0.0,
        alternative_ms: float | None = None,
        prompt_bytes: int = 0,
    ) -> None:
        self.booking = booking
        self.book: Book | None = book  # None: its worker died or left
        self.interference_ms = interference_ms  # predicted share of running decodes in the time to first token
        self.alternative_ms = alternative_ms  # least time to first token that another worker had promised
        self.prompt_bytes = prompt_bytes
        self.first_byte_at: float | None = None
        self.alone = not book.open and not book.foreign_requests  # so far, nothing else was open at the worker

    @property
    def pending(self) -> bool:
        """No first byte yet."""
        return self.first_byte_at is None


class Book:
    """The open bookings of one worker incarnation."""

    __slots__ = (
        "_begun", "_credit_tokens", "_ended", "_held_sample", "_inflow", "_inflow_at", "_since", "foreign_at",
        "foreign_requests", "foreign_tokens", "last_booked", "last_first_byte_at", "open", "open_tokens", "pending",
        "pending_tokens", "residence_ms",
    )  # fmt: skip

    def __init__(self, now: float, inflow_tokens: float) -> None:
        self.open: dict[int, int] = {}  # booking id -> prompt tokens
        self.open_tokens = 0
        self.pending: dict[int, int] = {}  # booking id -> uncached tokens, oldest first
        self.pending_tokens = 0
        self.last_booked = 0
        self.last_first_byte_at = now
        self.residence_ms = Mean(1000.0)  # from first byte to release
        self.foreign_requests = 0
        self.foreign_tokens = 0
        self.foreign_at = now
        self._begun: deque[tuple[float, int]] = deque(
            maxlen=RECENT_MAX
        )  # first bytes lately, and their uncached tokens
        self._ended: deque[float] = deque(maxlen=RECENT_MAX)  # ends lately
        self._credit_tokens = 0  # of pending: computed already, by the worker's own report
        self._since = now  # start of the progress not yet reported
        self._inflow = inflow_tokens
        self._inflow_at = now
        self._held_sample: tuple[Sample, float, int] | None = None  # so far, the first's ms, others merged

    # Work ahead.
    def owed_tokens(self) -> int:
        """Uncached tokens of our bookings that the worker has not computed, as of the last report or first byte."""
        return self.pending_tokens - self._credit_tokens

    def head_tokens(self) -> int:
        """The part of `owed_tokens` that is in work now: the oldest booking's."""
        head = next(iter(self.pending.values()), 0)
        return min(head, self.owed_tokens())

    def working_s(self, now: float) -> float:
        """How long the head has been in work."""
        return max(now - self._since, 0.0) if self.pending else 0.0

    def foreign_left(self, now: float, tokens_per_s: float) -> float:
        """Uncached tokens of other routers' requests, less what was computed since the report if we owed nothing."""
        done = max(now - self.foreign_at, 0.0) * tokens_per_s
        return max(self.foreign_tokens - done, 0.0)

    def inflow(self, now: float, halflife_s: float) -> float:
        """Uncached tokens sent here lately, decayed."""
        return self._inflow * math.exp2(-max(now - self._inflow_at, 0.0) / halflife_s)

    # Changes.
    def opened(self, booking: Booking, now: float, halflife_s: float) -> None:
        if not self.pending:
            self._credit_tokens = 0
            self._since = now
        self.open[booking.id] = booking.prompt_tokens
        self.open_tokens += booking.prompt_tokens
        self.pending[booking.id] = booking.uncached_tokens
        self.pending_tokens += booking.uncached_tokens
        self.last_booked = booking.id
        self._inflow = self.inflow(now, halflife_s) + booking.uncached_tokens
        self._inflow_at = now

    def first_byte(self, booking_id: int, now: float) -> None:
        self._begun.append((now, self.pending[booking_id]))
        self._drop_pending(booking_id)
        self._since = now
        self.last_first_byte_at = now

    def closed(self, booking_id: int, now: float) -> None:
        self.open_tokens -= self.open.pop(booking_id)
        self._ended.append(now)
        if booking_id in self.pending:
            # Refused, broken or left: nothing of it is known to be in the cache, so it is no new work there.
            self._inflow = max(self._inflow - self.pending[booking_id], 0.0)
            self._begun.append((now, self.pending[booking_id]))
            self._drop_pending(booking_id)

    def _drop_pending(self, booking_id: int) -> None:
        tokens = self.pending.pop(booking_id)
        self.pending_tokens -= tokens
        self._credit_tokens = min(max(self._credit_tokens - tokens, 0), self.pending_tokens)

    def reconcile(self, load: WorkerLoad, arrived_tokens: int, now: float) -> None:
        """arrived_tokens: of our pending tokens, those that the worker must have counted."""
        ended = sum(now - at <= STEP_S for at in self._ended)
        begun = sum(tokens for at, tokens in self._begun if now - at <= STEP_S)
        self.foreign_requests = max(load.running + load.waiting - len(self.open) - ended, 0)
        self.foreign_tokens = max(load.waiting_tokens - self.pending_tokens - begun, 0)
        self.foreign_at = now
        self._credit_tokens = min(max(arrived_tokens - load.waiting_tokens, 0), self.pending_tokens)
        self._since = now

    def sample(self, tokens: float, ms: float, expected_ms: float, *, alone: bool) -> list[Sample]:
        """Take the work of one prompt; give back those whose time is known to be complete.

        Prompts computed in one step are one sample: the first shows the whole step's time, the others none. So each is
        held until the next, unless it was `alone`.
        """
        held = self._held_sample
        if alone:
            self._held_sample = None
            own = Sample(tokens, ms, 1.0)
            return [own] if held is None else [held[0], own]
        if held is not None:
            so_far, first_ms, merged = held
            if merged < BATCHED_MAX and ms < BATCHED_SHARE * min(expected_ms, first_ms):
                joined = Sample(so_far.tokens + tokens, so_far.ms + ms, so_far.weight)
                self._held_sample = (joined, first_ms, merged + 1)
                return []
        self._held_sample = (Sample(tokens, ms, COMPANY_WEIGHT), ms, 0)
        return [] if held is None else [held[0]]


class Ledger:
    """All open bookings of a router."""

    def __init__(self, *, inflow_halflife_s: float) -> None:
        self._halflife_s = inflow_halflife_s
        self._open: dict[int, Open] = {}
        self._books: dict[WorkerId, Book] = {}
        self.opened_total = 0
        self.closed_total = 0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, booking_id: int) -> bool:
        return booking_id in self._open

    def __iter__(self) -> Iterator[Open]:
        return iter(self._open.values())

    def book_of(self, worker: WorkerId) -> Book:
        return self._books[worker]

    @property
    def books(self) -> Mapping[WorkerId, Book]:
        """Of every worker; not to be kept."""
        return self._books

    def add_worker(self, worker: WorkerId, now: float) -> None:
        """A fresh book. Its inflow starts at its peers' mean: a newcomer gets its share of the new, not all of it."""
        assert worker not in self._books
        peers = [book.inflow(now, self._halflife_s) for book in self._books.values()]
        self._books[worker] = Book(now, sum(peers) / len(peers) if peers else 0.0)

    def drop_worker(self, worker: WorkerId) -> None:
        """The worker died or left: its open bookings stay valid and weigh on nobody."""
        book = self._books.pop(worker)
        for booking_id in book.open:
            self._open[booking_id].book = None

    def next_id(self) -> int:
        return self.opened_total + 1

    def open(
        self,
        booking: Booking,
        now: float,
        *,
        interference_ms: float = 0.0,
        alternative_ms: float | None = None,
        prompt_bytes: int = 0,
    ) -> None:
        """Count a booking; its id is `next_id()`."""
        assert booking.id == self.next_id()
        book = self._books[booking.worker]
        self.opened_total += 1
        self._open[booking.id] = Open(
            booking,
            book,
            interference_ms=interference_ms,
            alternative_ms=alternative_ms,
            prompt_bytes=prompt_bytes,
        )
        book.opened(booking, now, self._halflife_s)

    def first_byte(self, booking_id: int, now: float) -> tuple[Open, float]:
        """Mark the first byte; at most once per booking. Also the milliseconds that the worker had it in work: since
        it was booked, or since the first byte before it, for prompts are computed one after another."""
        entry = self._open[booking_id]
        assert entry.pending, f"booking {booking_id} has had its first byte"
        entry.first_byte_at = now
        began_at = entry.booking.booked_at
        if entry.book is not None:
            began_at = max(began_at, entry.book.last_first_byte_at)
            entry.alone = entry.alone and len(entry.book.open) == 1
            entry.book.first_byte(booking_id, now)
        return entry, max(now - began_at, 0.0) * 1e3

    def close(self, booking_id: int, now: float) -> Open:
        """End a booking; exactly once, whatever happened."""
        entry = self._open.pop(booking_id, None)
        assert entry is not None, f"booking {booking_id} is not open: released twice, or never booked"
        self.closed_total += 1
        if entry.book is not None:
            entry.book.closed(booking_id, now)
            if entry.first_byte_at is not None:
                entry.book.residence_ms.observe((now - entry.first_byte_at) * 1e3)
        return entry

    def reconcile(self, worker: WorkerId, load: WorkerLoad, now: float) -> None:
        """Take in a worker's own numbers."""
        book = self._books[worker]
        arrived = sum(
            tokens
            for booking_id, tokens in book.pending.items()
            if now - self._open[booking_id].booking.booked_at >= ARRIVAL_S
        )
        book.reconcile(load, arrived, now)

    def inflow(self, worker: WorkerId, now: float) -> float:
        return self._books[worker].inflow(now, self._halflife_s)

    def check(self) -> None:
        """Every sum again from the bookings."""
        assert self.opened_total == self.closed_total + len(self._open)
        seen: dict[WorkerId, list[Open]] = {worker: [] for worker in self._books}
        for booking_id, entry in self._open.items():
            assert entry.booking.id == booking_id
            if entry.book is not None:
                assert self._books.get(entry.booking.worker) is entry.book
                seen[entry.booking.worker].append(entry)
        for worker, book in self._books.items():
            entries = seen[worker]
            assert list(book.open) == [entry.booking.id for entry in entries]
            assert book.open_tokens == sum(entry.booking.prompt_tokens for entry in entries)
            pending = [entry.booking for entry in entries if entry.pending]
            assert list(book.pending) == [booking.id for booking in pending]
            assert book.pending_tokens == sum(booking.uncached_tokens for booking in pending)
            assert 0 <= book.owed_tokens() <= book.pending_tokens
            assert book.foreign_requests >= 0
            assert book.foreign_tokens >= 0
