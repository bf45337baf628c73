"""Every setting of the worker, the router and the embedded fleet, with its default and its bound's meaning.

Keeps true: each key is declared once, here; its flag (`--kv-tokens`), its environment name (`TRIEWAY_KV_TOKENS`) and
its key in a file (`kv_tokens`) follow from the field's name. Secrets are never values, only paths of files. Loading
and checking is config_load.py; argparse flags are config_flags.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

MIB = 1024 * 1024

WorkerPolicy = Literal["lpm", "fcfs", "random"]
RouterPolicy = Literal[
    "cache_aware",
    "longest_prefix",
    "least_loaded",
    "round_robin",
    "power_of_two",
    "consistent_hash",
    "session",
]
DiscoveryKind = Literal["static", "file", "kubernetes", "ray"]
DataPlane = Literal["protocol", "asgi"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["plain", "json"]
TraceSampler = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]


class ConfigError(ValueError):
    """The user's configuration is wrong; the message is one line that says what to do. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a field of a configuration says of itself: its help, its range, its flag where not the name with dashes."""

    help: str
    least: float | None = None
    most: float | None = None
    flag: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """What both servers share."""

    host: Annotated[str, Key("address to listen on; other than loopback needs keys or --allow-open")] = "127.0.0.1"
    port: Annotated[int, Key("port to listen on; 0 takes a free one", least=0, most=65535)] = 8000
    body_max_bytes: Annotated[int, Key("largest request body; larger ones get 413", least=1024)] = 16 * MIB
    api_keys_file: Annotated[Path | None, Key("file of API keys, one `key` or `tenant:key` a line")] = None
    admin_key_file: Annotated[Path | None, Key("file with the admin key")] = None
    fleet_secret_file: Annotated[
        Path | None, Key("file with the fleet's secret; without it the seed is a published one")
    ] = None
    allow_open: Annotated[bool, Key("listen beyond loopback without keys")] = False
    log_level: Annotated[LogLevel, Key("least severe lines to log")] = "info"
    log_format: Annotated[LogFormat, Key("plain lines or JSON lines")] = "plain"
    otlp_endpoint: Annotated[
        str | None, Key("URL that traces go to (OTLP, http/protobuf; /v1/traces where it has no path); default: none")
    ] = None
    otlp_headers_file: Annotated[Path | None, Key("file of headers for it, one `name=value` a line")] = None
    trace_sampler: Annotated[
        TraceSampler | None,
        Key("which requests are traced, by OpenTelemetry's names; default: parentbased_traceidratio"),
    ] = None
    trace_sample_ratio: Annotated[
        float | None, Key("share of the traces begun here that are kept; default: all", least=0, most=1)
    ] = None
    trace_service_name: Annotated[
        str | None, Key("the service's name in traces; default: trieway-router or trieway-worker")
    ] = None
    drain_timeout_s: Annotated[float, Key("longest wait for running requests at the end", least=0)] = 30.0
    seed: Annotated[int | None, Key("seed of everything random, for repeatable runs")] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig(ServerConfig):
    """One worker."""

    model: Annotated[str, Key("a name from `trieway models`, a model directory, or a GGUF file")] = "smollm2-135m"
    served_model_name: Annotated[
        str | None, Key("the model's name in requests; default: the name it was asked for by")
    ] = None
    port: Annotated[int, Key("port to listen on; 0 takes a free one", least=0, most=65535)] = 8100
    device: Annotated[Literal["auto", "cpu", "cuda"], Key("where the model runs")] = "auto"
    dtype: Annotated[Literal["bf16", "fp32"], Key("type of weights and KV")] = "bf16"
    page_size: Annotated[int, Key("tokens in a page of the KV pool", least=1, most=4096)] = 1
    kv_tokens: Annotated[int, Key("tokens that the KV pool holds", least=16)] = 32768
    batch_tokens_max: Annotated[int, Key("tokens computed in one step; longer prompts are cut in chunks", least=1)] = (
        512
    )
    running_max: Annotated[int, Key("requests that run at once", least=1)] = 64
    waiting_max: Annotated[int, Key("requests that wait; more get 429", least=0)] = 512
    policy: Annotated[WorkerPolicy, Key("order of waiting requests: longest prefix first, first come, random")] = "lpm"
    wait_max_s: Annotated[float, Key("a request that has waited this long goes first", least=0)] = 5.0
    prefix_cache: Annotated[bool, Key("keep computed prefixes for later requests")] = True
    context_tokens_max: Annotated[int | None, Key("longest prompt + answer; default: the model's", least=1)] = None
    chat_template: Annotated[Path | None, Key("file with a Jinja chat template in place of the model's own")] = None
    cache_dir: Annotated[Path | None, Key("where converted models are kept; default: ~/.cache/trieway")] = None
    ring_events_max: Annotated[int, Key("cache events kept for routers that come back", least=1)] = 65536
    generated_memory_bytes_max: Annotated[int, Key("memory for the exact tokens of generated text", least=0)] = 16 * MIB
    completions_max: Annotated[int, Key("answers in one request: prompts times n", least=1)] = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterConfig(ServerConfig):
    """One router."""

    workers: Annotated[tuple[str, ...], Key("URL of a worker; repeat for more", flag="worker")] = ()
    discover: Annotated[DiscoveryKind, Key("how workers are found")] = "static"
    kubernetes_service: Annotated[str | None, Key("Service whose ready endpoints are the workers")] = None
    kubernetes_namespace: Annotated[str | None, Key("its namespace; default: the pod's own")] = None
    kubernetes_port_name: Annotated[str, Key("name of its port")] = "http"
    kubernetes_leaving: Annotated[
        bool, Key("pods that end get requests until they turn them away: only for workers with the hook that does")
    ] = False
    kubernetes_api: Annotated[str | None, Key("URL of the API server; default: the pod's own cluster")] = None
    kubernetes_token_file: Annotated[Path | None, Key("token for the API server; default: the pod's own")] = None
    kubernetes_ca_file: Annotated[Path | None, Key("CA of the API server; default: the pod's own")] = None
    workers_file: Annotated[Path | None, Key("file with one worker's URL a line, read when it changes")] = None
    fleet: Annotated[str, Key("name of the fleet on Ray whose workers are found")] = "trieway"
    reuse_port: Annotated[bool, Key("share the port with another router, so that one can take over")] = False
    own_port: Annotated[bool, Key("also listen on a free port of its own, for probes of a shared one")] = False
    ready_wait_s: Annotated[float, Key("wait so long for workers before listening", least=0)] = 0.0
    policy: Annotated[RouterPolicy, Key("how a worker is chosen")] = "cache_aware"
    data_plane: Annotated[
        DataPlane, Key("how completions are carried: on the connections themselves, or through ASGI (slower)")
    ] = "protocol"
    tree_bytes_max: Annotated[int, Key("memory of the meta-tree; the coldest blocks go first", least=MIB)] = 512 * MIB
    frame_bytes_max: Annotated[int, Key("largest frame taken from a feed", least=65536)] = 64 * MIB
    approximate_blocks_max: Annotated[int, Key("blocks remembered for a worker without a feed", least=1)] = 200_000
    workers_max: Annotated[int, Key("workers in the registry", least=1)] = 1024
    requests_max: Annotated[int, Key("requests in flight; more get 429", least=1)] = 4096
    worker_requests_max: Annotated[
        int, Key("requests booked on one worker; over it the worker counts as full", least=1)
    ] = 512
    retries_max: Annotated[int, Key("further workers tried before the first byte", least=0, most=16)] = 2
    connect_timeout_s: Annotated[float, Key("longest wait for a connection to a worker", least=0.01)] = 2.0
    first_byte_timeout_s: Annotated[float, Key("longest wait for a worker's first byte", least=0.01)] = 300.0
    idle_timeout_s: Annotated[float, Key("longest pause inside a worker's stream", least=0.01)] = 120.0
    total_timeout_s: Annotated[float, Key("longest request in all", least=0.01)] = 1800.0
    response_max_bytes: Annotated[int, Key("largest answer held for a request without stream", least=65536)] = 64 * MIB
    probe_interval_s: Annotated[float, Key("time between probes of a worker that is away", least=0.05)] = 0.5
    heartbeat_timeout_s: Annotated[float, Key("a feed silent for this long counts as lost", least=1.5)] = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class UpConfig:
    """The embedded fleet: `workers` worker processes and a router on this machine.

    `worker` and `router` are what each process gets (the supervisor sets their hosts, ports and URLs); in a file they
    are the sections `worker:` and `router:`.
    """

    workers: Annotated[int, Key("worker processes", least=1, most=256)] = 2
    model: Annotated[str, Key("a name from `trieway models`, a model directory, or a GGUF file")] = "smollm2-135m"
    host: Annotated[str, Key("address the router listens on")] = "127.0.0.1"
    port: Annotated[int, Key("port of the router", least=0, most=65535)] = 8000
    policy: Annotated[RouterPolicy, Key("how the router chooses a worker")] = "cache_aware"
    ready_timeout_s: Annotated[float, Key("longest wait for a worker to become ready", least=1)] = 600.0
    restart_backoff_max_s: Annotated[float, Key("longest pause before a dead worker is started again", least=0.1)] = (
        10.0
    )
    pin: Annotated[bool, Key("keep each worker on a core of its own, in turn where cores are fewer (Linux)")] = False
    worker: WorkerConfig = dataclasses.field(default_factory=WorkerConfig)
    router: RouterConfig = dataclasses.field(default_factory=RouterConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class RayConfig:
    """The fleet on a Ray cluster: `workers` workers of each model, and a router on every node.

    `worker` and `router` are what each process gets; in a file they are the sections `worker:` and `router:`.
    """

    address: Annotated[
        str | None, Key("the cluster: host:port or ray's `auto`; default: RAY_ADDRESS, or the one on this machine")
    ] = None
    fleet: Annotated[str, Key("name of the fleet; one cluster can hold several")] = "trieway"
    models: Annotated[tuple[str, ...], Key("a model to serve; repeat for more", flag="model")] = ("smollm2-135m",)
    workers: Annotated[int, Key("workers of each model", least=1, most=4096)] = 2
    workers_min: Annotated[int | None, Key("fewest workers of each model when scaled by load", least=1)] = None
    workers_max: Annotated[int | None, Key("most workers of each model; gives scaling by load", least=1)] = None
    worker_cpus: Annotated[float, Key("CPUs that a worker asks of Ray", least=0)] = 1.0
    worker_gpus: Annotated[float, Key("GPUs that a worker asks of Ray", least=0)] = 0.0
    worker_resources: Annotated[tuple[str, ...], Key("NAME=AMOUNT of a custom resource that a worker asks of Ray")] = ()
    worker_labels: Annotated[tuple[str, ...], Key("NAME=VALUE that a worker's node must have; in(a,b) and !a too")] = ()
    router_cpus: Annotated[float, Key("CPUs that a router asks of Ray", least=0)] = 0.1
    scale_ttft_ms: Annotated[
        float, Key("scaled by load: a worker more where a first token would take longer, in milliseconds", least=1)
    ] = 1000.0
    scale_queue_ms: Annotated[
        float, Key("scaled by load: a worker more where requests waited longer, in milliseconds", least=1)
    ] = 250.0
    scale_pool: Annotated[
        float, Key("scaled by load: a worker more where requests hold this share of the KV pool", least=0.01, most=1)
    ] = 0.75
    scale_calm_s: Annotated[
        float, Key("scaled by load: one worker less once fewer would have done for so long", least=0)
    ] = 120.0
    scale_start_s: Annotated[
        float, Key("scaled by load: how long workers that were asked for are waited for before more are", least=0)
    ] = 300.0
    scale_interval_s: Annotated[
        float, Key("scaled by load: time between two reports of a worker; three of them are looked at", least=0.5)
    ] = 5.0
    surge: Annotated[bool, Key("upgrades start a new replica before the old one leaves; needs room for both")] = True
    host: Annotated[str | None, Key("address that replicas listen on; default: their node's own")] = None
    port: Annotated[int, Key("port of the routers, on every node", least=1, most=65535)] = 8000
    policy: Annotated[RouterPolicy, Key("how the routers choose a worker")] = "cache_aware"
    ready_timeout_s: Annotated[float, Key("longest wait for the fleet to become ready", least=1)] = 600.0
    worker: WorkerConfig = dataclasses.field(default_factory=WorkerConfig)
    router: RouterConfig = dataclasses.field(default_factory=RouterConfig)
