"""How commands speak to servers: URLs as people type them, keys from files, one-line errors, timed streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fleet.conftest import StandInServer
from trieway.fleet.client import (
    Streamed,
    ask,
    base_url,
    connect,
    explain_answer,
    is_loopback,
    model_of,
    read_key,
    stream,
)
from trieway.fleet.errors import CommandError, UsageError
from trieway.fleet.ports import any_free


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("https://models.example/base/v1?x=1#y", "https://models.example/base"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls_as_people_type_them(typed: str, url: str) -> None:
    assert base_url(typed) == url


@pytest.mark.parametrize("typed", ["", "ftp://x", "http://", "http://a:b:c", "file:///etc"])
def test_what_is_no_url(typed: str) -> None:
    with pytest.raises(UsageError):
        base_url(typed)


def test_loopback_is_known_by_name_and_address() -> None:
    assert is_loopback("http://localhost:1")
    assert is_loopback("http://127.3.2.1:1")
    assert is_loopback("http://[::1]:1")
    assert not is_loopback("http://10.0.0.1:1")
    assert not is_loopback("http://models.example")


def test_a_key_is_the_first_line_that_is_no_comment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# mine\n\n  secret-1 \nsecret-2\n")
    assert read_key(file) == {"authorization": "Bearer secret-1"}
    assert read_key(None) == {}


def test_key_files_that_do_not_help(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for file, complaint in ((empty, "holds no key"), (binary, "not text"), (tmp_path / "none", "No such file")):
        with pytest.raises(UsageError, match=complaint):
            read_key(file)


def test_error_answers_become_one_line() -> None:
    body = b'{"error": {"message": "no\\n such   model", "type": "x"}}'
    assert explain_answer("/v1/x", 404, body) == "/v1/x answered 404: no such model"
    assert (
        explain_answer("/tree", 403, b"<html>no</html>")
        == "/tree answered 403: <html>no</html>; give a key with --key-file"
    )
    assert len(explain_answer("/x", 500, b"y" * 10_000)) < 400


def test_nothing_there_is_one_line_that_says_what_to_do() -> None:
    async def run() -> None:
        async with connect(f"http://127.0.0.1:{any_free('127.0.0.1')}") as client:
            await ask(client, "GET", "/v1/models")

    with pytest.raises(
        CommandError, match=r"nothing answers at http://127\.0\.0\.1:\d+; start a fleet with `trieway up`"
    ):
        asyncio.run(run())


def test_the_first_model_served_is_asked_for_unless_one_is_wanted(server: StandInServer) -> None:
    async def run() -> tuple[str, str]:
        async with connect(server.url) as client:
            return await model_of(client, None), await model_of(client, "mine")

    assert asyncio.run(run()) == ("stand-in", "mine")


def test_no_model_served(server: StandInServer) -> None:
    server.canned["/v1/models"] = (200, {"data": []})

    async def run() -> None:
        async with connect(server.url) as client:
            await model_of(client, None)

    with pytest.raises(CommandError, match="serves no model yet"):
        asyncio.run(run())


def test_an_answer_that_is_no_json(server: StandInServer) -> None:
    server.canned["/tree"] = (200, b"<html>")

    async def run() -> None:
        async with connect(server.url) as client:
            await ask(client, "GET", "/tree")

    with pytest.raises(CommandError, match="answered no JSON"):
        asyncio.run(run())


def streamed(server: StandInServer, path: str, key_file: Path | None = None) -> Streamed:
    async def run() -> Streamed:
        async with connect(server.url, key_file) as client:
            prompt = {"messages": [{"role": "user", "content": "x" * 50}]} if "chat" in path else {"prompt": "x" * 50}
            return await stream(client, path, {"model": "m", "max_tokens": 4, **prompt})

    return asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_is_timed_and_its_usage_read(server: StandInServer, path: str) -> None:
    answer = streamed(server, path)
    assert answer.text == "a b c a "
    assert len(answer.arrivals_s) == 4
    assert list(answer.arrivals_s) == sorted(answer.arrivals_s)
    assert answer.first_s == answer.arrivals_s[0] > 0
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (10, 4, 0)
    assert (answer.worker, answer.predicted_tokens) == ("w0", 7)
    assert server.bodies[-1][1]["stream_options"] == {"include_usage": True}


def test_a_server_that_does_not_tell_cached_tokens(server: StandInServer) -> None:
    server.usage_reported = False
    assert streamed(server, "/v1/completions").cached_tokens is None


def test_the_key_is_shown_to_the_server(server: StandInServer, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k-1\n")
    streamed(server, "/v1/completions", file)
    assert server.authorizations == ["Bearer k-1"]


def test_a_stream_that_breaks_is_an_error(server: StandInServer) -> None:
    server.break_streams = True
    with pytest.raises(CommandError, match="the stream broke: worker died"):
        streamed(server, "/v1/completions")


def test_a_refused_stream_is_an_error(server: StandInServer) -> None:
    server.canned["/v1/completions"] = (429, {"error": {"message": "queues are full"}})
    with pytest.raises(CommandError, match="answered 429: queues are full"):
        streamed(server, "/v1/completions")
