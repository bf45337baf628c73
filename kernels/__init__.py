"""Kernels: text-block hashing (native and its twin) and attention. Knows no IO and nothing above it."""
