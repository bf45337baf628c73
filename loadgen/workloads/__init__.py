"""Seeded workloads: pure functions from parameters to calls."""
