"""From what mixes of work took to what each kind of work costs: least squares in plain Python, for a few dozen points.

Keeps true: no fitted cost is negative (work never makes a step faster, so a negative one is noise and reads 0); a point
counts by its relative error, and one far from all others hardly. Does not know how the points were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trieway.fleet.mixes import Work

ROUNDS = 8
"""Of weighing points anew by how far off they were."""
USUAL_ERROR = 0.02
"""Relative; points with up to twice as much count in full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What a worker's time goes into; seconds = the sum of each times its count. `error`: median of the points'
    relative errors."""

    step_ms: float
    request_us: float
    prefill_token_us: float
    prefill_pair_ns: float
    prefill_context_us: float
    decode_us: float
    decode_context_us: float
    error: float

    def seconds(self, work: Work) -> float:
        """Of this work."""
        return sum(cost * count for cost, count in zip(self._each_s(), _counts(work), strict=True))

    def _each_s(self) -> tuple[float, ...]:
        return (
            self.step_ms / 1e3, self.request_us / 1e6, self.prefill_token_us / 1e6, self.prefill_pair_ns / 1e9,
            self.prefill_context_us / 1e6, self.decode_us / 1e6, self.decode_context_us / 1e6,
        )  # fmt: skip


def _counts(work: Work) -> tuple[float, ...]:
    """In the order of Costs."""
    return (
        float(work.steps), float(work.requests), float(work.prefill_tokens), float(work.prefill_pairs),
        float(work.prefill_context), float(work.decodes), float(work.decode_context),
    )  # fmt: skip


def fit(points: Sequence[Work]) -> Costs:
    """The costs that explain the points best. What they cannot tell apart goes to the cost that comes first."""
    rows = [[count / point.seconds for count in _counts(point)] for point in points]
    weights = [1.0] * len(points)
    for _ in range(ROUNDS):
        found = _not_negative(rows, weights)
        errors = [abs(sum(a * b for a, b in zip(row, found, strict=True)) - 1.0) for row in rows]
        usual = 2.0 * max(median(errors), USUAL_ERROR)
        weights = [min(1.0, (usual / error) ** 2) if error else 1.0 for error in errors]
    step, request, token, pair, before, decode, context = found
    return Costs(
        step_ms=step * 1e3,
        request_us=request * 1e6,
        prefill_token_us=token * 1e6,
        prefill_pair_ns=pair * 1e9,
        prefill_context_us=before * 1e6,
        decode_us=decode * 1e6,
        decode_context_us=context * 1e6,
        error=median(errors),
    )


def _not_negative(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """Least squares towards 1 in every row; the worst of the negative columns is left out until none is negative."""
    columns = list(range(len(rows[0])))
    while True:
        scaled = [[row[column] * weight**0.5 for column in columns] for row, weight in zip(rows, weights, strict=True)]
        values = least_squares(scaled, [weight**0.5 for weight in weights])
        # How much each takes off in all tells which negative one is the worst, whatever its unit.
        shares = [value * sum(row[column] for row in rows) for value, column in zip(values, columns, strict=True)]
        if min(shares) >= 0.0:
            break
        columns.pop(shares.index(min(shares)))
    found = [0.0] * len(rows[0])
    for column, value in zip(columns, values, strict=True):
        found[column] = value
    return found


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
