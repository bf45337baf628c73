"""What a worker's work costs in milliseconds, learnt from what it delivered.

`Affine` fits `ms = overhead + slope * units` to the latest samples; they fade with time, and a prior fills in whatever
they leave open. Keeps true: estimates are positive and finite whatever comes in, one outlier moves them little, and
without traffic they return to the prior. Does not know what the units mean: prompt tokens for prefill, running requests
for a decode step.
"""

import math
from collections import deque
from dataclasses import dataclass

SAMPLES_MAX = 32
"""A changed worker is known within so many requests."""
SLOPE_SPAN = 1e4
"""A learnt slope stays within this factor of its prior: beyond it a clock is broken, not a worker fast."""
SLOPE_SHARE_MIN = 0.1
"""Of what a unit took on average, the slope is at least this share: noise must not make work look free."""
OUTLIER = 0.3
"""Samples farther off than this share of their prediction lose weight in proportion."""
ROUNDS = 2
"""Weights depend on the line and the line on the weights: so many rounds per solution, each from the line before;
twice as many while there are few samples."""
SCATTER_PRIOR = 0.15
SCATTER_PRIOR_SAMPLES = 8.0
DOUBT = 2.0
"""Standard errors that count as one: requests near in time share their company and their luck."""
FRESH_S, CACHE_S = 0.2, 5.0
"""A line with enough samples is solved again this long after the last time: with news, and without (samples fade). A
solution costs some tenth of a millisecond, as much as a whole decision."""
FRESH_SAMPLES = 8
"""With no more samples than these, every piece of news counts at once."""
PRIOR_GRAIN = 0.03
"""A prior that has moved by this share asks for another solution: what peers did tells of a worker not yet tried."""
MS_MIN = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """`ms = overhead_ms + ms_per_unit * units`, known to within the relative `error` (one standard error)."""

    overhead_ms: float
    ms_per_unit: float
    error: float = 0.0
    samples: float = 0.0

    def at(self, units: float) -> float:
        """Predicted milliseconds for so many units."""
        return self.overhead_ms + self.ms_per_unit * units

    def differs(self, other: "Line") -> bool:
        """Whether the two are further apart than what is worth solving for again."""
        apart_ms, apart = abs(self.overhead_ms - other.overhead_ms), abs(self.ms_per_unit - other.ms_per_unit)
        return apart_ms > PRIOR_GRAIN * other.overhead_ms or apart > PRIOR_GRAIN * other.ms_per_unit


