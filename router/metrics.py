"""The router's Prometheus metrics: what happened is counted as it happens, what is, is read when asked.

Keeps true: no label holds user text: workers, fixed words and status codes only. Does not know how anything works.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from trieway.router.core import Settled, WorkerRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600)
_REGRET_MS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
_AVAILABLE, _CHOSEN, _DELIVERED = ("available",), ("chosen",), ("delivered",)
_BREAKER = {"closed": 0, "half_open": 1, "open": 2}


class _Counts(Collector):
    """A counter by labels. prometheus_client's own costs several times as much per count, with locks that one thread
    does not need."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], amount: float = 1.0) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in sorted(self.values.items()):
            family.add_metric(labels, value)
        yield family

    def forget(self, label: str, value: str) -> None:
        """Drops every series with this value of this label."""
        at = self._labels.index(label)
        self.values = {labels: count for labels, count in self.values.items() if labels[at] != value}


class _Histogram(Collector):
    """A histogram by one label, or none."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], label: str | None = None) -> None:
        self._name = name
        self._text = text
        self._bounds = bounds
        self._label = label
        self._series: dict[str, tuple[list[int], list[float]]] = {}
        if label is None:
            self._start("")

    def _start(self, label: str) -> tuple[list[int], list[float]]:
        made = self._series[label] = ([0] * (len(self._bounds) + 1), [0.0])
        return made

    def observe(self, value: float, label: str = "") -> None:
        counts, total = self._series.get(label) or self._start(label)
        counts[bisect_left(self._bounds, value)] += 1
        total[0] += value

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=() if self._label is None else (self._label,))
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for label, (counts, total) in sorted(self._series.items()):
            family.add_metric(
                () if self._label is None else (label,),
                list(zip(names, accumulate(counts), strict=True)),
                total[0],
            )
        yield family

    def forget(self, label: str) -> None:
        self._series.pop(label, None)


class RouterMetrics:
    """One registry per router, so that two routers in one process do not collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = _Counts(
            "trieway_router_requests",
            "Requests answered, by status code, worker and reason of the choice; 499: the client went away",
            ("code", "worker", "reason"),
        )
        self._failed = _Counts(
            "trieway_router_retries", "Attempts that failed before the first byte", ("worker", "reason")
        )
        self._broken = _Counts(
            "trieway_router_broken_streams", "Streams that broke after their first byte", ("worker",)
        )
        self._reuse = _Counts(
            "trieway_router_reuse_tokens",
            "Prompt tokens reusable at the best worker (available) or the chosen one, and really reused (delivered)",
            ("stage",),
        )
        self._decision = _Histogram(
            "trieway_router_decision_seconds",
            "From the whole request to the choice of its worker: read, render, hash, match, choose",
            _FAST_S,
        )
        self._ttft = _Histogram("trieway_router_ttft_seconds", "Time to first token", _SLOW_S, "worker")
        self._total = _Histogram("trieway_router_request_seconds", "Time of a whole request", _SLOW_S)
        self._regret = _Histogram(
            "trieway_router_regret_milliseconds",
            "How much later the first token came than the best alternative had promised",
            _REGRET_MS,
        )
        for metric in (self._requests, self._failed, self._broken, self._reuse):
            self.registry.register(metric)
        for histogram in (self._decision, self._ttft, self._total, self._regret):
            self.registry.register(histogram)

    def request(self, *, code: int, worker: str, reason: str, seconds: float) -> None:
        """A request ended."""
        self._requests.add((str(code), worker, reason))
        self._total.observe(seconds)

    def failed_attempt(self, worker: str, reason: str) -> None:
        """An attempt failed and the client has not seen it."""
        self._failed.add((worker, reason))

    def broken_stream(self, worker: str) -> None:
        self._broken.add((worker,))

    def settled(self, settled: Settled) -> None:
        """A first byte came."""
        self._ttft.observe(settled.ttft_ms / 1000, settled.worker)
        self._regret.observe(settled.regret_ms)
        self._reuse.add(_AVAILABLE, settled.available_tokens)
        self._reuse.add(_CHOSEN, settled.chosen_tokens)
        if settled.delivered_tokens is not None:
            self._reuse.add(_DELIVERED, settled.delivered_tokens)

    def forget(self, worker: str) -> None:
        """Drops the series of a worker that has left: a fleet that scales would grow them without end."""
        for metric in (self._requests, self._failed, self._broken):
            metric.forget("worker", worker)
        self._ttft.forget(worker)

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
