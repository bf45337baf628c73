"""The radix cache against a brute-force one: a dictionary of page paths with the tick of each page's last use.

After every step: the cache's own proof, equal pages on equal paths, equal locks, the announced blocks recomputed from
the covered paths by definition, and the same set rebuilt from the events.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.worker_core.support import Holder, chain, hit, naive_blocks, new_cache, replay
from trieway.worker.core.radix_check import check_cache

PAGES = 32
SALTS = st.sampled_from(["", "", "", "s"])
# Two stems and short tails, so that paths meet often. 7 spells what 1, 1 does: copies of a block on different paths.
STEMS = ([2, 1, 1, 0, 1, 1, 2, 40, 1, 1, 0, 3], [2, 1, 1, 0, 7, 7, 2, 40, 7, 0, 3, 3])
PATHS = st.builds(
    lambda stem, cut, tail: [*STEMS[stem][:cut], *tail],
    st.integers(0, 1), st.integers(1, 12), st.lists(st.sampled_from([1, 7, 40]), max_size=4),
)  # fmt: skip

Path = tuple[str, tuple[int, ...]]


class Model:
    """What the cache must hold: page paths with page id and tick, and how many tokens of each are announced."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.pages: dict[Path, int] = {}
        self.ticks: dict[Path, int] = {}
        self.covered: dict[Path, int] = {}
        self.tick = 0

    def path(self, salt: str, tokens: list[int]) -> list[Path]:
        """The page paths that are held of these tokens."""
        held: list[Path] = []
        for end in range(self.page, len(tokens) + 1, self.page):
            one = (salt, tuple(tokens[:end]))
            if one not in self.pages:
                break
            held.append(one)
        return held

    def use(self, path: list[Path]) -> None:
        self.tick += 1
        for one in path:
            self.ticks[one] = self.tick

    def store(self, salt: str, tokens: list[int], canonical: int | None, row: list[int]) -> None:
        known = len(self.path(salt, tokens))
        whole = len(tokens) // self.page
        for at in range(known, whole):
            self.pages[salt, tuple(tokens[: (at + 1) * self.page])] = row[at]
        path = self.path(salt, tokens)
        assert [self.pages[one] for one in path] == row[:whole]
        self.use(path)
        for one in path:
            end = len(one[1])
            covered = self.page if canonical is None else min(self.page, canonical - (end - self.page))
            self.covered[one] = max(covered, self.covered.get(one, 0))

    def evict(self, count: int, locked: set[Path]) -> None:
        for _ in range(count):
            inner = {(salt, tokens[: -self.page]) for salt, tokens in self.pages}
            leaves = [one for one in self.pages if one not in inner and one not in locked]
            if not leaves:
                return
            oldest = min(leaves, key=lambda one: self.ticks[one])
            assert sum(self.ticks[one] == self.ticks[oldest] for one in leaves) == 1
            self.drop(oldest)

    def drop(self, one: Path) -> None:
        del self.pages[one], self.ticks[one], self.covered[one]

    def announced(self) -> dict[int, int]:
        least: dict[int, int] = {}
        for (salt, tokens), covered in self.covered.items():
            start = len(tokens) - self.page
            for block, complete, usable in naive_blocks(chain(salt), tokens, self.page):
                if start < complete <= start + covered:
                    least[block] = min(usable, least.get(block, usable))
        return least


