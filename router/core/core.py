"""RouterCore: everything the router knows and decides, behind plain method calls.

Signatures first; the bodies follow.
"""

from collections.abc import Sequence

from trieway.meta_tree.frames import Frame
from trieway.meta_tree.ids import GroupId, Reject, WorkerId
from trieway.router.core.config import CoreConfig
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
        raise NotImplementedError

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
        """Make a worker known and choosable. Again for a known id: it is back (new epoch, group or model)."""
        raise NotImplementedError

    def remove_worker(self, worker: WorkerId, now: float) -> None:
        """Forget a worker and its blocks; its open bookings stay valid until released. KeyError if unknown."""
        raise NotImplementedError

    def drain(self, worker: WorkerId, now: float) -> None:
        """Give the worker nothing new; it is idle once its row shows `booked == 0`. KeyError if unknown."""
        raise NotImplementedError

    def has_worker(self, worker: WorkerId) -> bool:
        raise NotImplementedError

    def workers(self, now: float) -> tuple[WorkerRow, ...]:
        raise NotImplementedError

    def models(self) -> tuple[str, ...]:
        """Model names of all registered workers, without aliases, sorted."""
        raise NotImplementedError

    # The feeds.
    def resume(self, worker: WorkerId) -> tuple[int | None, int | None]:
        """(since, epoch) to subscribe with."""
        raise NotImplementedError

    def feed_frame(self, worker: WorkerId, frame: Frame, now: float) -> list[CoreEffect]:
        """Apply one frame. WireError: the worker speaks another wire, block size or seed; do not reconnect blindly."""
        raise NotImplementedError

    def feed_lost(self, worker: WorkerId, now: float, *, gone: bool) -> None:
        """The feed ended. gone: the process is dead, so its blocks vanish and nothing is sent until it is back."""
        raise NotImplementedError

    def tick(self, now: float) -> list[CoreEffect]:
        """Time passes: silent feeds, speculations past their end. Call some four times a second."""
        raise NotImplementedError

    # A request's life: choose, book, receipt, release.
    def choose(self, query: Query, now: float) -> Choice | Reject:
        """Where the request should go. Counts nothing, inserts nothing; draws from the rng only to break ties."""
        raise NotImplementedError

    def book(self, query: Query, choice: Choice, now: float) -> Booking:
        """Count the work and expect the prefix there. The caller owns the booking until it calls `release`."""
        raise NotImplementedError

    def receipt(self, booking_id: int, first: FirstByte, now: float) -> Settled:
        """The answer's first byte came. At most once per booking, before its release."""
        raise NotImplementedError

    def release(self, booking_id: int, outcome: Outcome, now: float) -> None:
        """The request ended, however it did. Exactly once per booking (asserted)."""
        raise NotImplementedError

    def explain(self, query: Query, now: float) -> Explanation:
        """`choose` without the rng: the most probable worker, each candidate's costs and probability."""
        raise NotImplementedError

    # Views for the control plane.
    def ready(self, now: float) -> Readiness:
        raise NotImplementedError

    def tree(self, depth: int | None = None) -> dict[str, object]:
        """Summary of the meta-tree as JSON values (hashes and counts, never text); depth: with a bounded dump."""
        raise NotImplementedError

    def check(self) -> None:
        """Prove that books, speculations and views agree; AssertionError otherwise."""
        raise NotImplementedError
