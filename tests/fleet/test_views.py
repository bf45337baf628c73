"""The tree and the explanation, as tables."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fleet.conftest import StandInServer
from trieway.fleet.errors import CommandError
from trieway.fleet.explain_view import explain_text, fetch_explanation
from trieway.fleet.options import Access
from trieway.fleet.tree_view import fetch_tree, tree_text

WORKERS = {
    "127.0.0.1:8002": {"blocks": 5, "drift_blocks": None, "epoch": 18, "approximate": True, "group": None},
    "127.0.0.1:8001": {"blocks": 1234, "drift_blocks": 0, "epoch": 17, "approximate": False, "group": "g" * 40},
}


def test_the_summary_is_read_as_tables() -> None:
    text = tree_text({"nodes": 1200, "blocks": 1239, "bytes": 98765, "workers": WORKERS})
    assert "distinct blocks" in text
    assert "98,765" in text
    assert "speculations" not in text
    first, second = text.splitlines()[-2:]
    assert first.split() == ["127.0.0.1:8001", "1,234", "17", "0", "no", "g" * 12]
    assert second.split() == ["127.0.0.1:8002", "5", "18", "-", "yes", "-"]


def test_a_summary_one_level_down_is_found_too() -> None:
    text = tree_text({"summary": {"nodes": 3, "workers": WORKERS}, "speculations": 2})
    assert "requests on their way, counted on      2" in text
    assert "127.0.0.1:8001" in text


def test_a_router_without_workers() -> None:
    assert tree_text({"nodes": 0, "workers": {}}).endswith("no worker is known yet")


def test_branches_are_indented_with_what_is_hidden() -> None:
    leaf = {"hash": "b" * 16, "blocks": 2, "usable": 48, "workers": ["w1"], "forks": 3, "children": []}
    root = {"hash": "a" * 16, "blocks": 1, "usable": 16, "workers": ["w0", "w1"], "forks": 1, "children": [leaf]}
    text = tree_text({"workers": WORKERS, "dump": {"group-1": [root], "group-2": []}})
    assert text.splitlines()[-5:] == [
        "group group-1: branches as first block, blocks, reusable tokens, workers",
        f"  {'a' * 16}  1  16  w0 w1",
        f"    {'b' * 16}  2  48  w1  (+3 more below)",
        "group group-2: branches as first block, blocks, reusable tokens, workers",
        "  (nothing held)",
    ]


def test_the_tree_is_asked_for_with_its_depth(server: StandInServer) -> None:
    server.canned["/tree"] = (200, {"nodes": 1})
    server.canned["/tree?depth=3"] = (200, {"nodes": 2})
    access = Access(url=server.url)
    assert asyncio.run(fetch_tree(access, None)) == {"nodes": 1}
    assert asyncio.run(fetch_tree(access, 3)) == {"nodes": 2}
    server.canned["/tree"] = (401, {"error": {"message": "the admin key is needed"}})
    with pytest.raises(CommandError, match="the admin key is needed; give a key with --key-file"):
        asyncio.run(fetch_tree(access, None))


def row(worker: str, cost_ms: float, cached: int, **change: Any) -> dict[str, Any]:
    return {
        "worker": worker,
        "matched_tokens": {"device": cached, "host": 0, "external": 0},
        "cached_tokens": cached,
        "uncached_tokens": 1000 - cached,
        "queue_ms": 1.0,
        "prefill_ms": cost_ms - 1,
        "reload_ms": 0.0,
        "interference_ms": 0.0,
        "decode_ms": 0.0,
        "work_ms": 0.0,
        "displaced_ms": 0.0,
        "spread_ms": 0.0,
        "copied_ms": 0.0,
        "cost_ms": cost_ms,
        "error_ms": 2.5,
        "probability": 1.0 if cached else 0.0,
    } | change


def explanation(**change: Any) -> dict[str, Any]:
    choice = {"worker": "w1", "reason": "prefix", "predicted_tokens": 900, "predicted_ttft_ms": 51.0}
    rows = [row("w1", 51.0, 900), row("w0", 412.0, 0)]
    return {"model": "m", "prompt_tokens": 1000, "blocks": 80, "choice": choice, "workers": rows} | change


def test_an_explanation_shows_costs_and_the_choice() -> None:
    lines = explain_text(explanation()).splitlines()
    assert lines[0] == "model m, about 1,000 prompt tokens, 80 whole blocks"
    assert lines[4].split() == ["w1", "900", "900", "100", "1.0", "50.0", *["0.0"] * 7, "51.0", "2.5", "100%"]
    assert lines[-1].startswith("goes to w1: it holds the longest useful prefix")
    assert lines[-1].endswith("(900 tokens reused, first token in 51.0 ms)")
    assert "host" not in lines[2], "tiers that nobody uses take no room"


def test_tiers_in_use_are_shown() -> None:
    rows = [row("w1", 51.0, 900, matched_tokens={"device": 0, "host": 900, "external": 0})]
    assert "held (host)" in explain_text(explanation(workers=rows))


def test_a_policys_own_name_is_a_reason_too() -> None:
    choice = explanation()["choice"] | {"reason": "round_robin"}
    assert "by the policy round_robin" in explain_text(explanation(choice=choice))


def test_nobody_can_take_it() -> None:
    text = explain_text(explanation(choice=None, rejected={"reason": "queues_full"}, workers=[]))
    assert text.endswith("nobody can take it: queues full")


@pytest.mark.parametrize("chat", [False, True])
def test_a_prompt_is_asked_about_as_text_or_chat(server: StandInServer, chat: bool) -> None:
    server.canned["/explain"] = (200, explanation())
    found = asyncio.run(fetch_explanation(Access(url=server.url), None, "why?", chat=chat))
    assert found == explanation()
    ((path, body),) = server.bodies
    assert path == "/explain"
    assert body["model"] == "stand-in"
    assert body.get("messages") == ([{"role": "user", "content": "why?"}] if chat else None)
    assert body.get("prompt") == (None if chat else "why?")
