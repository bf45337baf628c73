"""The worker's Prometheus metrics.

Keeps true: counters come from the scheduler's own sums at the moment of the scrape, so they cannot drift from it; no
label holds a user's text. Does not know requests' content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trieway.worker.core.sequence import SchedulerStats
from trieway.worker.stepper import StepReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_COUNTERS = (
    ("preempted_requests", "Requests that lost their pages for a time", "preempted_total"),
    ("rejected_requests", "Requests refused by the queue", "rejected_total"),
    ("cancelled_requests", "Requests ended by their client", "cancelled_total"),
    ("finished_requests", "Requests that ended by themselves", "finished_total"),
    ("prompt_tokens", "Prompt tokens of started requests", "prompt_tokens_total"),
    ("cached_tokens", "Prompt tokens that were reused", "cached_tokens_total"),
    ("computed_tokens", "Prompt tokens that were computed", "computed_tokens_total"),
    ("generated_tokens", "Sampled tokens", "generated_tokens_total"),
    ("evicted_tokens", "Tokens evicted from the cache", "evicted_tokens_total"),
)


class Metrics:
    """One worker's registry. `stats` gives the scheduler's latest sums, `subscribers` the routers that listen."""

    def __init__(self, stats: Callable[[], SchedulerStats], subscribers: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_SchedulerCollector(stats, subscribers))
        self._started, self._queue_s = 0, 0.0
        self._ttft = self._seconds("ttft_seconds", "From arrival to the first token")
        self._gap = self._seconds("inter_token_seconds", "Between two tokens of one sample")
        self._queue = self._seconds("queue_seconds", "From arrival to the first computed chunk")
        self._step = self._seconds("step_seconds", "One engine step")
        self._batch = Histogram(
            "trieway_worker_step_batch_tokens", "Tokens in one step", buckets=_TOKENS, registry=self.registry
        )
        self._failed = Counter("trieway_worker_failed_steps", "Steps that raised", registry=self.registry)
        self._answers = Counter(
            "trieway_worker_responses", "Answers by route and HTTP status", ["route", "code"], registry=self.registry
        )

    def observe(self, report: StepReport) -> None:
        """Books one step."""
        self._step.observe(report.seconds)
        self._batch.observe(report.batch_tokens)
        if report.failed:
            self._failed.inc()
        self._started += len(report.queue_s)
        self._queue_s += sum(report.queue_s)
        for histogram, values in (
            (self._ttft, report.ttft_s),
            (self._gap, report.gap_s),
            (self._queue, report.queue_s),
        ):
            for value in values:
                histogram.observe(value)

    def queue_sums(self) -> tuple[int, float]:
        """Samples that have begun so far, and the milliseconds that they had waited in all."""
        return self._started, 1000 * self._queue_s

    def count_answer(self, route: str, code: int) -> None:
        """`route` is one of ours, never a client's path."""
        self._answers.labels(route, str(code)).inc()

    def page(self) -> bytes:
        """The text of `GET /metrics`."""
        return generate_latest(self.registry)

    def _seconds(self, name: str, meaning: str) -> Histogram:
        return Histogram(f"trieway_worker_{name}", meaning, buckets=_SHORT_S, registry=self.registry)


class _SchedulerCollector(Collector):
    def __init__(self, stats: Callable[[], SchedulerStats], subscribers: Callable[[], int]) -> None:
        self._stats = stats
        self._subscribers = subscribers

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        stats = self._stats()
        yield _gauge("running_requests", "Requests that compute", stats.running)
        yield _gauge("waiting_requests", "Requests that wait", stats.waiting)
        yield _gauge("feed_subscribers", "Routers that listen to the feed", self._subscribers())
        yield _gauge("cached_blocks", "Text blocks announced as held", stats.blocks)
        slots = GaugeMetricFamily(
            "trieway_worker_pool_slots", "Token slots of the KV pool", labels=["state", "component", "tier"]
        )
        for state, count in (("free", stats.kv_free), ("cached", stats.kv_cached), ("running", stats.kv_running)):
            slots.add_metric([state, "full", "device"], count)
        yield slots
        for name, meaning, field in _COUNTERS:
            yield CounterMetricFamily(f"trieway_worker_{name}", meaning, value=getattr(stats, field))


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trieway_worker_{name}", meaning, value=value)