class CacheMachine(RuleBasedStateMachine):
    @initialize(page=st.sampled_from([1, 2, 4]))
    def begin(self, page: int) -> None:
        self.cache = new_cache(PAGES, page)
        self.model = Model(page)
        self.live: list[Holder] = []
        self.told: dict[int, int] = {}

    def locked(self) -> set[Path]:
        return {
            (holder.salt, tuple(holder.tokens[:end]))
            for holder in self.live
            for end in range(self.model.page, holder.shared * self.model.page + 1, self.model.page)
        }

    def come(self, salt: str, tokens: list[int], limit: int) -> Holder:
        holder = Holder(self.cache, salt, tokens, limit)
        path = self.model.path(salt, tokens[:limit])
        assert holder.hit == len(path) * self.model.page
        assert holder.row == [self.model.pages[one] for one in path]
        self.model.use(path)
        self.live.append(holder)
        return holder

    def fits(self, holder: Holder) -> bool:
        return holder.room() <= self.cache.pool.free + self.cache.evictable // self.model.page

    def compute(self, holder: Holder) -> None:
        self.model.evict(max(0, holder.room() - self.cache.pool.free), self.locked())
        holder.compute()

    def go(self, holder: Holder) -> None:
        holder.release()
        self.live.remove(holder)

    @rule(salt=SALTS, tokens=PATHS, limit=st.integers(0, 14))
    def arrive(self, salt: str, tokens: list[int], limit: int) -> None:
        if len(self.live) < 6:
            self.come(salt, tokens, limit)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 5), canonical=st.one_of(st.none(), st.integers(0, 14)), length=st.integers(1, 14))
    def store_and_stay(self, which: int, canonical: int | None, length: int) -> None:
        """Stores what is computed so far, perhaps not all, and goes on holding it."""
        holder = self.live[which % len(self.live)]
        length = max(holder.shared * self.model.page, min(length, len(holder.tokens)))
        if self.fits(holder):
            self.compute(holder)
            holder.store(canonical, length)
            self.model.store(holder.salt, list(holder.tokens[:length]), canonical, holder.row)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 5))
    def leave(self, which: int) -> None:
        self.go(self.live[which % len(self.live)])

    @rule(salt=SALTS, tokens=PATHS, canonical=st.one_of(st.none(), st.integers(0, 14)), limit=st.integers(0, 14))
    def pass_through(self, salt: str, tokens: list[int], canonical: int | None, limit: int) -> None:
        holder = self.come(salt, tokens, limit)
        if self.fits(holder):
            self.compute(holder)
            holder.store(canonical)
            self.model.store(salt, tokens, canonical, holder.row)
        self.go(holder)

    @rule(salt=SALTS, tokens=PATHS)
    def look(self, salt: str, tokens: list[int]) -> None:
        before = (self.cache.version, self.cache.nodes, self.cache.cached, self.cache.protected)
        assert hit(self.cache, salt, tokens) == len(self.model.path(salt, tokens)) * self.model.page
        assert before == (self.cache.version, self.cache.nodes, self.cache.cached, self.cache.protected)

    @rule(count=st.sampled_from([1, 1, 2, 3, 9]))
    def evict(self, count: int) -> None:
        most = self.cache.evictable // self.model.page
        assert self.cache.evict(count) == min(count, most)
        self.model.evict(count, self.locked())

    @rule(really=st.integers(0, 9))
    def flush(self, really: int) -> None:
        if really:
            return
        before = self.cache.cached
        locked = self.locked()
        dropped = self.cache.flush()
        for one in sorted(self.model.pages, key=lambda one: -len(one[1])):
            if one not in locked:
                self.model.drop(one)
        assert before - dropped == len(self.model.pages) * self.model.page

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "cache"):
            return
        cache, model = self.cache, self.model
        check_cache(cache)
        assert cache.cached == len(model.pages) * model.page
        assert cache.protected == len(self.locked()) * model.page
        own = sum(len(holder.row) - holder.shared for holder in self.live)
        assert cache.pool.running == own
        announced = model.announced()
        assert dict(cache.announcer.announced) == announced
        replay(cache.announcer.drain(), self.told)
        assert self.told == announced

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for holder in self.live:
            holder.release()
        assert self.cache.protected == 0
        assert self.cache.pool.running == 0
        self.cache.flush()
        assert self.cache.pool.free == PAGES
        assert not self.cache.roots
        assert hit(self.cache, "", [0] * 14) == 0
        check_cache(self.cache)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
