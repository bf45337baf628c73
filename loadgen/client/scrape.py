"""Server metrics alongside a run: Prometheus text, thinned to what a report can show.

Keeps true: gauges of a run are kept as bounded series, counters as what they gained; a scrape that fails is counted and
costs the run nothing. Does not know what the metrics mean.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from time import monotonic

from trieway.loadgen.client.target import Backend, Target
from trieway.loadgen.errors import RunFailed
from trieway.loadgen.reports.schema import Scrape, Series

SAMPLES_MAX = 600
SERIES_MAX = 32
DELTAS_MAX = 500
SOURCES_MAX = 64
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")
_SHOWN = re.compile(r"running|waiting|pool_slots|cache_usage|kv_|booked|tree_|lag|in_flight|cached_blocks")
_COUNTERS = ("_total", "_sum", "_count")


def parse_metrics(text: str) -> dict[str, float]:
    """Name with labels -> value. Lines that say nothing usable are passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            found[match[1] + (match[2] or "")] = value
    return found


def _base(name: str) -> str:
    return name.split("{", 1)[0]


class Source:
    """One server's metrics over a run."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.scrapes = 0
        self.failed = 0
        self._first: dict[str, float] | None = None
        self._last: dict[str, float] = {}
        self._times: list[float] = []
        self._values: dict[str, list[float]] = {}
        self._every = 1
        """Only each so-many-th sample is kept."""

    def add(self, values: dict[str, float], at_s: float) -> None:
        """One scrape. The first one says where counters began."""
        if self._first is None:
            self._first = values
            shown = [name for name in values if _SHOWN.search(_base(name)) and not _base(name).endswith(_COUNTERS)]
            self._values = {name: [] for name in sorted(shown) if not _base(name).endswith("_bucket")}
            self._values = dict(list(self._values.items())[:SERIES_MAX])
        self._last = values
        if self.scrapes % self._every == 0:
            self._times.append(round(at_s, 3))
            for name, kept in self._values.items():
                kept.append(values.get(name, kept[-1] if kept else 0.0))
        self.scrapes += 1
        if len(self._times) > SAMPLES_MAX:
            self._every *= 2
            self._times = self._times[::2]
            self._values = {name: kept[::2] for name, kept in self._values.items()}

    def told(self) -> Scrape:
        """For the report."""
        first = self._first or {}
        gained = {
            name: value - first.get(name, 0.0)
            for name, value in self._last.items()
            if _base(name).endswith(_COUNTERS) and value != first.get(name, 0.0)
        }
        return Scrape(
            source=self.name,
            scrapes=self.scrapes,
            failed=self.failed,
            series=[Series(name=name, times_s=self._times, values=kept) for name, kept in self._values.items()],
            deltas=dict(sorted(gained.items())[:DELTAS_MAX]),
        )


class Scraper:
    """Asks the target and its workers at an interval. `start_s`: time zero of the run, by time.monotonic()."""

    def __init__(self, target: Target, backends: Sequence[Backend], interval_s: float) -> None:
        self._target = target
        self._interval_s = interval_s
        self.start_s = monotonic()
        root = str(target.access.url)
        self._sources = [Source("router" if any(b.url != root for b in backends) else "server", root)]
        # Workers that share one address (or are the target itself) share one page.
        for backend in backends[: SOURCES_MAX - 1]:
            if all(backend.url != source.url for source in self._sources):
                self._sources.append(Source(backend.name, backend.url))

    async def once(self) -> None:
        """One scrape of every source."""
        await asyncio.gather(*map(self._scrape, self._sources))

    async def _scrape(self, source: Source) -> None:
        try:
            status, data = await self._target.get("/metrics", url=source.url)
        except RunFailed:
            status, data = 0, b""
        if status == 200:
            source.add(parse_metrics(data.decode(errors="replace")), monotonic() - self.start_s)
        else:
            source.failed += 1

    async def forever(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.once()

    def told(self) -> list[Scrape]:
        """For the report: the sources that answered at all."""
        return [source.told() for source in self._sources if source.scrapes]
