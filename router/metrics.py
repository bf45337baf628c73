"""The router's Prometheus metrics: what happened is counted as it happens, what is, is read when asked.

Keeps true: no label holds user text: workers, fixed words and status codes only. Does not know how anything works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trieway.router.core import Settled, WorkerRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600)
_REGRET_MS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
_BREAKER = {"closed": 0, "half_open": 1, "open": 2}


class RouterMetrics:
    """One registry per router, so that two routers in one process do not collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "trieway_router_requests",
            "Requests answered, by status code, worker and reason of the choice; 499: the client went away",
            ("code", "worker", "reason"),
            registry=self.registry,
        )
        self._failed = Counter(
            "trieway_router_retries",
            "Attempts that failed before the first byte",
            ("worker", "reason"),
            registry=self.registry,
        )
        self._broken = Counter(
            "trieway_router_broken_streams",
            "Streams that broke after their first byte",
            ("worker",),
            registry=self.registry,
        )
        self._reuse = Counter(
            "trieway_router_reuse_tokens",
            "Prompt tokens reusable at the best worker (available) or the chosen one, and really reused (delivered)",
            ("stage",),
            registry=self.registry,
        )
        self._decision = Histogram(
            "trieway_router_decision_seconds",
            "From the whole request to the choice of its worker: read, render, hash, match, choose",
            buckets=_FAST_S,
            registry=self.registry,
        )
        self._ttft = Histogram(
            "trieway_router_ttft_seconds", "Time to first token", ("worker",), buckets=_SLOW_S, registry=self.registry
        )
        self._total = Histogram(
            "trieway_router_request_seconds", "Time of a whole request", buckets=_SLOW_S, registry=self.registry
        )
        self._regret = Histogram(
            "trieway_router_regret_milliseconds",
            "How much later the first token came than the best alternative had promised",
            buckets=_REGRET_MS,
            registry=self.registry,
        )

    def request(self, *, code: int, worker: str, reason: str, seconds: float) -> None:
        """A request ended."""
        self._requests.labels(str(code), worker, reason).inc()
        self._total.observe(seconds)

    def failed_attempt(self, worker: str, reason: str) -> None:
        """An attempt failed and the client has not seen it."""
        self._failed.labels(worker, reason).inc()

    def broken_stream(self, worker: str) -> None:
        self._broken.labels(worker).inc()

    def settled(self, settled: Settled) -> None:
        """A first byte came."""
        self._ttft.labels(settled.worker).observe(settled.ttft_ms / 1000)
        self._regret.observe(settled.regret_ms)
        self._reuse.labels("available").inc(settled.available_tokens)
        self._reuse.labels("chosen").inc(settled.chosen_tokens)
        if settled.delivered_tokens is not None:
            self._reuse.labels("delivered").inc(settled.delivered_tokens)

    def forget(self, worker: str) -> None:
        """Drops the series of a worker that has left: a fleet that scales would grow them without end."""
        for metric in (self._requests, self._failed, self._broken, self._ttft):
            metric.remove_by_labels({"worker": worker})

    def decided(self, seconds: float) -> None:
        """A request was read and a worker chosen."""
        self._decision.observe(seconds)

    def watch(
        self, rows: Callable[[], Iterable[WorkerRow]], tree: Callable[[], dict[str, object]], share: Callable[[], float]
    ) -> None:
        """Read the state of workers, tree and readiness from these whenever metrics are asked for."""
        self.registry.register(_State(rows, tree, share))

    def render(self) -> bytes:
        """The text form, `CONTENT_TYPE`."""
        return generate_latest(self.registry)


class _State(Collector):
    """Gauges and counters that the core keeps itself."""

    def __init__(
        self, rows: Callable[[], Iterable[WorkerRow]], tree: Callable[[], dict[str, object]], share: Callable[[], float]
    ) -> None:
        self._rows = rows
        self._tree = tree
        self._share = share

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        rows = list(self._rows())
        yield from _per_worker(rows)
        up = GaugeMetricFamily("trieway_router_workers", "Workers by state", labels=("state",))
        for state in sorted({row.state.value for row in rows}):
            up.add_metric((state,), sum(row.state.value == state for row in rows))
        yield up
        yield GaugeMetricFamily("trieway_router_index_share_ratio", "Share of the feeds loaded", value=self._share())
        tree = self._tree()
        for name, unit in (("blocks", "blocks"), ("bytes", "bytes")):
            value = tree.get(name)
            if isinstance(value, int):
                yield GaugeMetricFamily(f"trieway_router_tree_{unit}", f"The meta-tree's {name}", value=value)


def _per_worker(rows: list[WorkerRow]) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[WorkerRow], float | None]], ...] = (
        ("booked_requests", "Requests booked", lambda row: row.booked),
        ("booked_tokens", "Tokens booked", lambda row: row.booked_tokens),
        ("pending_tokens", "Uncached tokens booked whose first byte has not come", lambda row: row.pending_tokens),
        ("worker_blocks", "Blocks known of the worker", lambda row: row.blocks),
        ("feed_lag_events", "Events announced and not yet applied", lambda row: row.lag_events),
        ("feed_drift_blocks", "Blocks by which view and worker disagree", lambda row: row.drift_blocks),
        ("breaker_state", "0 closed, 1 half open, 2 open", lambda row: _BREAKER.get(row.breaker, 2)),
        ("prefill_rate_tokens_per_second", "Learnt prefill rate", lambda row: row.prefill_tokens_per_s),
    )
    for name, text, read in gauges:
        family = GaugeMetricFamily(f"trieway_router_{name}", text, labels=("worker",))
        for row in rows:
            value = read(row)
            if value is not None:
                family.add_metric((row.worker,), value)
        yield family
    for name, text, count in (
        ("feed_gaps", "Gaps seen in the feed", lambda row: row.gaps),
        ("feed_resyncs", "Times the feed was loaded anew or in part", lambda row: row.resyncs),
    ):
        counter = CounterMetricFamily(f"trieway_router_{name}", text, labels=("worker",))
        for row in rows:
            counter.add_metric((row.worker,), count(row))  # type: ignore[no-untyped-call]
        yield counter
