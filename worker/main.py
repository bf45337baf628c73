"""The worker's process: loads the model, serves, and ends cleanly.

Keeps true: SIGTERM and SIGINT stop accepting, let running answers finish (at most `drain_timeout_s`; then they end with
an error event) and end with exit code 0; a second signal ends at once; an engine that cannot go on ends the process
with exit code 1 and one line that says why. The port is taken before the model loads, so that a clash shows at once,
and answers only when ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn

from trieway.meta_tree.chain import FleetKey
from trieway.serving.auth import KeyRing, check_bind, read_fleet_secret
from trieway.serving.chat_template import ChatTemplate, TemplateInvalid
from trieway.serving.config import ConfigError, WorkerConfig
from trieway.serving.headers import SERVER_WORKER
from trieway.serving.logs import setup_logging
from trieway.serving.otlp import tracing
from trieway.serving.protocol import BoundedProtocol
from trieway.worker.assembly import Built, Model, build
from trieway.worker.models.catalog import resolve, weight_files
from trieway.worker.runner import ModelRunner
from trieway.worker.service import Service
from trieway.worker.tokenizer import Tokenizer
from trieway.worker.weights import weights_digest

log = logging.getLogger(__name__)

EXIT_DONE, EXIT_FAILED = 0, 1
GIL_SWITCH_S = 0.001
"""The engine's thread gives way to the event loop this often, so that probes answer while it works in Python."""
CLOSE_TIMEOUT_S = 5.0
"""Longest wait for connections to close once nothing runs any more."""

KEEP_ALIVE_S = 75
"""Longer than a router keeps an idle connection: it closes first, and no request meets a closed one."""


def run_worker(config: WorkerConfig, load: Callable[[WorkerConfig], Model] | None = None) -> int:
    """Serves until a signal. Returns the exit code. `load` gives the model, by default the one that `config` names.

    Raises:
        ConfigError: the configuration cannot be used.
        ModelError: the model cannot be loaded.
    """
    setup_logging(config.log_level, config.log_format, process="worker")
    ring = KeyRing.from_files(config.api_keys_file, config.admin_key_file)
    key = FleetKey.from_secret(read_fleet_secret(config.fleet_secret_file))
    check_bind(config.host, ring, allow_open=config.allow_open, published_secret=key.published)
    if key.published and not ring.open:
        log.warning(
            "API keys without fleet_secret_file: routers are served only where clients show a key to the worker"
        )
    with _bind(config.host, config.port) as listener, tracing(config, "worker") as tracer:
        model = (load or load_model)(config)
        # Milliseconds: a restart within one would need a faster model load than there is.
        built = build(config, model, key=key, ring=ring, epoch=time.time_ns() // 1_000_000, tracer=tracer)
        sys.setswitchinterval(GIL_SWITCH_S)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(serve(config, built, listener))


def load_model(config: WorkerConfig) -> Model:
    """Loads tokenizer, template and weights as the configuration names them.

    Raises:
        ConfigError, ModelError: what is wrong and what to do.
    """
    began = time.monotonic()
    model_dir = resolve(config.model, config.cache_dir, progress=lambda line: log.info("%s", line))
    tokenizer = Tokenizer(model_dir)
    template = _template(config, tokenizer)
    runner = ModelRunner(
        model_dir,
        kv_tokens=config.kv_tokens,
        page_size=config.page_size,
        device=config.device,
        dtype=config.dtype,
    )
    runner.warm_up()
    log.info("model %s loaded on %s in %.1f s", config.model, runner.device, time.monotonic() - began)
    name = config.served_model_name or (Path(config.model).name if "/" in config.model else config.model)
    return Model(
        name=name,
        aliases=(config.model,) if config.model != name and "/" not in config.model else (),
        codec=tokenizer,
        runner=runner,
        template=template,
        weights_digest=weights_digest(weight_files(model_dir)),
        context_tokens=runner.config.context_tokens,
    )


def _template(config: WorkerConfig, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = tokenizer.chat_template
    if config.chat_template is not None:
        try:
            source = config.chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"chat_template: {config.chat_template} cannot be read ({error})") from None
    if source is None:
        return None
    try:
        return ChatTemplate(source, tokenizer.bos_token, tokenizer.eos_token)
    except TemplateInvalid as error:
        raise ConfigError(f"chat_template: {error}; give a working one with --chat-template FILE") from None


async def serve(config: WorkerConfig, built: Built, listener: socket.socket) -> int:
    """Serves on a bound socket until a signal or a broken engine."""
    service = built.service
    server = make_server(config, built)
    service.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stop = _on_signals()
    try:
        await _first(server.listening.wait(), serving)
        if not server.listening.is_set():
            await serving
        host, port = listener.getsockname()[:2]
        print(f"trieway worker ready on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        await _first(stop.first.wait(), service.fatal.wait(), serving)
        return await _end(config, service, server, serving, stop)
    finally:
        server.should_exit = server.force_exit = True
        await service.stop()


async def _end(
    config: WorkerConfig, service: Service, server: Server, serving: asyncio.Task[None], stop: _Signals
) -> int:
    if service.fatal.is_set():
        print(f"trieway: error: the engine failed: {service.fatal_reason}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    server.close_listeners()
    await _first(service.drain(config.drain_timeout_s), stop.second.wait(), service.fatal.wait())
    # What has not finished in its time ends with an error that its client can read, before the connections do.
    await service.stop()
    if stop.second.is_set():
        server.force_exit = True
    server.should_exit = True
    await asyncio.gather(serving, return_exceptions=True)
    return EXIT_FAILED if service.fatal.is_set() else EXIT_DONE


def make_server(config: WorkerConfig, built: Built) -> Server:
    """The HTTP server of a worker, not yet started."""
    return Server(
        uvicorn.Config(
            built.app,
            http=BoundedProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[("server", SERVER_WORKER)],
            timeout_graceful_shutdown=int(CLOSE_TIMEOUT_S),
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=config.running_max + config.waiting_max,
        )
    )


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: they would end the process by the signal, not with exit code 0."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def close_listeners(self) -> None:
        """New connections are refused; open ones go on."""
        for server in self.servers:
            server.close()


class _Signals:
    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def hear(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def _on_signals() -> _Signals:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, signals.hear)
    return signals


async def _first(*waits: Any) -> None:
    """Returns when the first of them is done; tasks given stay, coroutines are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        own = [task for task, wait in zip(tasks, waits, strict=True) if task is not wait]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"host {host}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from None
    listener.setblocking(False)
    return listener


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
