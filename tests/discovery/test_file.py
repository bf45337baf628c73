"""Workers named in a file that changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.router.harness import in_loop, until
from trieway.router.discovery import discovery_of
from trieway.router.file_discovery import File
from trieway.serving.config import ConfigError, RouterConfig


@asynccontextmanager
async def listening(path: Path) -> AsyncIterator[list[frozenset[str]]]:
    heard: list[frozenset[str]] = []

    async def listen() -> None:
        async for urls in File(path, poll_s=0.01).watch():
            heard.append(urls)

    task = asyncio.ensure_future(listen())
    try:
        yield heard
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


@in_loop
async def test_each_change_is_told(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    async with listening(path) as heard:
        replace(path, "http://a:1\n# a comment\n\nhttp://b:1 # another\n")
        await until(lambda: heard == [{"http://a:1", "http://b:1"}])
        replace(path, "http://b:1\n")
        await until(lambda: heard[-1] == {"http://b:1"})
        replace(path, "")
        await until(lambda: heard[-1] == frozenset())


@in_loop
async def test_a_file_that_is_gone_or_unreadable_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    async with listening(path) as heard:
        replace(path, "http://a:1\n")
        await until(lambda: heard)
        path.unlink()
        await asyncio.sleep(0.05)
        path.write_bytes(b"\xff\xfe")
        await asyncio.sleep(0.05)
        replace(path, "http://a:1\n")
        await asyncio.sleep(0.05)
        assert heard == [{"http://a:1"}]


def test_the_file_must_be_named() -> None:
    with pytest.raises(ConfigError, match="--workers-file"):
        discovery_of(RouterConfig(discover="file"))
