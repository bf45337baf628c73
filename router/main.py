"""`trieway router`: the process around a router. Listens, says when it does, drains at SIGTERM or Ctrl-C.

Keeps true: nothing beyond loopback without keys; the process never imports torch, numpy or a tokenizer; a second signal
ends it at once. Does not know routing (assembly.py puts it together).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from trieway.router.assembly import Router, Secrets
from trieway.router.discovery import discovery_of
from trieway.router.protocol_plane import HotProtocol
from trieway.router.registry import parse_url
from trieway.serving import headers as names
from trieway.serving.auth import check_bind
from trieway.serving.config import ConfigError, RouterConfig
from trieway.serving.errors import BadRequest
from trieway.serving.logs import setup_logging
from trieway.serving.otlp import tracing
from trieway.serving.protocol import BoundedProtocol
from trieway.serving.tracing import Tracer

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Longer than most clients keep an idle connection: they let go first."""


def run_router(config: RouterConfig) -> int:
    """Serves until a signal; returns the exit code. Raises ConfigError for what the user got wrong."""
    secrets = Secrets.load(config)
    check_bind(config.host, secrets.ring, allow_open=config.allow_open, published_secret=secrets.key.published)
    _check_urls(config.workers)
    with listen(config.host, config.port, reuse_port=config.reuse_port) as listening:
        setup_logging(config.log_level, config.log_format, process="router")
        logging.getLogger("uvicorn.error").addFilter(_no_cancels)
        with tracing(config, "router") as tracer, asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config, secrets, listening, tracer))
    return 0


def _no_cancels(record: logging.LogRecord) -> bool:
    """uvicorn logs a traceback for each request that the end of the process cancels; that is no error."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


async def serve(
    config: RouterConfig,
    secrets: Secrets,
    listening: socket.socket,
    tracer: Tracer | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serves on `listening` until a signal. `ready` gets one line once connections are taken. Raises ConfigError."""
    router = Router(config, secrets, discovery_of(config), tracer)
    own = listen(config.host, 0) if config.own_port else None
    # What was made at start-up lives for ever: the collector need not walk it again.
    gc.freeze()
    try:
        if config.ready_wait_s:
            # On a shared port, connections come from the first moment: know the workers before.
            await router.wait_ready(config.ready_wait_s)
        server = Server(router, config, ready_line(listening, own), ready)
        await server.serve(sockets=[listening] if own is None else [listening, own])
    finally:
        await router.close()
        if own is not None:
            own.close()


class Server(uvicorn.Server):
    """uvicorn with our settings; signals end it with exit code 0, and it says when it is listening."""

    def __init__(self, router: Router, config: RouterConfig, line: str, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                router.app,
                http=_protocol(router, config),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=[("server", names.SERVER_ROUTER)],
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(config.drain_timeout_s),
            )
        )
        self._line = line
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, then says so."""
        await super().startup(sockets)
        self._ready(self._line)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal drains, the second ends at once. (uvicorn's own way raises the signal again at the end.)"""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _protocol(router: Router, config: RouterConfig) -> Any:
    """What makes uvicorn's protocol for a new connection."""
    if config.data_plane == "asgi":
        return BoundedProtocol
    return functools.partial(HotProtocol, hot=router.dispatcher, body_max_bytes=config.body_max_bytes)


def ready_line(listening: socket.socket, own: socket.socket | None = None) -> str:
    """What the router prints once it listens."""
    line = f"trieway router ready on {_url(listening)}"
    return line if own is None else f"{line} (own port {_url(own)})"


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A bound socket, not yet listening: a shared port brings it nothing before. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port") from None
    return listening


def _check_urls(urls: tuple[str, ...]) -> None:
    for url in urls:
        try:
            parse_url(url)
        except BadRequest as error:
            raise ConfigError(f"--worker {url}: {error.message}") from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
