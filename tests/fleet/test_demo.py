"""The demo against a stand-in server: what it sends, and the table it prints."""

from __future__ import annotations

import asyncio
import io
import itertools

import pytest

from tests.fleet.conftest import StandInServer
from trieway.fleet.client import Streamed
from trieway.fleet.console import Console
from trieway.fleet.demo import Step, demo, report
from trieway.fleet.errors import CommandError
from trieway.fleet.options import Access


def run(server: StandInServer, *, seed: int | None = None, tokens: int = 1000) -> str:
    return asyncio.run(demo(Access(url=server.url), None, tokens, seed, Console(io.StringIO())))


def chats(server: StandInServer) -> list[list[dict[str, str]]]:
    return [body["messages"] for path, body in server.bodies if path == "/v1/chat/completions"]


def test_two_clients_share_a_long_prefix_then_chat(server: StandInServer) -> None:
    text = run(server)
    hello, cold, warm, *turns = chats(server)
    assert len(hello) == 1
    assert cold[0] == warm[0]
    assert len(cold[0]["content"]) // 5 >= 1000, "the shared prefix is as long as was asked for"
    assert cold[1] != warm[1]
    assert [len(turn) for turn in turns] == [2, 4, 6, 8]
    assert turns[1][2] == {"role": "assistant", "content": "a b c a b c a b c a b c a b c a "}
    for earlier, later in itertools.pairwise(turns):
        assert later[: len(earlier)] == earlier, "a chat only grows"
    lines = text.splitlines()
    assert lines[0].split() == ["request", "prompt", "tokens", "cached", "predicted", "first", "token", "worker"]
    assert [line[:19].strip() for line in lines[2:8]] == [
        "cold",
        "warm, another clien",
        *(f"chat, turn {number}" for number in range(1, 5)),
    ]
    assert "prompt tokens came from the cache. The chat stayed on one worker." in lines[-1]


def test_the_prefix_is_new_in_every_run_unless_a_seed_is_given(server: StandInServer) -> None:
    run(server)
    run(server)
    run(server, seed=5)
    run(server, seed=5)
    prefixes = [chat[0]["content"] for chat in chats(server) if chat[0]["role"] == "system"]
    assert len(set(prefixes)) == 3


def test_a_server_without_tokenize_gets_a_guess(server: StandInServer) -> None:
    server.canned["/tokenize"] = (404, {"error": {"message": "no"}})
    run(server, tokens=200)
    assert len(chats(server)[1][0]["content"]) > 200 * 4


def test_a_refused_request_ends_the_demo(server: StandInServer) -> None:
    server.canned["/v1/chat/completions"] = (503, {"error": {"message": "no worker"}})
    with pytest.raises(CommandError, match="answered 503: no worker"):
        run(server)


def step(title: str, first_s: float, cached: int | None, worker: str | None) -> Step:
    answer = Streamed(
        text="x", arrivals_s=(first_s,), sent_at_s=0.0, prompt_tokens=1010, completion_tokens=1,
        cached_tokens=cached, predicted_tokens=None, worker=worker,
    )  # fmt: skip
    return Step(title=title, answer=answer)


def test_the_report_reads_its_own_table() -> None:
    text = report([step("cold", 0.8, 0, "w1"), step("warm", 0.05, 1000, "w1"), step("chat", 0.04, 1000, "w2")])
    assert "1,010" in text
    assert "800 ms" in text
    assert "16.0 times sooner: 800 ms cold, 50 ms warm. 1,000 of 1,010 prompt tokens came from the cache." in text
    assert text.endswith("The chat stayed on one worker.")


def test_the_report_says_so_where_nothing_was_gained() -> None:
    text = report([step("cold", 0.4, None, None), step("warm", 0.8, None, None), step("chat", 0.4, None, None)])
    assert text.endswith("2.0 times later: 400 ms cold, 800 ms warm.")


def test_a_chat_that_wandered_is_told() -> None:
    steps = [step("cold", 1, 0, "w0"), step("warm", 1, 0, "w0"), step("t1", 1, 0, "w0"), step("t2", 1, 0, "w1")]
    assert report(steps).endswith("The chat used 2 workers.")
