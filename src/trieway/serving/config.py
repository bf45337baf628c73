"""Every setting of the worker, the router and the embedded fleet, with its default and its bound's meaning.

Keeps true: each key is declared once, here; its flag (`--kv-tokens`), its environment name (`TRIEWAY_KV_TOKENS`) and
its key in a file (`kv_tokens`) follow from the field's name. Secrets are never values, only paths of files. Loading
and checking is config_load.py; argparse flags are config_flags.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MIB = 1024 * 1024

WorkerPolicy = Literal["lpm", "fcfs", "random"]
RouterPolicy = Literal["cache_aware", "longest_prefix", "least_loaded", "round_robin"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["plain", "json"]


class ConfigError(ValueError):
    """The user's configuration is wrong; the message is one line that says what to do. Exit code 2."""


def option(
    default: Any, help: str, *, least: float | None = None, most: float | None = None, flag: str | None = None
) -> Any:
    """A dataclass field with its help text, its range, and its flag where that is not the name with dashes."""
    return dataclasses.field(default=default, metadata={"help": help, "least": least, "most": most, "flag": flag})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """What both servers share."""

    host: str = option("127.0.0.1", "address to listen on; other than loopback needs keys or --allow-open")
    port: int = option(8000, "port to listen on; 0 takes a free one", least=0, most=65535)
    body_max_bytes: int = option(16 * MIB, "largest request body; larger ones get 413", least=1024)
    api_keys_file: Path | None = option(None, "file of API keys, one `key` or `tenant:key` a line")
    admin_key_file: Path | None = option(None, "file with the admin key")
    fleet_secret_file: Path | None = option(
        None, "file with the fleet's secret; without it the seed is a published one"
    )
    allow_open: bool = option(False, "listen beyond loopback without keys")
    log_level: LogLevel = option("info", "least severe lines to log")
    log_format: LogFormat = option("plain", "plain lines or JSON lines")
    drain_timeout_s: float = option(30.0, "longest wait for running requests at the end", least=0)
    seed: int | None = option(None, "seed of everything random, for repeatable runs")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig(ServerConfig):
    """One worker."""

    model: str = option("smollm2-135m", "a name from `trieway models`, a model directory, or a GGUF file")
    served_model_name: str | None = option(None, "the model's name in requests; default: the name it was asked for by")
    port: int = option(8100, "port to listen on; 0 takes a free one", least=0, most=65535)
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where the model runs")
    dtype: Literal["bf16", "fp32"] = option("bf16", "type of weights and KV")
    page_size: int = option(1, "tokens in a page of the KV pool", least=1, most=4096)
    kv_tokens: int = option(32768, "tokens that the KV pool holds", least=16)
    batch_tokens_max: int = option(512, "tokens computed in one step; longer prompts are cut in chunks", least=1)
    running_max: int = option(64, "requests that run at once", least=1)
    waiting_max: int = option(512, "requests that wait; more get 429", least=0)
    policy: WorkerPolicy = option("lpm", "order of waiting requests: longest prefix first, first come, random")
    wait_max_s: float = option(5.0, "a request that has waited this long goes first", least=0)
    prefix_cache: bool = option(True, "keep computed prefixes for later requests")
    context_tokens_max: int | None = option(None, "longest prompt + answer; default: the model's", least=1)
    chat_template: Path | None = option(None, "file with a Jinja chat template in place of the model's own")
    cache_dir: Path | None = option(None, "where converted models are kept; default: ~/.cache/trieway")
    ring_events_max: int = option(65536, "cache events kept for routers that come back", least=1)
    generated_memory_bytes_max: int = option(16 * MIB, "memory for the exact tokens of generated text", least=0)
    completions_max: int = option(128, "answers in one request: prompts times n", least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterConfig(ServerConfig):
    """One router."""

    workers: tuple[str, ...] = option((), "URL of a worker; repeat for more", flag="worker")
    discover: Literal["static"] = option("static", "how workers are found")
    policy: RouterPolicy = option("cache_aware", "how a worker is chosen")
    tree_bytes_max: int = option(512 * MIB, "memory of the meta-tree; the coldest blocks go first", least=MIB)
    frame_bytes_max: int = option(64 * MIB, "largest frame taken from a feed", least=65536)
    approximate_blocks_max: int = option(200_000, "blocks remembered for a worker without a feed", least=1)
    workers_max: int = option(1024, "workers in the registry", least=1)
    requests_max: int = option(4096, "requests in flight; more get 429", least=1)
    worker_requests_max: int = option(512, "requests booked on one worker; over it the worker counts as full", least=1)
    retries_max: int = option(2, "further workers tried before the first byte", least=0, most=16)
    connect_timeout_s: float = option(2.0, "longest wait for a connection to a worker", least=0.01)
    first_byte_timeout_s: float = option(300.0, "longest wait for a worker's first byte", least=0.01)
    idle_timeout_s: float = option(120.0, "longest pause inside a worker's stream", least=0.01)
    total_timeout_s: float = option(1800.0, "longest request in all", least=0.01)
    response_max_bytes: int = option(64 * MIB, "largest answer held for a request without stream", least=65536)
    probe_interval_s: float = option(0.5, "time between probes of a worker that is away", least=0.05)
    heartbeat_timeout_s: float = option(5.0, "a feed silent for this long counts as lost", least=1.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpConfig:
    """The embedded fleet: `workers` worker processes and a router on this machine.

    `worker` and `router` are what each process gets (the supervisor sets their hosts, ports and URLs); in a file they
    are the sections `worker:` and `router:`.
    """

    workers: int = option(2, "worker processes", least=1, most=256)
    model: str = option("smollm2-135m", "a name from `trieway models`, a model directory, or a GGUF file")
    host: str = option("127.0.0.1", "address the router listens on")
    port: int = option(8000, "port of the router", least=0, most=65535)
    policy: RouterPolicy = option("cache_aware", "how the router chooses a worker")
    ready_timeout_s: float = option(600.0, "longest wait for a worker to become ready", least=1)
    restart_backoff_max_s: float = option(10.0, "longest pause before a dead worker is started again", least=0.1)
    worker: WorkerConfig = dataclasses.field(default_factory=WorkerConfig)
    router: RouterConfig = dataclasses.field(default_factory=RouterConfig)
