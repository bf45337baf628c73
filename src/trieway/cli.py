"""The command line: `trieway`."""

from __future__ import annotations


def main() -> int:
    """Entry point."""
    return 0
