"""Reports of load tests, kept in the cluster: in the key-value store of Ray's GCS, beside the board.

Keeps true: a report outlives the job that made it and the fleet that it measured; with a GCS on Redis it outlives the
head; the number and size of reports are bounded, the oldest leave first. Does not know what is in a report.
"""

from __future__ import annotations

import zlib

from trieway.serving.ray_board import call_store

NAMESPACE = b"trieway-reports"
KEPT_MAX = 32
REPORT_BYTES_MAX = 4 * 1024 * 1024
"""Of one report, packed: the store holds everything in memory."""
UNPACKED_BYTES_MAX = 256 * 1024 * 1024


class ReportTooLarge(Exception):
    """A report that the store does not take."""


class Reports:
    """The reports of one fleet. Every call raises BoardAway while the head is away."""

    def __init__(self, fleet: str) -> None:
        self._prefix = f"{fleet}/".encode()

    def keep(self, name: str, report: bytes) -> None:
        """Adds or replaces one. Names sort by age. Raises ReportTooLarge."""
        packed = zlib.compress(report, 9)
        if len(packed) > REPORT_BYTES_MAX or len(report) > UNPACKED_BYTES_MAX:
            raise ReportTooLarge(f"{len(report)} bytes, {len(packed)} packed; the store takes {REPORT_BYTES_MAX}")
        call_store("internal_kv_put", self._prefix + name.encode(), packed, True, NAMESPACE)
        for old in self.names()[:-KEPT_MAX]:
            call_store("internal_kv_del", self._prefix + old.encode(), False, NAMESPACE)

    def names(self) -> list[str]:
        """All of them, oldest first."""
        keys = call_store("internal_kv_keys", self._prefix, NAMESPACE)
        return sorted(key.removeprefix(self._prefix).decode() for key in keys)

    def read(self, name: str) -> bytes | None:
        """None: there is none of this name."""
        packed = call_store("internal_kv_get", self._prefix + name.encode(), NAMESPACE)
        return None if packed is None else zlib.decompressobj().decompress(packed, UNPACKED_BYTES_MAX)
