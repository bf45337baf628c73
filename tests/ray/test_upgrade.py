"""A rolling upgrade: every replica is replaced, and every stream that was in flight ends whole."""

from __future__ import annotations

from tests.ray.cluster import until
from tests.ray.fleet import Fleet
from tests.ray.load import Streams, under_load

STREAMS = 6
STREAM_TOKENS = 200


def test_a_rolling_upgrade_ends_no_stream(fleet: Fleet) -> None:
    fleet.bring_to(2)
    before, old = fleet.everyone(), {url.removeprefix("http://") for url in fleet.workers()}
    assert (len(before), len(old)) == (4, 2)
    streams = Streams(fleet.routers, count=STREAMS, max_tokens=STREAM_TOKENS)
    until(lambda: streams.in_flight == STREAMS, 60, "six streams are in flight")
    with under_load(fleet.routers, clients=1):
        fleet.up("--workers", "2", "--roll", "b")

        def replaced() -> bool:
            now = fleet.everyone()
            return len(now) == 4 and not now & before

        until(replaced, 120, "every replica is new", pause_s=1)
    ended = streams.stop(120)
    assert [one for one in ended if one.how != "whole"] == []
    assert len(ended) >= 2 * STREAMS
    of_old = [one for one in ended if one.worker in old]
    of_new = [one for one in ended if one.worker not in old]
    now = fleet.everyone()
    fleet.up("--workers", "2")
    assert fleet.everyone() == now, "the word stands: without a new one nothing is replaced"
    first_new = min(one.began for one in of_new)
    assert any(one.ended > first_new for one in of_old), "old workers end their streams while new ones begin theirs"
