"""Live progress of a run: a table with rich on a terminal, one line that overwrites itself without rich, plain lines
now and then elsewhere.

Keeps true: nothing is said more often than a reader or a log can use; the run costs no more for being watched. Does not
know what a report says.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter, deque
from time import monotonic
from typing import Any, Protocol, TextIO

from trieway.loadgen.records import Record
from trieway.loadgen.reports.stats import Sorted
from trieway.loadgen.reports.text import milliseconds, number, percent
from trieway.loadgen.runs.once import Now

PLAIN_S = 5.0
LIVE_S = 0.5
WINDOW_S = 10.0
WINDOW_RECORDS_MAX = 20_000
WORKERS_MAX = 16


class Watcher(Protocol):
    """Whoever shows. `line` stays; `update` replaces what was shown before."""

    def line(self, text: str) -> None: ...

    def update(self, now: Now) -> None: ...

    def close(self) -> None: ...


class Recent:
    """What ended within the last WINDOW_S seconds, and counts since the start."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, Record]] = deque(maxlen=WINDOW_RECORDS_MAX)
        self.ok = 0
        self.errors: Counter[str] = Counter()
        self._elapsed = 0.0

    def add(self, now: Now) -> None:
        """One update of a run; a new run begins when time goes back."""
        if now.elapsed_s < self._elapsed:
            self._window.clear()
            self.ok, self.errors = 0, Counter()
        self._elapsed = now.elapsed_s
        for record in now.recent:
            self._window.append((now.elapsed_s, record))
            self.ok += record.ok
            if not record.ok:
                self.errors[record.status] += 1
        while self._window and self._window[0][0] < now.elapsed_s - WINDOW_S:
            self._window.popleft()

    @property
    def records(self) -> list[Record]:
        """Answered ones."""
        return [record for _, record in self._window if record.ok]

    def line(self, now: Now) -> str:
        """One line for all."""
        records = self.records
        waits = Sorted.of(record.ttft_s for record in records if record.ttft_s is not None)
        lags = Sorted.of(record.lag_s for record in records if record.lag_s is not None)
        failed = f", {sum(self.errors.values())} failed" if self.errors else ""
        lag = lags.quantile(0.99)
        late = f", LAG {lag * 1e3:.0f} ms" if lag is not None and lag > 0.05 else ""
        return (
            f"{now.elapsed_s:5.0f} s  {now.sent} of {now.total} sent, {now.in_flight} in flight, {self.ok} ok{failed}; "
            f"{number(len(records) / min(max(now.elapsed_s, 1.0), WINDOW_S))}/s, TTFT p50 {_ms(waits, 0.5)}, "
            f"p95 {_ms(waits, 0.95)}, hit {percent(hit_rate_of(records))}{late}"
        )


def hit_rate_of(records: list[Record]) -> float | None:
    """Of records that tell."""
    known = [(r.cached_tokens, r.prompt_tokens) for r in records if r.cached_tokens is not None and r.prompt_tokens]
    total = sum(prompt or 0 for _, prompt in known)
    return sum(cached or 0 for cached, _ in known) / total if total else None


def _ms(values: Sorted, share: float) -> str:
    at = values.quantile(share)
    return milliseconds(None if at is None else at * 1e3)


class PlainWatcher:
    """Lines on a stream: each update on a terminal overwrites the one before, elsewhere one comes each PLAIN_S."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._recent = Recent()
        self._next = 0.0
        self._shown = False

    def line(self, text: str) -> None:
        """A line that stays."""
        self._write(self._wipe() + text + "\n")

    def update(self, now: Now) -> None:
        """How the run stands."""
        self._recent.add(now)
        at = monotonic()
        if at < self._next or not now.sent:
            return
        self._next = at + (LIVE_S if self._live else PLAIN_S)
        text = self._recent.line(now)
        if self._live:
            wiped = self._wipe()
            self._shown = True
            self._write(wiped + text[: shutil.get_terminal_size().columns - 1])
        else:
            self._write(text + "\n")

    def close(self) -> None:
        """Leave the terminal tidy."""
        self._write(self._wipe())

    def _wipe(self) -> str:
        wiped = "\r\x1b[K" if self._shown else ""
        self._shown = False
        return wiped

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (BrokenPipeError, ValueError):  # nobody reads any more: the run goes on without words
            pass


class RichWatcher:
    """A table that stays in place. ImportError: rich is not there."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._recent = Recent()
        self._console = Console(file=out)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._started = False

    def line(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False, highlight=False)

    def update(self, now: Now) -> None:
        """How the run stands."""
        self._recent.add(now)
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(self._table(now))

    def _table(self, now: Now) -> Any:
        from rich.table import Table

        table = Table(title=self._recent.line(now), title_justify="left", expand=False)
        for column in ("worker", "answered", "TTFT p50", "TTFT p95", "hit rate"):
            table.add_column(column, justify="left" if column == "worker" else "right")
        workers: dict[str, list[Record]] = {}
        for record in self._recent.records:
            workers.setdefault(record.worker or "server", []).append(record)
        for worker in sorted(workers)[:WORKERS_MAX]:
            records = workers[worker]
            waits = Sorted.of(record.ttft_s for record in records if record.ttft_s is not None)
            table.add_row(worker, str(len(records)), _ms(waits, 0.5), _ms(waits, 0.95), percent(hit_rate_of(records)))
        for kind, count in self._recent.errors.most_common(4):
            table.add_row(kind, str(count), "", "", "", style="red")
        return table

    def close(self) -> None:
        """Leave the terminal tidy."""
        if self._started:
            self._live.stop()


def watcher(out: TextIO | None = None) -> Watcher:
    """The best for this stream (standard error)."""
    out = sys.stderr if out is None else out
    if out.isatty():
        try:
            return RichWatcher(out)
        except ImportError:
            pass
    return PlainWatcher(out)