class Affine:
    """A robust least-squares line over relative errors, held to a prior."""

    __slots__ = (
        "_error_min",
        "_halflife_s",
        "_line",
        "_news",
        "_pull",
        "_samples",
        "_seen",
        "_solved_at",
        "_solved_with",
    )

    def __init__(self, *, halflife_s: float, error_min: float, pull: tuple[float, float]) -> None:
        """error_min: least relative error that an estimate claims. pull: how many samples the prior counts, its
        overhead and its slope."""
        assert halflife_s > 0
        assert min(pull) > 0
        self._pull = pull
        self._halflife_s = halflife_s
        self._error_min = error_min
        self._samples: deque[tuple[float, float, float, float]] = deque(maxlen=SAMPLES_MAX)  # units, ms, at, weight
        self._line: Line | None = None
        self._news = False  # samples came since the last solution
        self._solved_at = -math.inf
        self._solved_with = self._seen = Line(overhead_ms=0.0, ms_per_unit=0.0)  # seen: the last that did not differ

    def observe(self, units: float, ms: float, now: float, weight: float = 1.0) -> None:
        """One sample: `units` of work took `ms`. weight: 1 if that was measured on its own, less if other work was."""
        if 0.0 <= units < 1e9 and 0.0 <= ms < 1e9:
            self._samples.append((units, ms, now, weight))
            self._news = True

    def line(self, now: float, prior: Line) -> Line:
        """The present estimate."""
        line, few = self._line, len(self._samples) <= FRESH_SAMPLES
        age_s = now - self._solved_at
        if line is not None and age_s < CACHE_S:
            if age_s < FRESH_S and not few:
                return line
            if not self._news and (prior is self._seen or not self._solved_with.differs(prior)):
                self._seen = prior
                return line
        self._line = self._solve(now, prior, line or prior, 2 * ROUNDS if few else ROUNDS)
        self._solved_at, self._solved_with, self._news = now, prior, False
        self._seen = prior
        return self._line

    def samples(self, now: float) -> float:
        """Weight of the evidence, in fresh samples."""
        return sum(weight * self._fresh(at, now) for _, _, at, weight in self._samples)

    def _fresh(self, at: float, now: float) -> float:
        return math.exp2(-max(now - at, 0.0) / self._halflife_s)

    def _solve(self, now: float, prior: Line, line: Line, rounds: int) -> Line:
        samples = [(units, ms, weight * self._fresh(at, now)) for units, ms, at, weight in self._samples]
        for _ in range(rounds if samples else 1):
            line = self._refined(samples, prior, line)
        known, residuals = SCATTER_PRIOR_SAMPLES, SCATTER_PRIOR_SAMPLES * SCATTER_PRIOR**2
        for units, ms, fresh in samples:
            known += fresh
            residuals += fresh * min(abs(ms / max(line.at(units), MS_MIN) - 1.0), 1.0) ** 2
        error = (self._error_min**2 + DOUBT**2 * residuals / known**2) ** 0.5
        return Line(
            overhead_ms=line.overhead_ms,
            ms_per_unit=line.ms_per_unit,
            error=error,
            samples=known - SCATTER_PRIOR_SAMPLES,
        )

    def _refined(self, samples: list[tuple[float, float, float]], prior: Line, line: Line) -> Line:
        """Normal equations of the samples, weighted by the line before, and of the prior's two parameters.

        Samples of one length cannot tell overhead from slope; then the overhead gives way, for it differs more.
        """
        count = weights = unit_sum = squares = ms_sum = products = 0.0
        base, slope = max(line.overhead_ms, MS_MIN), line.ms_per_unit
        for units, ms, fresh in samples:
            expected = base + slope * units
            off = abs(ms - expected) / OUTLIER
            weight = fresh / (expected * (off if off > expected else expected))
            weighted = weight * units
            count += fresh
            weights += weight
            unit_sum += weighted
            squares += weighted * units
            ms_sum += weight * ms
            products += weighted * ms
        overhead_pull = 1.0 / max(prior.overhead_ms, line.overhead_ms, MS_MIN) ** 2
        slope_pull = 1.0 / max(prior.ms_per_unit, line.ms_per_unit) ** 2
        if count >= 1.0:  # a prior far below the truth must not outweigh it
            overhead_pull = min(overhead_pull, weights / count)
            slope_pull = min(slope_pull, squares / count) if squares else slope_pull
        overhead_pull *= self._pull[0]
        slope_pull *= self._pull[1]
        weights += overhead_pull
        ms_sum += overhead_pull * prior.overhead_ms
        squares += slope_pull
        products += slope_pull * prior.ms_per_unit
        determinant = weights * squares - unit_sum * unit_sum
        slope = prior.ms_per_unit
        if determinant > 1e-12 * weights * squares:
            slope = (weights * products - unit_sum * ms_sum) / determinant
        least = max(prior.ms_per_unit / SLOPE_SPAN, SLOPE_SHARE_MIN * products / squares)
        slope = min(max(slope, least), prior.ms_per_unit * SLOPE_SPAN)
        overhead = (ms_sum - slope * unit_sum) / weights
        if overhead < 0.0:
            overhead, slope = 0.0, products / squares
        return Line(overhead_ms=overhead, ms_per_unit=slope)


class Ratio:
    """A decayed ratio of two sums, held to a prior: bytes per token of a group."""

    __slots__ = ("_bottom", "_prior", "_top")

    def __init__(self, *, prior: float, prior_weight: float) -> None:
        self._prior = prior
        self._top = prior * prior_weight
        self._bottom = prior_weight

    def observe(self, top: float, bottom: float) -> None:
        """One sample, weighted by its size; the memory is some 50 samples long."""
        if top <= 0.0 or bottom <= 0.0:
            return
        top_over_bottom = min(max(top / bottom, self._prior / 16.0), self._prior * 16.0)
        self._top = self._top * 0.98 + top_over_bottom * bottom
        self._bottom = self._bottom * 0.98 + bottom

    @property
    def value(self) -> float:
        return self._top / self._bottom


class Mean:
    """An exponentially weighted mean that starts at a prior."""

    __slots__ = ("_share", "value")

    def __init__(self, prior: float, share: float = 0.1) -> None:
        self.value = prior
        self._share = share

    def observe(self, value: float) -> None:
        """One sample; outliers count as at most five times the mean."""
        if value >= 0.0:
            self.value += self._share * (min(value, 5.0 * self.value + 1.0) - self.value)
