"""Every bound and constant of the router's decisions, in one place, with the reason for each value."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreConfig:
    """Constants of one RouterCore; the defaults suit a fleet of any size. Units are in the names."""

    policy: str = "cache_aware"
    """A name in policies.POLICIES."""
    seed_id: str
    """`FleetKey.seed_id`: a worker whose feed was seeded otherwise is refused."""

    # Bounds.
    tree_bytes_max: int = 512 << 20
    """Byte budget of the view; beyond it the coldest leaves go."""
    learned_blocks_max: int = 200_000
    """Blocks remembered for one worker without a feed; the oldest go first."""
    workers_max: int = 4096
    candidates_max: int = 48
    """Workers weighed for one request; in a larger fleet the most promising ones by three orders."""
    bookings_max: int = 65_536
    """Open bookings of the whole router; beyond it `choose` rejects."""
    worker_bookings_max: int = 1024
    """Open bookings of one worker; a worker at the bound is not chosen."""
    speculations_max: int = 16_384
    """Speculative prefixes alive at once; beyond it a booking goes without one."""

    # Prior rates: used before anything is measured and again after a time without traffic.
    prior_prefill_tokens_per_s: float = 1000.0
    prior_overhead_ms: float = 10.0
    """Time to first token of a prompt that is held whole, on an idle worker."""
    prior_bytes_per_token: float = 4.0
    prior_decode_step_ms: float = 20.0
    prior_decode_request_ms: float = 1.0
    """What one more running request adds to a decode step."""
    reload_tokens_per_s: float = 50_000.0
    """Rate at which tokens held in host memory or beyond come back to the device, until it is learnt."""
    rate_halflife_s: float = 120.0
    """Evidence about a rate loses half of its weight in this time, so an idle fleet returns to the prior."""
    peer_halflife_s: float = 60.0
    """The same for what sets one worker apart from its peers: a wrong impression must not outlast a lull."""
    rate_error: float = 0.05
    """Least relative error of a learnt rate: closer costs are a tie. The host itself drifts by this much."""
    cost_error_ms: float = 1.0
    """Least absolute error of a cost: timer and network jitter."""
    queue_error: float = 0.15
    """Relative error of a predicted queue: what decodes and chunks do in between is not known exactly."""

    step_tokens: int = 512
    """Prompt tokens that a worker computes in one step; shorter prompts share a step and its overhead."""

    # Spreading.
    inflow_halflife_s: float = 120.0
    """How long an uncached token sent to a worker counts as a recent fill of its cache."""
    inflow_softness_tokens: float = 64.0
    """Recent fills below this are no difference between workers yet."""
    spread_weight: float = 0.2
    """A worker that lately computed more new tokens than its peers pays this share of the excess: a prefix that draws
    everybody to one worker is copied once the flow it drew outweighs the copy. Below 1 a lone chat never moves."""
    spread_tolerance: float = 0.15
    """Excess over the peers' mean that costs nothing: sampling noise under balanced load."""
    spread_share_max: float = 0.5
    """The excess never costs more than this share of computing the whole prompt: a prompt held mostly stays."""
    spread_tilt: float = 0.5
    """Between workers that hold equally much, the excess never costs more than this share of the cost's error."""
    heat_halflife_s: float = 60.0
    """Computing a shared prefix once more is an investment: its cost is divided among the requests that this time's
    traffic lets expect to use the copy. The copy fades with the heat."""
    heat_forks_max: int = 8192
    heat_weight: float = 0.5
    """Share of those requests that is counted on; 0: no copy but under load."""
    work_weight: float = 0.3
    """Share of the uncached work that counts once more, for it keeps the worker from everybody else: of two places as
    soon, the one that need not compute is better."""
    displaced_weight: float = 1.0
    """What each token counts that must be evicted to make room for this prompt, in tokens to compute: a full cache
    holds mostly what somebody will ask for again. 0: eviction is free."""
    decode_weight: float = 0.1
    """Share of the predicted slow-down of the answer that counts as cost; 0: time to first token alone."""
    prior_output_tokens: int = 64
    """Length of an answer for that purpose, unless max_tokens is below it."""
    tie_chance_min: float = 0.2
    """A worker less likely than this to beat the cheapest is no tie; a tenth of it where both hold nothing."""

    # Health.
    heartbeat_timeout_s: float = 5.0
    """A fed worker silent for longer is suspect: chosen only when no other is left."""
    feed_grace_s: float = 15.0
    """Silence after which what the view holds of the worker is dropped: lost deletes make ghosts."""
    breaker_errors: int = 3
    """Consecutive worker errors that open the breaker."""
    breaker_open_s: float = 2.0
    """Time until the first half-open probe; doubles with each failed probe."""
    breaker_open_max_s: float = 30.0
    speculation_max_s: float = 120.0
    """A speculation older than this is retired whatever its booking does."""
    ready_share: float = 0.5
    """Share of the fleet's feeds that must be loaded for the router to call itself ready at once."""
    ready_wait_s: float = 10.0
    """After this long with some worker up, the router is ready with whatever share it has."""
    retry_after_s: float = 1.0
    """What a rejected client is told when no better estimate is at hand."""
