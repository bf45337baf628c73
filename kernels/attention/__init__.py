"""Paged attention: the storage (paged.py), the oracle for any device (sdpa.py), the CPU's own (blocked.py)."""
