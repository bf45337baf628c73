"""Routing policies behind one interface."""

POLICIES: tuple[str, ...] = ("cache_aware", "longest_prefix", "least_loaded", "round_robin")
