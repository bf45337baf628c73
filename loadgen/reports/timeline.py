"""A run along its time, per worker: what a reader looks at when a percentile needs an explanation. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trieway.loadgen.records import Record
from trieway.loadgen.reports.schema import Lane, Timeline
from trieway.loadgen.reports.stats import Sorted

STEPS_MAX = 120
STEPS_MIN = 20
STEP_RECORDS = 4
"""A step of fewer records on average shows nothing but which they are."""
LANES_MAX = 64
"""A plot of more lanes than this shows nothing; the rest share one, named `others`."""
_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)


def timeline_of(measured: Sequence[Record]) -> Timeline | None:
    """None of nothing sent."""
    sent = [(r, r.sent_s, r.last_s) for r in measured if r.sent_s is not None and r.last_s is not None]
    if not sent:
        return None
    span = max(last for _, _, last in sent)
    most = min(STEPS_MAX, max(STEPS_MIN, len(sent) // STEP_RECORDS))
    step = next((step for step in _STEPS_S if span / step <= most), span / most)
    steps = int(span / step) + 1
    parts: defaultdict[str, list[tuple[Record, float, float]]] = defaultdict(list)
    for one in sent:
        parts[one[0].worker or "server"].append(one)
    names = sorted(parts, key=lambda name: (-len(parts[name]), name))
    for name in names[LANES_MAX - 1 :] if len(names) > LANES_MAX else ():
        parts["others"] += parts.pop(name)
    waits: list[list[float]] = [[] for _ in range(steps)]
    for record, start, _ in sent:
        if record.ok and record.ttft_s is not None:
            waits[int(start / step)].append(record.ttft_s)
    return Timeline(
        step_s=step,
        lanes=[_lane(name, parts[name], step, steps) for name in sorted(parts)],
        ttft_p50_ms=[_at(values, 0.5) for values in waits],
        ttft_p95_ms=[_at(values, 0.95) for values in waits],
    )


def _at(values: Sequence[float], share: float) -> float | None:
    at = Sorted.of(values).quantile(share)
    return None if at is None else round(at * 1e3, 3)


def _lane(worker: str, sent: Sequence[tuple[Record, float, float]], step: float, steps: int) -> Lane:
    """`in_flight` is the mean over the step. Differences at the ends, so that a long request costs no loop."""
    busy, change = [0.0] * steps, [0.0] * (steps + 1)
    finished, given, cached = [0] * steps, [0] * steps, [0] * steps
    for record, start, last in sent:
        first, end = int(start / step), int(last / step)
        if first == end:
            busy[first] += last - start
        else:
            busy[first] += (first + 1) * step - start
            busy[end] += last - end * step
            change[first + 1] += step
            change[end] -= step
        finished[end] += 1
        given[first] += record.prompt_tokens or 0
        cached[first] += record.cached_tokens or 0
    whole = 0.0
    for index in range(steps):
        whole += change[index]
        busy[index] = round((busy[index] + whole) / step, 4)
    return Lane(worker=worker, in_flight=busy, finished=finished, input_tokens=given, cached_tokens=cached)
