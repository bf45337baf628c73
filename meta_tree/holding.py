"""What the view keeps about one worker: its place in the holder sets, its digest, what was dropped of it.

Keeps true: `digest` is the digest of everything that the worker is believed to hold, also of the blocks that the view
dropped to keep its byte budget (`dropped`), so that comparing it with the worker's own stays meaningful. Does not know
which blocks these are.
"""

from __future__ import annotations

from trieway.meta_tree.digest import DIGEST_BUCKETS, Digest
from trieway.meta_tree.ids import GroupId, WorkerId

HOLDING_BYTES = 32 * 1024
"""What a worker costs before it holds anything: two digests and a table of counts."""


class Holding:
    __slots__ = (
        "approximate",
        "bit",
        "blocks",
        "digest",
        "dropped",
        "dropped_blocks",
        "dropped_counts",
        "group",
        "index",
        "learned",
        "worker",
    )

    def __init__(self, worker: WorkerId, group: GroupId, index: int, approximate: bool) -> None:
        self.worker = worker
        self.group = group
        self.index = index
        self.bit = 1 << index
        self.approximate = approximate
        self.clear()

    def clear(self) -> None:
        self.blocks = 0
        """Blocks in the view, each tier counted; `dropped_blocks` are on top."""
        self.digest = Digest()
        self.dropped = Digest()
        self.dropped_blocks = 0
        self.dropped_counts = [0] * DIGEST_BUCKETS
        self.learned: dict[int, None] = {}
        """Approximate workers only: the learned blocks, least recently learned first."""

    def drop(self, block: int, tier: int, usable: int) -> None:
        """The view lets go of a block that the worker still holds (as far as one knows of an approximate one)."""
        self.blocks -= 1
        if self.approximate:
            self.digest.remove(block, tier, usable)
            del self.learned[block]
            return
        self.dropped.add(block, tier, usable)
        self.dropped_blocks += 1
        self.dropped_counts[block >> 56] += 1

    def undrop(self, block: int, tier: int, usable: int) -> bool:
        """The worker let go of a block that is not in the view. False: none was dropped there, so it is not ours."""
        if not self.dropped_counts[block >> 56]:
            return False
        self.dropped.remove(block, tier, usable)
        self.digest.remove(block, tier, usable)
        self.dropped_blocks -= 1
        self.dropped_counts[block >> 56] -= 1
        return True

    def forget_dropped(self, bucket: int) -> int:
        """The bucket's true content is about to be told: nothing counts as dropped there. Returns how many did."""
        count = self.dropped_counts[bucket]
        self.digest.shift(bucket, -self.dropped.bucket(bucket))
        self.dropped.shift(bucket, -self.dropped.bucket(bucket))
        self.dropped_blocks -= count
        self.dropped_counts[bucket] = 0
        return count
