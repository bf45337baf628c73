"""Chained hashes of 64-byte text blocks.

Keeps true: the native form and the twin give the same hashes for the same bytes (tests/kernels). Does not know what a
namespace, a prompt or a secret is: `seed` and `parent` come in.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias, cast

import xxhash

BLOCK_BYTES = 64
"""Bytes of rendered prompt that one block holds. Part of the wire: a worker and a router must agree on it."""

HashChain: TypeAlias = Callable[[bytes, int, int], list[int]]


def hash_chain_twin(data: bytes, seed: int, parent: int) -> list[int]:
    """Hashes of the whole blocks of `data`: h[i] = XXH3-64(le64(h[i-1]) + block[i], seed), h[-1] = `parent`.

    `seed` and `parent` are in 0 .. 2**64 - 1. A partial last block is left out.
    """
    digest = xxhash.xxh3_64_intdigest
    hashes: list[int] = []
    view = memoryview(data)
    for start in range(0, len(view) - BLOCK_BYTES + 1, BLOCK_BYTES):
        parent = digest(parent.to_bytes(8, "little") + view[start : start + BLOCK_BYTES], seed)
        hashes.append(parent)
    return hashes


def _native() -> HashChain | None:
    try:
        module = import_module("trieway.kernels.native._native")
    except ImportError:
        return None
    native = cast(HashChain, module.hash_chain)
    probe = bytes(range(BLOCK_BYTES))
    # A big-endian host would read the words the other way round: the twin serves there.
    return native if native(probe, 7, 11) == hash_chain_twin(probe, 7, 11) else None


NATIVE: HashChain | None = _native()
hash_chain: HashChain = NATIVE or hash_chain_twin
