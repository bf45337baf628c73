"""More and fewer workers under load, by hand and by our policy: no request fails, prefixes go where they are wanted."""

from __future__ import annotations

from tests.ray.cluster import NODES, until
from tests.ray.fleet import Fleet, cached_tokens, complete
from tests.ray.load import under_load

BUSY = 12
"""Clients that one worker does not carry well, and two do not either: it runs 8 well at once."""
HOT = "All of these prompts begin with the same words, over and over. " * 16
CALM_S = 3


def test_scaling_by_hand_under_load_fails_no_request(fleet: Fleet) -> None:
    fleet.up("--workers", "1", labelled=True)
    until(lambda: fleet.serves(1), 60, "one worker serves")
    # Few prompts over and over, here and below: what a worker computes for others within a minute is bounded, and
    # whoever stays shall still take what the next test's leaver gives.
    with under_load(fleet.routers, varied=False) as load:
        fleet.up("--workers", "3", labelled=True)
        until(lambda: fleet.serves(3), 60, "three workers serve")
        assert [one["node"] for one in fleet.replicas("worker").values()] == [NODES[0]] * 3, "the label's node"
        until(lambda: len(load.tally.first_cached) == 3, 60, "the newcomers take requests")
        fleet.up("--workers", "1", labelled=True)
        until(lambda: fleet.serves(1), 60, "one worker is left")
        done = load.tally.done
        until(lambda: load.tally.done > done + 5, 60, "it serves on")


def test_the_policy_follows_the_load_and_fails_no_request(fleet: Fleet) -> None:
    until(lambda: fleet.serves(1), 60, "one worker serves")
    before = fleet.workers()
    told = fleet.up(*("--workers-max", "2", "--scale-interval-s", "0.5", "--scale-calm-s", str(CALM_S)), labelled=True)
    assert "2 workers" not in told, "without load nothing grows"
    assert fleet.workers() == before
    with under_load(fleet.routers, clients=BUSY, prefix=HOT, varied=False) as load:
        until(lambda: fleet.serves(2), 180, "the load brings a second worker")
        (newcomer,) = set(fleet.workers()) - set(before)
        name = newcomer.removeprefix("http://")
        until(lambda: name in load.tally.first_cached, 60, "it takes requests")
    prefix_tokens = cached_tokens(complete(before[0], HOT + "And again."))
    assert prefix_tokens > 150
    assert load.tally.first_cached[name] >= 0.9 * prefix_tokens, "it was warm before its first request"

    private = {url: f"Only the worker at {url} was ever told what follows here. " * 12 for url in fleet.workers()}
    for url, text in private.items():
        complete(url, text)
    with under_load(fleet.routers, clients=1, pause_s=0.5, varied=False) as load:
        until(lambda: fleet.serves(1), 120, "calm lets one go")
        done = load.tally.done
        until(lambda: load.tally.done > done + 3, 60, "the other serves on")
    (stayed,) = fleet.workers()
    (left,) = private.keys() - {stayed}
    answer = complete(stayed, private[left] + "What was it?")
    assert cached_tokens(answer) >= 0.8 * answer["usage"]["prompt_tokens"], "it handed its prefixes on"
