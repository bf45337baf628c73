"""From measured points to rates: least squares in plain Python, for a handful of points.

It keeps true that no fitted cost is negative: work never makes a step faster, so a negative slope is noise and reads 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RATE_MAX_TOKENS_PER_S = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillPoint:
    """Prompts of one length: tokens really computed, and the median time until the answer's only token."""

    tokens: int
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodePoint:
    """One batch: streams that ran together, their mean context, the mean time of a step."""

    batch: int
    context_tokens: int
    step_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefill:
    """ms = overhead_ms + tokens / tokens_per_s, fitted over `points`."""

    tokens_per_s: float
    overhead_ms: float
    points: tuple[PrefillPoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decode:
    """step ms = step_ms + per_sequence_ms * batch + per_context_token_us / 1000 * (batch * context), fitted."""

    step_ms: float
    per_sequence_ms: float
    per_context_token_us: float
    points: tuple[DecodePoint, ...]


def fit_prefill(points: Sequence[PrefillPoint]) -> Prefill:
    """Least squares of time over tokens; at least two different lengths."""
    overhead, slope = least_squares([(1.0, float(point.tokens)) for point in points], [point.ms for point in points])
    return Prefill(
        tokens_per_s=1e3 / slope if slope > 1e3 / RATE_MAX_TOKENS_PER_S else RATE_MAX_TOKENS_PER_S,
        overhead_ms=max(0.0, overhead),
        points=tuple(points),
    )


def fit_decode(points: Sequence[DecodePoint]) -> Decode:
    """Least squares over (batch, batch * context); what too few points cannot tell is 0, and so is what comes out
    negative (no step gets faster by more work: that is noise)."""
    rows = [(1.0, float(point.batch), float(point.batch * point.context_tokens)) for point in points]
    times = [point.step_ms for point in points]
    columns = [0, 1, 2]
    while True:
        values = least_squares([tuple(row[column] for column in columns) for row in rows], times)
        negative = [column for column, value in zip(columns, values, strict=True) if value < 0 and column > 0]
        if not negative:
            break
        columns.remove(negative[-1])
    found = dict(zip(columns, values, strict=True))
    return Decode(
        step_ms=found[0],
        per_sequence_ms=found.get(1, 0.0),
        per_context_token_us=found.get(2, 0.0) * 1e3,
        points=tuple(points),
    )


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The coefficients that fit `values` best, by the normal equations; a column the rows cannot tell apart from the
    ones before it gets 0."""
    size = len(rows[0])
    scale = [max((abs(row[column]) for row in rows), default=0.0) or 1.0 for column in range(size)]
    scaled = [[row[column] / scale[column] for column in range(size)] for row in rows]
    matrix = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)]
        + [sum(row[i] * value for row, value in zip(scaled, values, strict=True))]
        for i in range(size)
    ]
    solved: list[int] = []
    for column in range(size):
        pivot = matrix[column]
        if abs(pivot[column]) < 1e-9:
            continue
        solved.append(column)
        for other in range(size):
            if other != column:
                factor = matrix[other][column] / pivot[column]
                matrix[other] = [a - factor * b for a, b in zip(matrix[other], pivot, strict=True)]
    return [matrix[i][size] / matrix[i][i] / scale[i] if i in solved else 0.0 for i in range(size)]
