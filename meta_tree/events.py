"""What a cache says about itself: blocks stored, blocks removed, everything cleared.

Keeps true: events are about the *set* of blocks held per tier (said on the first copy and on the last), so telling one
twice changes nothing. A chain hash names a block and all before it, so a table may key on the hash alone. Does not know
numbers, epochs or workers.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from trieway.meta_tree.ids import Tier


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A run of blocks, each the child of the one before, the first the child of `parent` (or of the namespace's root).

    `usable[i]`: tokens of a prompt that are reusable if the prompt agrees up to the end of block i; never falling along
    a path. A block that is held already takes the new `usable`.
    """

    namespace_id: int
    parent: int
    hashes: tuple[int, ...]
    usable: tuple[int, ...]
    tier: Tier = Tier.DEVICE

    def __post_init__(self) -> None:
        assert len(self.hashes) == len(self.usable)


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """Blocks that left a tier, in any order.

    `usable` is what each block counted when it left. A cache need not fill it: the publisher does, so that a router
    which dropped the block for want of room can still take it out of its digest.
    """

    namespace_id: int
    hashes: tuple[int, ...]
    tier: Tier = Tier.DEVICE
    usable: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.usable) in (0, len(self.hashes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleared:
    """Every block of every tier and namespace is gone."""


CacheEvent: TypeAlias = Stored | Removed | Cleared


@dataclass(frozen=True, kw_only=True, slots=True)
class Replaced:
    """The whole content of some digest buckets, asked for again after drift. Made by the subscriber for the view."""

    indices: tuple[int, ...]
    events: tuple[Stored, ...]


ViewEvent: TypeAlias = CacheEvent | Replaced


def within(event: CacheEvent, buckets: Container[int]) -> Iterator[CacheEvent]:
    """The parts of an event that concern these digest buckets (top byte of the hash)."""
    match event:
        case Cleared():
            yield event
        case Stored():
            parent = event.parent
            for block, usable in zip(event.hashes, event.usable, strict=True):
                if block >> 56 in buckets:
                    yield Stored(
                        namespace_id=event.namespace_id,
                        parent=parent,
                        hashes=(block,),
                        usable=(usable,),
                        tier=event.tier,
                    )
                parent = block
        case Removed():
            keep = [at for at, block in enumerate(event.hashes) if block >> 56 in buckets]
            yield Removed(
                namespace_id=event.namespace_id,
                hashes=tuple([event.hashes[at] for at in keep]),
                tier=event.tier,
                usable=tuple([event.usable[at] for at in keep]) if event.usable else (),
            )
