"""Streams: whole and in order; cut and healed; and what mishaps do to the frail ones."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from trieway.loadgen.sim.clock import Timeline
from trieway.loadgen.sim.config import NetworkSetup
from trieway.loadgen.sim.network import Network, Stream


def network(**settings: float) -> Network:
    return Network(Timeline(), NetworkSetup(**settings), random.Random(5))


def drain(net: Network) -> None:
    while net.timeline.step():
        pass


def test_a_stream_is_whole_and_in_order() -> None:
    net = network(jitter_s=0.1)
    seen: list[int] = []
    stream = Stream(net, "r", "w")
    for number in range(200):
        stream.send(seen.append, number)
    drain(net)
    assert seen == list(range(200))


def test_over_a_cut_link_nothing_passes_until_it_is_healed() -> None:
    net = network()
    seen: list[tuple[int, float]] = []
    stream = Stream(net, "r", "w")
    other = Stream(net, "r", "x")
    net.timeline.at(1.0, net.cut, "w", "r")
    net.timeline.at(5.0, net.heal, "r", "w")
    for number in range(6):
        net.timeline.at(float(number), stream.send, lambda n: seen.append((n, net.timeline.now)), number)
        net.timeline.at(float(number), other.send, lambda n: seen.append((n + 100, net.timeline.now)), number)
    drain(net)
    mine = [(number, int(at)) for number, at in seen if number < 100]
    assert mine == [(0, 0), (1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert [int(at) for number, at in seen if number >= 100] == list(range(6)), "another link is not concerned"
    assert not net.is_cut("r", "w")


def test_nothing_of_a_closed_stream_arrives() -> None:
    net = network()
    stream = Stream(net, "r", "w")
    stream.send(pytest.fail, "it arrived")
    stream.close()
    net.cut("r", "w")
    other = Stream(net, "r", "w")
    other.send(pytest.fail, "it arrived")
    net.timeline.at(1.0, other.close)
    net.timeline.at(2.0, net.heal, "r", "w")
    drain(net)


def test_mishaps_befall_frail_streams_alone_and_end_with_the_healing() -> None:
    net = network(loss=0.2, duplicate=0.2, reorder=0.2)
    frail: list[int] = []
    firm: list[int] = []
    streams = Stream(net, "r", "w", frail=True), Stream(net, "r", "w")
    for number in range(300):
        streams[0].send(frail.append, number)
        streams[1].send(firm.append, number)
    drain(net)
    assert firm == list(range(300))
    counts = Counter(frail)
    assert 30 < 300 - len(counts) < 100, "some are lost"
    assert 20 < sum(count > 1 for count in counts.values()) < 90, "some come twice"
    assert sum(one > other for one, other in pairwise(frail)) > 20, "some are overtaken"
    net.heal_all()
    frail.clear()
    for number in range(300):
        streams[0].send(frail.append, number)
    drain(net)
    assert frail == list(range(300))


def test_delays_are_as_set() -> None:
    assert network(delay_s=0.5, jitter_s=0.0).delay() == 0.5
    net = network(delay_s=0.1, jitter_s=0.2)
    delays = [net.delay() for _ in range(2000)]
    assert min(delays) >= 0.1
    assert sum(delays) / 2000 == pytest.approx(0.3, rel=0.1)
