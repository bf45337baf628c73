"""A request's KV from admission to release: the hit it takes, the pages it adds, what it leaves in the cache.

Keeps true: of a sequence's page table `row`, the first `shared` pages are the cache's and locked by its receipt, the
rest are its own; free + cached + own pages of all sequences = total. Does not know order, budgets or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trieway.worker.core.cover import Cover
from trieway.worker.core.node import Match
from trieway.worker.core.pool import PagePool
from trieway.worker.core.radix import RadixCache
from trieway.worker.core.radix_check import check_cache
from trieway.worker.core.sequence import Request, SchedulerConfig
from trieway.worker.core.tracked import Tracked


class KV:
    def __init__(self, config: SchedulerConfig, token_bytes: Sequence[bytes]) -> None:
        self.page_size = config.page_size
        self.pool = PagePool(config.kv_tokens // config.page_size, config.page_size)
        self.cache = RadixCache(self.pool, enabled=config.prefix_cache)
        self._token_bytes = token_bytes

    @property
    def available(self) -> int:
        """Pages that can be had now: free ones and what eviction would give."""
        return self.pool.free + self.cache.evictable // self.page_size

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def cover_for(self, request: Request) -> Cover:
        """Past a prompt that a text would not take to its end, no output is covered either."""
        canonical = None if request.canonical >= len(request.tokens) else request.canonical
        return Cover(request.chain, self._token_bytes, self.page_size, canonical)

    def match(self, sequence: Tracked) -> Match:
        return self.cache.match(sequence.request.chain, sequence.tokens, sequence.reuse_max)

    def hit(self, sequence: Tracked) -> int:
        """Tokens of the sequence that are cached now; looked up again only if the cache changed."""
        if sequence.hit_version != self.cache.version:
            sequence.hit = self.match(sequence).length
            sequence.hit_version = self.cache.version
        return sequence.hit

    def admit(
        self, sequence: Tracked, reserve: int, victims: Iterable[Tracked] = (), *, evict: bool = True
    ) -> list[Tracked] | None:
        """Takes the hit and pages for all tokens not yet computed, if `reserve` pages stay available beside them.

        If there is no room, as few of `victims` as needed, in their order, are released and returned. None, and nothing
        changed, if that is not enough either, or if pages would have to be evicted and must not.
        """
        assert sequence.receipt is None
        receipt = self.cache.lock(self.match(sequence))  # first: the own hit is no room to evict
        count = self.pages_for(len(sequence.tokens)) - receipt.length // self.page_size
        if evict:
            released = self.would_free(victims, count + reserve)
        else:
            released = [] if count + reserve <= self.pool.free else None
        if released is None:
            self.cache.unlock(receipt)
            return None
        for victim in released:
            self.release(victim)
        self.cache.touch(receipt)
        sequence.receipt = receipt
        sequence.row = self.cache.pages_of(receipt)
        sequence.shared = len(sequence.row)
        sequence.computed = sequence.hit = receipt.length
        sequence.prefill_end = len(sequence.tokens)
        grown = self.grow(sequence, count)
        assert grown
        return released

    def grow(self, sequence: Tracked, pages: int) -> bool:
        """Adds own pages, evicting as needed. False, and nothing changed, if there are not so many."""
        lacking = pages - self.pool.free
        if lacking > 0:
            if lacking * self.page_size > self.cache.evictable:
                return False
            self.cache.evict(lacking)
        sequence.row += self.pool.allocate(pages)
        return True

    def store(self, sequence: Tracked) -> None:
        """Hands what is computed, in whole pages, to the cache and holds it there."""
        request = sequence.request
        if not request.publish or not self.cache.enabled:
            return
        if sequence.computed // self.page_size == sequence.shared and self._blocks_known(sequence):
            return
        cover = sequence.cover
        cover.extend(sequence.tokens[cover.tokens : sequence.computed])
        match = self.cache.store(
            request.chain, sequence.tokens, sequence.computed, sequence.row, sequence.shared, cover
        )
        receipt = self.cache.lock(match)
        if sequence.receipt is not None:
            self.cache.unlock(sequence.receipt)
        sequence.receipt = receipt
        sequence.shared = match.length // self.page_size

    def _blocks_known(self, sequence: Tracked) -> bool:
        """True unless this text goes over shared tokens that were stored without their blocks."""
        receipt, limit = sequence.receipt, sequence.cover.limit
        if receipt is None or receipt.node is None:
            return True
        return receipt.node.covered >= (receipt.length if limit is None else min(limit, receipt.length))

    def release(self, sequence: Tracked) -> None:
        """Gives everything back: what can be kept goes to the cache, the rest is free."""
        self.store(sequence)
        own = sequence.row[sequence.shared :]
        sequence.row = []
        sequence.shared = sequence.computed = 0
        sequence.hit_version = -1
        self.pool.free_running(own)
        if sequence.receipt is not None:
            self.cache.unlock(sequence.receipt)
            sequence.receipt = None

    def would_free(self, sequences: Iterable[Tracked], enough: int) -> list[Tracked] | None:
        """The fewest of `sequences`, in their order, whose release makes `enough` pages available; None if even all do
        not. Changes nothing: locks are opened and closed again to count exactly, since sequences share pages."""
        chosen: list[Tracked] = []
        own = 0
        for sequence in sequences:
            if self.available + own >= enough:
                break
            chosen.append(sequence)
            own += len(sequence.row) - sequence.shared
            if sequence.receipt is not None:
                self.cache.unlock(sequence.receipt)
        found = self.available + own >= enough
        for sequence in chosen:
            if sequence.receipt is not None:
                self.cache.relock(sequence.receipt)
        return chosen if found else None

    def check(self, sequences: Iterable[Tracked]) -> None:
        check_cache(self.cache)
        own: list[int] = []
        receipts: set[int] = set()
        for sequence in sequences:
            assert 0 <= sequence.shared <= len(sequence.row)
            assert sequence.computed <= len(sequence.tokens)
            assert sequence.shared * self.page_size <= sequence.computed <= len(sequence.row) * self.page_size
            own += sequence.row[sequence.shared :]
            if sequence.receipt is not None:
                receipts.add(id(sequence.receipt))
                assert sequence.receipt.length == sequence.shared * self.page_size
                assert sequence.row[: sequence.shared] == self.cache.pages_of(sequence.receipt)
            else:
                assert not sequence.row
        assert len(own) == len(set(own)) == self.pool.running
        held = [id(receipt) for node in self.cache.walk() for receipt in node.receipts]
        assert len(held) == len(set(held))
        assert set(held) <= receipts, "a lock that no request owns"
