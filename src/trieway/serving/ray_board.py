"""The board on which replicas publish where they are, and which roll they are of: the key-value store of Ray's GCS.

Keeps true: with a GCS on Redis the board outlives the head; a call that fails or hangs (the head is away) is the
caller's thread's trouble alone, so call it from a thread of its own. Does not know what entries mean (ray_entries.py).
"""

from __future__ import annotations

from typing import Any

from ray.experimental import internal_kv

from trieway.serving.ray_entries import Entry, decode_entry, encode_entry

NAMESPACE = b"trieway"
CALL_TIMEOUT_S = 5.0


class BoardAway(Exception):
    """The GCS did not answer."""


class Board:
    """The entries of one fleet. The process must be attached to the cluster (ray_attach.py)."""

    def __init__(self, fleet: str) -> None:
        self._prefix = f"{fleet}/".encode()
        self._roll = f"{fleet}:roll".encode()

    def put(self, entry: Entry) -> None:
        """Writes or overwrites. Raises BoardAway."""
        call_store("internal_kv_put", self._key(entry), encode_entry(entry), True, NAMESPACE)

    def remove(self, entry: Entry) -> None:
        """Raises BoardAway."""
        call_store("internal_kv_del", self._key(entry), False, NAMESPACE)

    def entries(self) -> list[Entry]:
        """All of them. Raises BoardAway."""
        keys = call_store("internal_kv_keys", self._prefix, NAMESPACE)
        if not keys:
            return []
        values = call_store("internal_kv_multi_get", list(keys), NAMESPACE)
        return [entry for value in values.values() if (entry := decode_entry(value)) is not None]

    def roll(self) -> str:
        """The word with which the replicas were last replaced; empty: they never were. Raises BoardAway."""
        found: bytes | None = call_store("internal_kv_get", self._roll, NAMESPACE)
        return "" if found is None else found.decode(errors="replace")

    def set_roll(self, word: str) -> None:
        """Raises BoardAway."""
        call_store("internal_kv_put", self._roll, word.encode(), True, NAMESPACE)

    def clear(self) -> None:
        """Removes every entry, and the word. Raises BoardAway."""
        call_store("internal_kv_del", self._prefix, True, NAMESPACE)
        call_store("internal_kv_del", self._roll, False, NAMESPACE)

    def _key(self, entry: Entry) -> bytes:
        return self._prefix + f"{entry.role}/{entry.replica}".encode()


def call_store(name: str, *arguments: Any) -> Any:
    """A call of the GCS's key-value store. Raises BoardAway."""
    client = internal_kv.internal_kv_get_gcs_client()
    if client is None:
        raise BoardAway("this process is not attached to a Ray cluster")
    try:
        return getattr(client, name)(*arguments, timeout=CALL_TIMEOUT_S)
    except Exception as error:  # Ray raises its own RPC errors, RuntimeError or TimeoutError, by version
        raise BoardAway(f"{type(error).__name__}: {error}") from None
