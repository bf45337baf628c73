"""What the workers of one model have in common, learnt over all of them: the prior of each one's own rates.

Keeps true: a new or long idle worker is judged by its peers, a whole idle fleet by the configured prior. Does not know
single workers (members.py holds their own lines).
"""

from trieway.router.core.config import CoreConfig
from trieway.router.core.rates import Affine, Line, Ratio


class Pool:
    """Rates over all workers of one model."""

    __slots__ = ("_decode", "_decode_prior", "_prefill", "_prefill_prior", "bytes_per_token")

    def __init__(self, config: CoreConfig) -> None:
        self._prefill_prior = Line(
            overhead_ms=config.prior_overhead_ms, ms_per_unit=1e3 / config.prior_prefill_tokens_per_s
        )
        self._decode_prior = Line(overhead_ms=config.prior_decode_step_ms, ms_per_unit=config.prior_decode_request_ms)
        self._prefill = new_line(config, pull=CONFIG_PULL, halflife_s=config.rate_halflife_s)
        self._decode = new_line(config, pull=CONFIG_PULL, halflife_s=config.rate_halflife_s)
        self.bytes_per_token = Ratio(prior=config.prior_bytes_per_token, prior_weight=64.0)

    def prefill(self, now: float) -> Line:
        return self._prefill.line(now, self._prefill_prior)

    def decode(self, now: float) -> Line:
        return self._decode.line(now, self._decode_prior)

    def observe_prefill(self, tokens: float, ms: float, now: float, weight: float = 1.0) -> None:
        self._prefill.observe(tokens, ms, now, weight)

    def observe_decode(self, running: float, step_ms: float, now: float) -> None:
        self._decode.observe(running, step_ms, now)


CONFIG_PULL = (0.1, 2.0)
PEERS_PULL = (24.0, 24.0)
"""Samples of its own that a worker needs to be judged by itself as much as by its peers, in overhead and slope: the
company that so few requests had differs more than machines do, and who looks slow is not asked again."""


def new_line(config: CoreConfig, pull: tuple[float, float], halflife_s: float) -> Affine:
    """Milliseconds over units of work, nothing known yet."""
    return Affine(halflife_s=halflife_s, error_min=config.rate_error, pull=pull)
