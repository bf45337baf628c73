"""Service level objectives: what a run has to hold, and what one request has to hold to count as good.

Keeps true: what is written out reads back the same. Does not know how anything was measured.
"""

from __future__ import annotations

import math
import re

import msgspec

from trieway.loadgen.errors import LoadError

METRICS = ("ttft", "itl", "tpot", "e2e")
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
_TERM = re.compile(r"(?P<name>[a-z0-9_]+)\s*(?:<=|=|<)\s*(?P<value>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s|%)?\Z")
HOW = "give terms like ttft_p95=500ms,itl_p95=50ms,errors=1%"


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """One limit on one percentile."""

    metric: str
    """One of METRICS."""
    quantile: str
    """p50, p90, p95, p99 or max."""
    limit_ms: float

    @property
    def share(self) -> float:
        """The quantile as a share, 0 to 1."""
        return _QUANTILES[self.quantile]

    def __str__(self) -> str:
        return f"{self.metric}_{self.quantile}={self.limit_ms:g}ms"


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that must hold. `errors_max`: share of requests that may fail, 0 to 1."""

    bounds: tuple[Bound, ...] = ()
    errors_max: float = 0.01

    def __str__(self) -> str:
        return ",".join([*(str(bound) for bound in self.bounds), f"errors={self.errors_max * 100:g}%"])


def parse_slo(text: str) -> Slo:
    """`ttft_p95=500ms,itl_p95=50ms,errors=1%`; a bare number is milliseconds (errors: a share). LoadError: it is not
    such a list."""
    bounds: dict[tuple[str, str], Bound] = {}
    errors_max: float | None = None
    for term in filter(None, (part.strip() for part in text.split(","))):
        found = _TERM.match(term)
        if found is None:
            raise LoadError(f"SLO term {term!r} is not understood; {HOW}")
        name, value, unit = found["name"], float(found["value"]), found["unit"]
        if name in ("errors", "errors_max"):
            errors_max = _share(term, value, unit)
            continue
        metric, _, quantile = name.rpartition("_")
        if metric not in METRICS or quantile not in _QUANTILES:
            raise LoadError(f"SLO term {term!r} names no metric ({', '.join(METRICS)}) with p50 to p99 or max; {HOW}")
        limit = value * 1e3 if unit == "s" else value
        if unit == "%" or limit <= 0.0 or not math.isfinite(limit):
            raise LoadError(f"SLO term {term!r} needs a time above zero; {HOW}")
        if (metric, quantile) in bounds:
            raise LoadError(f"the SLO names {name} twice; {HOW}")
        bounds[metric, quantile] = Bound(metric=metric, quantile=quantile, limit_ms=limit)
    if not bounds and errors_max is None:
        raise LoadError(f"the SLO is empty; {HOW}")
    return Slo(bounds=tuple(bounds.values()), errors_max=0.01 if errors_max is None else errors_max)


def _share(term: str, value: float, unit: str | None) -> float:
    share = value / 100 if unit == "%" else value
    if unit not in (None, "%") or share > 1.0:
        raise LoadError(f"SLO term {term!r} needs a share of 0 to 100 %; {HOW}")
    return share
