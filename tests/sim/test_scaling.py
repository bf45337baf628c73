"""Scaling in simulation: what live sessions compute again when workers leave, what a newcomer and a returned worker are
given to do, what it costs everybody else, and that coming and going wears no cache out.

The full figures are marked `verify`; the instants' seeds were not used to choose anything by.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.sim.branches import branch
from tests.sim.scales import (
    Case,
    Grown,
    Saving,
    agents,
    chats,
    comes,
    computed,
    growths,
    mean,
    nobody,
    play_until,
    returns,
    saved,
    savings,
)
from trieway.loadgen.sim.fleet import Fleet
from trieway.loadgen.sim.scaling import Scaling
from trieway.worker.core.legacy import SHARE_OF_NEWCOMER, SHARE_OF_TAKER

INSTANTS = 20


# A future may be thrown away.


def test_a_branch_leaves_its_trunk_as_it_was() -> None:
    held = [1]

    def future() -> list[int]:
        held.append(2)
        return held

    assert branch(future) == [1, 2]
    assert held == [1]
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        branch(lambda: 1 // 0)


# Scale-in.


def told(name: str, found: Sequence[Saving]) -> float:
    share = saved(found)
    each = sorted(one.share for one in found)
    print(
        f"\n{name}: {share:.1%} fewer tokens computed again at {len(found)} instants"
        f" (single ones {each[0]:.0%} to {each[-1]:.0%}, median {each[len(each) // 2]:.0%});"
        f" first tokens after {mean([one.without_ttft_s for one in found]) * 1e3:.0f} ms without,"
        f" {mean([one.with_ttft_s for one in found]) * 1e3:.0f} ms with;"
        f" given {mean([one.given_tokens for one in found]):.0f} tokens;"
        f" meanwhile time between tokens x{mean([one.slower for one in found]):.3f}"
    )
    return share


def test_handing_prefixes_on_saves_what_live_sessions_compute() -> None:
    found = savings(chats(4, 16_384, 3.0, seconds=60.0), 2, 2, seed=3)
    assert saved(found) >= 0.25
    assert all(0 < one.given_tokens <= 2 * SHARE_OF_TAKER * 16_384 for one in found)


@pytest.mark.verify
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("serve_on", [True, False], ids=["hand over first", "drain at once"])
def test_scale_in_of_a_nearly_idle_fleet(serve_on: bool) -> None:
    found = savings(agents(8, 32_768, last_s=4500.0), 4, INSTANTS, seed=2026, serve_on=serve_on)
    assert told(f"agents, 8 -> 4, nearly idle{'' if serve_on else ', drained at once'}", found) >= 0.25


@pytest.mark.verify
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("serve_on", [True, False], ids=["hand over first", "drain at once"])
def test_scale_in_of_a_busy_fleet(serve_on: bool) -> None:
    """Ten times as fast as the trace. Whoever is drained at once saves less: who asked elsewhere before the prefixes
    came has computed them there."""
    found = savings(agents(8, 32_768, speed=10.0, last_s=3600.0), 4, INSTANTS, seed=2026, serve_on=serve_on)
    least = 0.25 if serve_on else 0.15
    assert told(f"agents, 8 -> 4, busy{'' if serve_on else ', drained at once'}", found) >= least
    assert mean([one.slower for one in found]) <= 1.02


@pytest.mark.verify
@pytest.mark.timeout(3000)
def test_scale_in_under_chats() -> None:
    found = savings(chats(8, 16_384, 6.0, seed=2026), 4, INSTANTS, seed=2026)
    assert told("chats, 8 -> 4", found) >= 0.25


# Scale-out. A newcomer's fair share is 1/n of the first hundred requests after routers heard of it.


def judged(name: str, case: Case, count: int, seed: int) -> tuple[list[Grown], float]:
    """What the newcomers were given, and the time between tokens against the fleet that stays as it is."""
    stays, cold, warm = growths(case, count, seed, [nobody, comes(case, warm=False), comes(case, warm=True)])
    fair = 1 / (case.workers + 1)
    slower = mean([one.gap_s for one in warm]) / mean([one.gap_s for one in stays])
    against_cold = mean([one.gap_s for one in warm]) / mean([one.gap_s for one in cold])
    shares = [one.share for one in warm]
    print(
        f"\n{name}, {case.workers} -> {case.workers + 1}, {count} instants: of the next 100 requests the newcomer has"
        f" {mean(shares):.1%} (fair {fair:.0%}; single instants {min(shares):.0%} to {max(shares):.0%}), the busiest"
        f" other {mean([one.busiest for one in warm]):.0%}; not warmed {mean([one.share for one in cold]):.1%};"
        f" time between tokens x{slower:.4f} against no newcomer, x{against_cold:.4f} against a cold one;"
        f" first token x{mean([one.ttft_s for one in warm]) / mean([one.ttft_s for one in stays]):.3f}; computed tokens"
        f" x{mean([one.computed_tokens for one in warm]) / mean([one.computed_tokens for one in stays]):.3f}"
    )
    return warm, slower


def is_fair(grown: Sequence[Grown], fair: float) -> bool:
    """The mean within a quarter of it; at no instant less than a fifth of it, nor more than two and a half times."""
    shares = [one.share for one in grown]
    return abs(mean(shares) / fair - 1) <= 0.25 and min(shares) >= fair / 5 and max(shares) <= 2.5 * fair


def test_a_warm_newcomer_takes_its_part_and_slows_nobody() -> None:
    """At two instants, where chance alone makes a half or twice the fair share; twenty are in the full figures."""
    grown, slower = judged("chats", chats(4, 32_768, 10.0, seconds=60.0), 2, seed=3)
    assert 0.1 <= mean([one.share for one in grown]) <= 0.4
    assert slower <= 1.02


@pytest.mark.verify
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ["nearly idle", "busy"])
def test_scale_out_under_agents(name: str) -> None:
    case = agents(4, 65_536, speed=1.0 if name == "nearly idle" else 10.0)
    grown, slower = judged(f"agents, {name}", case, INSTANTS, seed=2026)
    assert is_fair(grown, 1 / 5)
    assert slower <= 1.02


@pytest.mark.verify
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("workers", [2, 4, 12])
def test_scale_out_under_chats(workers: int) -> None:
    case = chats(workers, 32_768, 2.5 * workers, seed=2026)
    grown, slower = judged("chats", case, INSTANTS, seed=2026)
    assert is_fair(grown, 1 / (workers + 1))
    assert slower <= 1.02


def test_a_newcomer_is_given_its_share_and_told_of_when_it_has_it() -> None:
    case = chats(2, 8192, 4.0, seconds=30.0)
    fleet = case.fleet()
    play_until(fleet, 20.0)
    scaling, heard = Scaling(fleet), []
    newcomer = scaling.join(case.worker, then=lambda: heard.append(fleet.timeline.now))
    while not heard:
        assert all(newcomer.id not in router.followers for router in fleet.routers)
        fleet.timeline.step()
    assert 0 < scaling.given_tokens <= SHARE_OF_NEWCOMER * 8192 + 64
    assert all(newcomer.id in router.followers for router in fleet.routers)
    fleet.run()
    assert {one.status for one in fleet.records} == {"ok"}


# A worker that returns with an empty cache.


def back(name: str, case: Case, count: int, seed: int, down_s: float) -> list[Grown]:
    (grown,) = growths(case, count, seed, [returns(down_s)])
    print(
        f"\n{name}, 1 of {case.workers} back after {down_s:g} s, {count} instants: it has"
        f" {mean([one.share for one in grown]):.1%} of the next 100 requests,"
        f" {mean([one.firsts_share for one in grown]):.1%} of the sessions that begin (single instants"
        f" {min(one.firsts_share for one in grown):.0%} to {max(one.firsts_share for one in grown):.0%})"
    )
    return grown


@pytest.mark.verify
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("down_s", [5.0, 120.0])
def test_a_returned_worker_has_its_part_of_what_begins(down_s: float) -> None:
    """Not every new session, and not none. Those that are under way stay where their past is."""
    case = chats(4, 32_768, 10.0, seed=2026)
    grown = back("chats", case, INSTANTS, 2026, down_s)
    assert 0.15 <= mean([one.firsts_share for one in grown]) <= 0.4
    assert all(0 < one.firsts_share < 0.7 for one in grown)


# Coming and going.


def flapping(fleet: Fleet, case: Case, rounds: int, round_s: float, rng: random.Random) -> tuple[int, int]:
    """Every `round_s` a worker comes or, the next time, one leaves; (tokens computed for users, for each other)."""
    scaling = Scaling(fleet)
    for at in range(rounds):
        if at % 2:
            scaling.leave([rng.choice(sorted(fleet.workers))])
        else:
            scaling.join(case.worker)
        play_until(fleet, fleet.timeline.now + round_s)
    assert {one.status for one in fleet.records} == {"ok"}
    return computed(fleet.records), scaling.given_tokens


def steady(fleet: Fleet, seconds: float) -> int:
    play_until(fleet, fleet.timeline.now + seconds)
    return computed(fleet.records)


@pytest.mark.verify
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("round_s", [15.0, 60.0])
def test_coming_and_going_wears_no_cache_out(round_s: float) -> None:
    """A worker more, a worker less, again and again: hits stay, and what workers compute for each other is bounded."""
    case = chats(4, 32_768, 8.0, seed=2026)
    fleet = case.fleet()
    play_until(fleet, 60.0)
    before, prompts = computed(fleet.records), sum(one.prompt_tokens or 0 for one in fleet.records)
    rounds = round(240.0 / round_s)
    calm = branch(lambda: steady(fleet, rounds * round_s)) - before
    users, others = branch(lambda: flapping(fleet, case, rounds, round_s, random.Random(1)))
    print(
        f"\nchats, 4 <-> 5 every {round_s:g} s: users' prompts computed x{(users - before) / calm:.3f} against a steady"
        f" fleet of 4; {others} tokens computed for each other ({others / rounds:.0f} each time)"
    )
    assert prompts
    assert (users - before) / calm <= 1.5
