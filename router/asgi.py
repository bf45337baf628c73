"""The router as one raw ASGI app: completions go to the hot path, everything else to the control plane.

Keeps true: a body over the bound is refused without being kept; a client that goes away cancels its request, also
while no byte of the answer has come; the hot path costs no framework. Does not know what either plane does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from trieway.router.hot_path import HOT_PATHS, HeaderList, HotPath, HotRequest
from trieway.serving.errors import ApiError
from trieway.serving.http import ClientGone, Receive, Scope, Send, header_map, read_body, send_error

App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiResponder:
    """Writes a hot path's answer as ASGI messages."""

    __slots__ = ("_send", "finished", "gone")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.finished = False
        self.gone = False
        """Whether the client has hung up: nothing is written any more."""

    async def start(self, status: int, headers: HeaderList) -> None:
        if self.gone:
            return
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        # Set first: an answered request also reads as a disconnect, which must cancel nobody.
        self.finished = self.finished or last
        if self.gone:
            return
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


class RouterApp:
    """`hot` serves POSTs to the completions paths; `control` all else, the lifespan too."""

    def __init__(self, hot: HotPath, control: App, *, body_max_bytes: int) -> None:
        self._hot = hot
        self._control = control
        self._body_max_bytes = body_max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in HOT_PATHS:
            await self._control(scope, receive, send)
            return
        out = AsgiResponder(send)
        try:
            body = await read_body(receive, header_map(scope), self._body_max_bytes)
        except ClientGone:
            return
        except ApiError as error:
            await send_error(send, error)
            return
        await _serve_until_gone(self._hot, _request(scope, body), out, receive)


def _request(scope: Scope, body: bytes) -> HotRequest:
    query: bytes = scope.get("query_string", b"")
    target = scope["path"] + (f"?{query.decode('latin-1')}" if query else "")
    return HotRequest(kind=HOT_PATHS[scope["path"]], target=target, headers=list(scope["headers"]), body=body)


async def _serve_until_gone(hot: HotPath, request: HotRequest, out: AsgiResponder, receive: Receive) -> None:
    """Runs the hot path in this task; one watcher cancels it when the client goes away."""
    task = asyncio.current_task()
    assert task is not None
    watch = _Watch(task, out)
    watcher = asyncio.ensure_future(watch.run(receive))
    try:
        await hot.serve(request, out)
    except asyncio.CancelledError:
        # Swallow our own cancel only; another one (shutdown) goes on.
        if not watch.fired or task.uncancel() > 0:
            raise
    finally:
        watcher.cancel()


class _Watch:
    """Cancels `task` when the client hangs up before its answer is whole."""

    __slots__ = ("_out", "_task", "fired")

    def __init__(self, task: asyncio.Task[Any], out: AsgiResponder) -> None:
        self._task = task
        self._out = out
        self.fired = False

    async def run(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._out.finished:
            self.fired = self._out.gone = True
            self._task.cancel()
