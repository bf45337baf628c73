"""A breaker per worker: consecutive worker errors open it, one probe at a time closes it again.

Keeps true: a client's mistake never counts; an open breaker always becomes half-open by time alone, so a mark never
sticks; at most one probe is out. Does not know why a worker failed.
"""

from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """closed -(errors)-> open -(time)-> half open -(probe ok)-> closed, or -(probe fails)-> open for twice as long."""

    __slots__ = ("_errors_max", "_open_max_s", "_open_s", "_opened_s", "_until", "errors", "probe")

    def __init__(self, *, errors_max: int, open_s: float, open_max_s: float) -> None:
        assert errors_max > 0
        assert 0 < open_s <= open_max_s
        self._errors_max = errors_max
        self._open_s = open_s
        self._open_max_s = open_max_s
        self._opened_s = 0.0  # length of the present opening; 0 while closed
        self._until = 0.0
        self.errors = 0
        self.probe: int | None = None  # booking id of the probe that is out

    def state(self, now: float) -> BreakerState:
        if not self._opened_s:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """May a request go there now? Half open: only while no probe is out."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and self.probe is None)

    def opens_in_s(self, now: float) -> float:
        """Seconds until a probe may go; 0 if one may go now or the breaker is closed."""
        return max(self._until - now, 0.0) if self._opened_s else 0.0

    def booked(self, booking_id: int, now: float) -> None:
        if self.probe is None and self.state(now) is BreakerState.HALF_OPEN:
            self.probe = booking_id

    def succeeded(self) -> None:
        """The worker answered as it should, a refusal of a bad or one too many request included."""
        self.errors = 0
        self._opened_s = 0.0
        self.probe = None  # a probe still out has nothing left to prove

    def failed(self, booking_id: int, now: float) -> None:
        self.errors += 1
        was_probe = self.probe == booking_id
        if was_probe:
            self.probe = None
        if self._opened_s:
            if was_probe:
                self._open(min(self._opened_s * 2.0, self._open_max_s), now)
        elif self.errors >= self._errors_max:
            self._open(self._open_s, now)

    def ended(self, booking_id: int) -> None:
        """The request ended without telling anything about the worker (cancelled): a probe may go again."""
        if self.probe == booking_id:
            self.probe = None

    def _open(self, seconds: float, now: float) -> None:
        self._opened_s = seconds
        self._until = now + seconds

    def check(self) -> None:
        assert self.errors >= 0
        assert 0.0 <= self._opened_s <= self._open_max_s
        assert self.probe is None or self._opened_s > 0.0
