"""What a worker tells a router about its model: the body of `GET /cache/model`, and the vocabulary's wire form.

Keeps true: two workers have the same `group` exactly where a prompt gives the same bytes, tokens and weights on both,
so that one tree may serve them. Does not know the feed or the cache.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import msgspec

VOCABULARY_TOKENS_MAX = 4_000_000
"""Most entries of a token -> bytes table that a router takes."""
VOCABULARY_BYTES_MAX = 256 * 1024 * 1024
_HEAD = struct.Struct("<4sII")
_MAGIC = b"TWV1"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The handshake. Digests are hex; `template` is the chat template's source, None where the model has none."""

    wire: int
    block_bytes: int
    seed_id: str
    model: str
    aliases: tuple[str, ...] = ()
    group: str
    weights_digest: str
    template: str | None
    template_digest: str
    reads_clock: bool
    bos_token: str
    eos_token: str
    completion_prefix: str
    """Text that the tokenizer puts before a text prompt of a completion (BOS), '' for none. Part of the key."""
    vocabulary_digest: str
    vocabulary_size: int
    renderer_version: str
    epoch: int
    page_size: int
    context_tokens: int
    kv_tokens: int


class HandshakeError(ValueError):
    """The other side's handshake cannot be read."""


def encode_card(card: ModelCard) -> bytes:
    """The JSON body of `GET /cache/model`."""
    return msgspec.json.encode(card)


def decode_card(body: bytes) -> ModelCard:
    """The card in `body`; fields of later versions are ignored. Raises HandshakeError."""
    try:
        return msgspec.json.decode(body, type=ModelCard)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HandshakeError(f"not a model card: {error}") from None


def group_id(
    *,
    model: str,
    weights_digest: str,
    template_digest: str,
    vocabulary_digest: str,
    renderer_version: str,
    completion_prefix: str,
    bos_token: str,
    eos_token: str,
) -> str:
    """16 hex digits that name the group: equal exactly where all of these are."""
    digest = hashlib.blake2b(digest_size=8, person=b"trieway-group")
    for part in (
        model,
        weights_digest,
        template_digest,
        vocabulary_digest,
        renderer_version,
        completion_prefix,
        bos_token,
        eos_token,
    ):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def vocabulary_digest(table: Sequence[bytes]) -> str:
    """32 hex digits over the whole token -> bytes table."""
    return hashlib.blake2b(encode_vocabulary(table), digest_size=16, person=b"trieway-vocab").hexdigest()


def encode_vocabulary(table: Sequence[bytes]) -> bytes:
    """The body of `GET /cache/model?part=vocabulary`: magic, count, bytes, u32 lengths, bytes; little-endian."""
    blob = b"".join(table)
    lengths = struct.pack(f"<{len(table)}I", *map(len, table))
    return _HEAD.pack(_MAGIC, len(table), len(blob)) + lengths + blob


def decode_vocabulary(data: bytes) -> list[bytes]:
    """The table in `data`. Raises HandshakeError for anything cut, too large or inconsistent."""
    if len(data) < _HEAD.size:
        raise HandshakeError("vocabulary: cut before its head")
    magic, count, blob_bytes = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise HandshakeError("vocabulary: another format; update the older side")
    if count > VOCABULARY_TOKENS_MAX or blob_bytes > VOCABULARY_BYTES_MAX:
        raise HandshakeError(f"vocabulary: over {VOCABULARY_TOKENS_MAX} tokens or {VOCABULARY_BYTES_MAX} bytes")
    start = _HEAD.size + 4 * count
    if len(data) != start + blob_bytes:
        raise HandshakeError("vocabulary: its length is not what its head says")
    lengths = struct.unpack_from(f"<{count}I", data, _HEAD.size)
    if sum(lengths) != blob_bytes:
        raise HandshakeError("vocabulary: its lengths do not add up")
    table: list[bytes] = []
    for length in lengths:
        table.append(data[start : start + length])
        start += length
    return table
