"""The breaker: opens on worker errors in a row, probes one at a time, never sticks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trieway.router.core.breaker import Breaker, BreakerState


def breaker() -> Breaker:
    return Breaker(errors_max=3, open_s=2.0, open_max_s=30.0)


def opened(now: float = 0.0) -> Breaker:
    made = breaker()
    for booking in range(3):
        made.failed(booking, now)
    return made


def test_opens_after_errors_in_a_row_only() -> None:
    made = breaker()
    for _ in range(5):
        made.failed(1, 0.0)
        made.failed(2, 0.0)
        assert made.allows(0.0)
        made.succeeded()
    made = opened()
    assert made.state(0.0) is BreakerState.OPEN
    assert not made.allows(1.99)
    assert made.opens_in_s(0.5) == 1.5


def test_half_open_lets_one_probe_through() -> None:
    made = opened()
    assert made.state(2.0) is BreakerState.HALF_OPEN
    assert made.allows(2.0)
    made.booked(7, 2.0)
    assert not made.allows(2.5)
    made.succeeded()
    assert made.state(2.5) is BreakerState.CLOSED
    assert made.allows(2.5)
    made.check()


def test_a_failed_probe_doubles_the_time_up_to_the_bound() -> None:
    made, now = opened(), 0.0
    for expected in (4.0, 8.0, 16.0, 30.0, 30.0):
        now += made.opens_in_s(now)
        made.booked(9, now)
        made.failed(9, now)
        assert made.opens_in_s(now) == expected
        made.check()


def test_a_cancelled_probe_frees_the_place() -> None:
    made = opened()
    made.booked(7, 2.0)
    made.ended(7)
    assert made.allows(2.0)
    assert made.state(2.0) is BreakerState.HALF_OPEN


def test_late_errors_of_old_requests_do_not_prolong_it() -> None:
    made = opened()
    for booking in range(100, 120):
        made.failed(booking, 1.9)
    assert made.allows(2.0)


def test_an_old_request_that_succeeds_closes_it() -> None:
    made = opened()
    made.booked(7, 2.0)
    made.succeeded()
    made.check()
    assert made.state(2.0) is BreakerState.CLOSED
    made.failed(7, 2.1)
    assert made.state(2.1) is BreakerState.CLOSED


@given(st.lists(st.tuples(st.sampled_from(["book", "ok", "fail", "end"]), st.floats(0.0, 10.0)), max_size=80))
def test_time_alone_always_lets_a_probe_go(steps: list[tuple[str, float]]) -> None:
    made, now, booking, out = breaker(), 0.0, 0, []
    for what, passed in steps:
        now += passed
        if what == "book":
            if made.allows(now):
                booking += 1
                made.booked(booking, now)
                out.append(booking)
        elif out:
            ended = out.pop(0)
            match what:
                case "ok":
                    made.succeeded()
                case "fail":
                    made.failed(ended, now)
                case _:
                    made.ended(ended)
        made.check()
    for ended in out:
        made.ended(ended)
    assert made.allows(now + 31.0)
