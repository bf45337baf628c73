"""Workers with a part taken away, to see what that part is worth: a table in the tree's place, hits cut short, prompts
stored late.

Keeps true: pool and tree stay the production ones, with all their checks; an ablation only narrows what may be reused
or when it is stored, so no request ever gets more than it would have had. Does not know workloads or which figures
these ablations are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trieway.loadgen.sim.config import WorkerSetup
from trieway.meta_tree.chain import Chain
from trieway.worker.core.cover import Cover
from trieway.worker.core.kv import KV
from trieway.worker.core.node import Match, Node, Tokens
from trieway.worker.core.policies import Rng
from trieway.worker.core.pool import PagePool
from trieway.worker.core.radix import RadixCache
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import SchedulerConfig
from trieway.worker.core.tracked import Tracked

Index = Literal["tree", "table"]


class TableCache(RadixCache):
    """What a plain table of sequences could reuse: an entry is all that one request computed, and it is found only by a
    prompt that begins with the whole of it. Parts of entries are never found, so there is one level of sharing.

    Entries still share their pages where they agree, and those least recently used go first, page by page; an entry
    that lost its last page is none any more. A table that copies would hold less.
    """

    def __init__(self, pool: PagePool, *, enabled: bool = True) -> None:
        super().__init__(pool, enabled=enabled)
        self._ends: dict[Node, set[int]] = {}  # lengths from the root at which entries end within a node's edge

    def match(self, chain: Chain, tokens: Tokens, limit: int) -> Match:
        """The longest entry that `tokens` begin with, of which at most `limit` tokens are taken."""
        found = super().match(chain, tokens, len(tokens))
        node, length = found.node, 0
        while node is not None and not length:
            length = max((end for end in self._ends.get(node, ()) if end <= found.length), default=0)
            node = node.parent
        return super().match(chain, tokens, min(length, limit))

    def store(self, chain: Chain, tokens: Tokens, length: int, row: list[int], owned_from: int, cover: Cover) -> Match:
        """As in the tree; what is stored becomes an entry."""
        stored = super().store(chain, tokens, length, row, owned_from, cover)
        if stored.node is not None:
            self._ends.setdefault(stored.node, set()).add(stored.length)
        return stored

    def _split(self, node: Node, at: int) -> Node:
        ends = self._ends.pop(node, set())
        upper = super()._split(node, at)
        self._put(upper, {end for end in ends if end <= upper.end})
        self._put(node, {end for end in ends if end > upper.end})
        return upper

    def _trim(self, leaf: Node, tokens: int) -> None:
        keep = leaf.end - tokens
        ends = self._ends.pop(leaf, set())
        super()._trim(leaf, tokens)
        self._put(leaf, {end for end in ends if end <= keep})

    def _put(self, node: Node, ends: set[int]) -> None:
        if ends:
            self._ends[node] = ends

    @property
    def entries(self) -> int:
        """How many there are."""
        return sum(len(ends) for ends in self._ends.values())


class AblatedKV(KV):
    """See AblatedWorker."""

    def __init__(self, config: SchedulerConfig, token_bytes: Sequence[bytes], setup: AblatedWorker) -> None:
        super().__init__(config, token_bytes)
        if setup.index == "table":
            self.cache = TableCache(self.pool, enabled=config.prefix_cache)
        self._share = setup.reuse_share
        self._late = setup.store_late

    def match(self, sequence: Tracked) -> Match:
        """No more than the allowed share of the sequence."""
        most = sequence.reuse_max
        limit = most if self._share >= 1.0 else int(most * self._share)
        return self.cache.match(sequence.request.chain, sequence.tokens, limit)

    def store(self, sequence: Tracked) -> None:
        """At once, unless only what is complete is stored."""
        if not self._late:
            super().store(sequence)

    def release(self, sequence: Tracked) -> None:
        """Stored at the latest here."""
        super().store(sequence)
        super().release(sequence)


@dataclass(frozen=True, kw_only=True, slots=True)
class AblatedWorker(WorkerSetup):
    """A worker whose scheduling can be set beyond what a fleet's configuration offers."""

    index: Index = "tree"
    reuse_share: float = 1.0
    """At most this share of a prompt is taken from the cache, however much is there."""
    store_late: bool = False
    """A request's tokens enter the cache when it ends, not when its prompt is computed; until then its pages are its
    own, though the cache may hold the same."""
    await_siblings: bool = True
    """A request waits for a running prefill that will give it a longer hit."""
    wait_max_s: float = 10.0
    lpm_waiting_max: int = 128
    follow_up_s: float = 0.0
    keep_warm: bool = False

    def scheduler(self) -> SchedulerConfig:
        """See WorkerSetup."""
        usual = WorkerSetup.scheduler(self)
        return replace(
            usual,
            wait_max_s=self.wait_max_s,
            lpm_waiting_max=self.lpm_waiting_max,
            follow_up_s=self.follow_up_s,
            keep_warm=self.keep_warm,
            share_tokens_min=usual.share_tokens_min if self.await_siblings else usual.context_max,
        )

    def build(self, token_bytes: Sequence[bytes], rng: Rng) -> Scheduler:
        """See WorkerSetup."""
        config = self.scheduler()
        return Scheduler(config, token_bytes, rng, kv=AblatedKV(config, token_bytes, self))
