"""Names that every process shares: tiers, namespaces, workers, groups, and a decision's refusal.

Keeps true: two namespaces encode to the same bytes only if they are equal. Does not know how a namespace is turned into
hashes (chain.py) nor who may use one (the shells).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

WorkerId = NewType("WorkerId", str)
GroupId = NewType("GroupId", str)
"""Workers of one group would cut, tokenise and cache a text alike: model, weights, template, vocabulary, renderer."""


class Tier(IntEnum):
    """Where a block's bytes are; a lower tier is nearer to the computation."""

    DEVICE = 0
    HOST = 1
    EXTERNAL = 2


TIERS = len(Tier)


@dataclass(frozen=True, kw_only=True, slots=True)
class Namespace:
    """Who shares a prefix. An empty string means the same as None: not given."""

    tenant: str | None = None
    salt: str | None = None
    adapter: str | None = None

    def __post_init__(self) -> None:
        for name in ("tenant", "salt", "adapter"):
            if getattr(self, name) == "":
                object.__setattr__(self, name, None)

    def encode(self) -> bytes:
        """Typed and length-prefixed: per given part a tag byte, the length as 4 little-endian bytes, then UTF-8."""
        parts: list[bytes] = []
        for tag, text in ((b"t", self.tenant), (b"s", self.salt), (b"a", self.adapter)):
            if text is not None:
                # surrogatepass: no string that a header or a body can bring may fail here, and none may alias another.
                raw = text.encode("utf-8", "surrogatepass")
                parts.append(tag + len(raw).to_bytes(4, "little") + raw)
        return b"".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A decision not to serve. `retry_after_s` is given where waiting helps."""

    reason: str
    retry_after_s: float | None = None
