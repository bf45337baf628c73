"""What a worker's work costs in milliseconds, learnt from what it delivered.

`Affine` fits `ms = overhead + slope * units` with forgetting: old evidence fades with time and with new evidence, and
a prior fills in whatever the evidence leaves open. Keeps true: estimates are positive and finite whatever comes in, one
outlier moves them little, and without traffic they return to the prior. Does not know what the units mean: prompt
tokens for prefill, running requests for a decode step.
"""

from dataclasses import dataclass

SLOPE_SPAN = 1e4
"""A learnt slope stays within this factor of its prior: beyond it a clock is broken, not a worker fast."""
FORGET_PER_SAMPLE = 0.97
"""About 33 samples are remembered under steady traffic, so a changed worker is known within some 30 requests."""
SLOW_CLIP, FAST_CLIP = 3.0, 8.0
"""A sample is clipped to these factors of its prediction; slow outliers (a paused host) are the common kind."""
SCATTER_PRIOR = 0.15
SCATTER_PRIOR_SAMPLES = 8.0
CACHE_S = 1.0
"""An estimate is solved again after this time at the latest, for forgetting goes on without samples."""


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


class Affine:
    """A decayed least-squares line, fitted to relative errors, held to a prior by two pseudo-samples."""

    __slots__ = ("_error_min", "_halflife_s", "_line", "_prior_units", "_scatter", "_solved_at", "_sums", "_updated")

    def __init__(self, *, halflife_s: float, error_min: float, prior_units: float) -> None:
        """prior_units: where the prior line is held besides 0, a typical amount of work."""
        assert halflife_s > 0
        assert prior_units > 0
        self._halflife_s = halflife_s
        self._error_min = error_min
        self._prior_units = prior_units
        self._sums = [0.0] * 5  # weight, units, units squared, ms, units * ms; each weighted by 1 / predicted squared
        self._scatter = (0.0, 0.0)  # samples, their squared relative residuals
        self._updated = 0.0
        self._line: Line | None = None
        self._solved_at = 0.0

    def observe(self, units: float, ms: float, now: float, prior: Line) -> None:
        """One sample: `units` of work took `ms`."""
        if not (units >= 0.0 and 0.0 <= ms < 1e9):
            return
        line = self.line(now, prior)
        self._fade(now)
        expected = max(line.at(units), 0.01)
        ms = min(max(ms, expected / FAST_CLIP), expected * SLOW_CLIP)
        weight = 1.0 / (max(expected, ms) ** 2)
        sums = [value * FORGET_PER_SAMPLE for value in self._sums]
        for index, term in enumerate((1.0, units, units * units, ms, units * ms)):
            sums[index] += weight * term
        self._sums = sums
        residual = min(abs(ms - expected) / expected, 1.0)
        samples, squares = self._scatter
        self._scatter = (samples * FORGET_PER_SAMPLE + 1.0, squares * FORGET_PER_SAMPLE + residual * residual)
        self._line = None

    def line(self, now: float, prior: Line) -> Line:
        """The present estimate."""
        if self._line is None or now - self._solved_at >= CACHE_S:
            self._fade(now)
            self._line = self._solve(prior)
            self._solved_at = now
        return self._line

    def samples(self, now: float) -> float:
        """Weight of the evidence, in samples."""
        self._fade(now)
        return self._scatter[0]

    def _fade(self, now: float) -> None:
        passed = now - self._updated
        self._updated = now
        if passed <= 0.0:
            return
        kept = 0.5 ** (passed / self._halflife_s)
        self._sums = [value * kept for value in self._sums]
        samples, squares = self._scatter
        self._scatter = (samples * kept, squares * kept)

    def _solve(self, prior: Line) -> Line:
        """Normal equations of the samples and of the prior at 0 and at `prior_units`, each counted as one sample."""
        weight, units, squares, ms, product = self._sums
        for at in (0.0, self._prior_units):
            held = max(prior.at(at), 0.01)
            pull = 1.0 / (held * held)
            weight += pull
            units += pull * at
            squares += pull * at * at
            ms += pull * held
            product += pull * at * held
        determinant = weight * squares - units * units
        slope = prior.ms_per_unit
        if determinant > 1e-12 * weight * squares:
            slope = (weight * product - units * ms) / determinant
        slope = min(max(slope, prior.ms_per_unit / SLOPE_SPAN), prior.ms_per_unit * SLOPE_SPAN)
        overhead = max((ms - slope * units) / weight, 0.0)
        samples, residuals = self._scatter
        known = samples + SCATTER_PRIOR_SAMPLES
        scatter = (residuals + SCATTER_PRIOR_SAMPLES * SCATTER_PRIOR**2) / known
        error = (self._error_min**2 + scatter / known) ** 0.5
        return Line(overhead_ms=overhead, ms_per_unit=slope, error=error, samples=samples)


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
