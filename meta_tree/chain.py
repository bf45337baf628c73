"""From a fleet's secret to the chained hashes of a text in a namespace.

Keeps true: same secret, namespace and bytes give the same hashes in every process; nothing that is sent or shown lets
the secret be computed. Does not know what a prompt is, nor where the secret comes from.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from trieway.kernels.block_hash import hash_chain
from trieway.meta_tree.ids import Namespace

WIRE_VERSION = 1
"""Version of frames and hashing together. Peers with another one are refused."""

_EXTRACT_SALT = b"trieway wire 1"
_PUBLISHED_SECRET = b"trieway published secret: for loopback only"


def _extract(secret: bytes) -> bytes:
    """HKDF-Extract of RFC 5869 with SHA-256."""
    return hmac.digest(_EXTRACT_SALT, secret, hashlib.sha256)


def _expand(key: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand of RFC 5869 with SHA-256; one round, so at most 32 bytes."""
    assert length <= 32
    return hmac.digest(key, info + b"\x01", hashlib.sha256)[:length]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The hashing of one namespace. `root` is the parent of a text's first block and the `namespace_id` on the wire."""

    seed: int
    root: int

    def hashes(self, text: bytes) -> list[int]:
        """Hashes (0 .. 2**64 - 1) of the whole 64-byte blocks of `text`; a partial last block is left out."""
        return hash_chain(text, self.seed, self.root)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetKey:
    """What a fleet's processes derive from their shared secret."""

    published: bool
    """True: the secret is the one printed in this file, so every open port must be on loopback."""
    seed_id: str
    """16 hex digits that name the secret without telling it; peers with another one are refused."""
    feed_token: str = field(repr=False)
    """64 hex digits that a router shows to a worker's feed."""
    _key: bytes = field(repr=False)

    @classmethod
    def from_secret(cls, secret: bytes | None) -> FleetKey:
        """None takes the published secret. Raises ValueError for an empty one: an empty secret file is a mistake."""
        if secret is not None and not secret:
            raise ValueError("the fleet secret is empty: write some random bytes to its file")
        key = _extract(_PUBLISHED_SECRET if secret is None else secret)
        return cls(
            published=secret is None,
            seed_id=_expand(key, b"seed id", 8).hex(),
            feed_token=_expand(key, b"feed token", 32).hex(),
            _key=key,
        )

    def chain(self, namespace: Namespace) -> Chain:
        raw = _expand(self._key, b"chain" + namespace.encode(), 16)
        return Chain(seed=int.from_bytes(raw[:8], "little"), root=int.from_bytes(raw[8:], "little"))
