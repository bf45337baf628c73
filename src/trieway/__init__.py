"""Trieway: a cache-aware router and worker fleet for large language models."""

__version__ = "0.1.0"
