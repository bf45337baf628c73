"""Work for one HTTP answer, ended when its client goes away.

Keeps true: the work is over (done or cancelled, its clean-up run) when `until_gone` returns or raises. Does not know
what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from trieway.serving.http import ClientGone, Message, Receive, Send

T = TypeVar("T")


class Sent:
    """A `send` that remembers whether the answer has begun, and with which status (499: the client went first)."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.status = 499

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
        await self._send(message)


async def until_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Runs `work` until it is done or the client goes away, which cancels it.

    Raises:
        ClientGone: the client went first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
