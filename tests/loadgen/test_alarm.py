"""The fine timer, with timerfd and without."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import monotonic

import pytest

from trieway.loadgen.client import alarm as module
from trieway.loadgen.client.alarm import Alarm


@pytest.fixture(params=["timerfd", "the loop's timers"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "timerfd":
        monkeypatch.setattr(module, "_library", lambda: None)
    elif module._library() is None:
        pytest.skip("no timerfd here")


def rings(work: Callable[[Alarm], None], *, wait_s: float = 0.05) -> list[float]:
    heard: list[float] = []

    async def main() -> None:
        alarm = Alarm(asyncio.get_running_loop(), lambda: heard.append(monotonic()))
        try:
            work(alarm)
            end = monotonic() + wait_s
            while monotonic() < end:  # noqa: ASYNC110 - whether it rings is the question
                await asyncio.sleep(0.005)
        finally:
            alarm.close()

    asyncio.run(main())
    return heard


def test_it_rings_once_and_never_early() -> None:
    at = monotonic() + 0.02
    (heard,) = rings(lambda alarm: alarm.set(at))
    assert heard >= at


def test_what_has_passed_rings_at_once() -> None:
    assert len(rings(lambda alarm: alarm.set(monotonic() - 5))) == 1
    assert len(rings(lambda alarm: alarm.set(-1.0))) == 1


def test_a_later_setting_replaces_the_earlier() -> None:
    at = monotonic() + 0.03

    def twice(alarm: Alarm) -> None:
        alarm.set(monotonic() + 0.001)
        alarm.set(at)

    (heard,) = rings(twice, wait_s=0.08)
    assert heard >= at


def test_a_cancelled_one_does_not_ring() -> None:
    def cancelled(alarm: Alarm) -> None:
        alarm.set(monotonic())
        alarm.cancel()
        assert not alarm.armed

    assert rings(cancelled) == []


def test_it_can_be_set_again_from_its_own_ring() -> None:
    heard = []

    async def main() -> None:
        done = asyncio.Event()

        def ring() -> None:
            heard.append(monotonic())
            if len(heard) < 5:
                alarm.set(monotonic() + 0.001)
            else:
                done.set()

        alarm = Alarm(asyncio.get_running_loop(), ring)
        alarm.set(monotonic())
        await done.wait()
        alarm.close()

    asyncio.run(main())
    assert len(heard) == 5


def test_its_file_is_given_back() -> None:
    before = set(os.listdir("/proc/self/fd"))
    rings(lambda alarm: alarm.set(monotonic() + 9), wait_s=0.0)
    assert set(os.listdir("/proc/self/fd")) <= before
