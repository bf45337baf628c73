"""What the worker core's tests share: a small vocabulary, brute-force oracles, an engine that knows what it wrote."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trieway.kernels.block_hash import BLOCK_BYTES, hash_chain_twin
from trieway.meta_tree.chain import Chain, FleetKey
from trieway.meta_tree.events import CacheEvent, Cleared, Removed, Stored
from trieway.meta_tree.ids import Namespace, Tier
from trieway.worker.core.cover import Cover
from trieway.worker.core.node import Match, Receipt
from trieway.worker.core.pool import PagePool
from trieway.worker.core.radix import RadixCache
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import Committed, Outcome, Plan, Request, SchedulerConfig

# Tokens 0..7 are long, so that few fill a block; one fills several, one is empty, and 7 spells what 1, 1 does. The
# rest are one byte each.
TABLE: list[bytes] = [
    b"a" * 10, b"b" * 32, b"c" * 64, b"d" * 150, b"e" * 7, b"f" * 33, b"", b"b" * 64,
    *(bytes([value]) for value in range(248)),
]  # fmt: skip
KEY = FleetKey.from_secret(b"a secret for tests")


def chain(salt: str = "") -> Chain:
    return KEY.chain(Namespace(salt=salt))


def ids(*tokens: int) -> array[int]:
    return array("i", tokens)


def naive_blocks(namespace: Chain, tokens: Sequence[int], page_size: int) -> list[tuple[int, int, int]]:
    """(hash, tokens up to the one that completes it, usable) of every block, by the definition."""
    text = b"".join(TABLE[token] for token in tokens)
    ends = [sum(len(TABLE[token]) for token in tokens[: count + 1]) for count in range(len(tokens))]
    blocks = []
    for number, block in enumerate(hash_chain_twin(text, namespace.seed, namespace.root)):
        limit = BLOCK_BYTES * (number + 1)
        complete = next(count for count, end in enumerate(ends) if end >= limit) + 1
        usable = sum(end <= limit for end in ends[:complete])
        blocks.append((block, complete, usable // page_size * page_size))
    return blocks


def replay(events: Iterable[CacheEvent], held: dict[int, int], roots: Mapping[int, Chain] | None = None) -> None:
    """Applies events as a listener would, insisting on what they promise."""
    for event in events:
        if isinstance(event, Cleared):
            held.clear()
        elif isinstance(event, Stored):
            assert event.tier is Tier.DEVICE
            assert event.hashes, "an empty run"
            assert event.parent in held or event.parent == event.namespace_id, "the parent was never announced"
            if roots is not None:
                assert event.namespace_id in roots
            held.update(zip(event.hashes, event.usable, strict=True))
        else:
            assert isinstance(event, Removed)
            for block in event.hashes:
                del held[block]


class Holder:
    """A request's side of the cache, by hand: takes a hit, allocates the rest, stores, releases."""

    def __init__(self, cache: RadixCache, salt: str, tokens: Sequence[int], limit: int | None = None) -> None:
        self.cache = cache
        self.salt = salt
        self.page = cache.pool.page_size
        self.tokens = array("i", tokens)
        self.chain = chain(salt)
        match = cache.match(self.chain, self.tokens, len(self.tokens) if limit is None else limit)
        self.receipt: Receipt = cache.lock(match)
        cache.touch(self.receipt)
        self.hit = match.length
        self.row = cache.pages_of(self.receipt)
        self.shared = len(self.row)

    def room(self) -> int:
        """Pages to allocate for all tokens."""
        return -(-len(self.tokens) // self.page) - len(self.row)

    def compute(self) -> None:
        need = self.room()
        if need > self.cache.pool.free:
            self.cache.evict(need - self.cache.pool.free)
        self.row += self.cache.pool.allocate(need)

    def store(self, canonical: int | None = None, length: int | None = None) -> Match:
        cover = Cover(self.chain, TABLE, self.page, canonical)
        cover.extend(self.tokens)
        length = len(self.tokens) if length is None else length
        match = self.cache.store(self.chain, self.tokens, length, self.row, self.shared, cover)
        receipt = self.cache.lock(match)
        self.cache.unlock(self.receipt)
        self.receipt = receipt
        self.shared = match.length // self.page
        return match

    def release(self) -> None:
        self.cache.pool.free_running(self.row[self.shared :])
        self.cache.unlock(self.receipt)
        self.row = []


def new_cache(pages: int = 64, page_size: int = 1, *, enabled: bool = True) -> RadixCache:
    return RadixCache(PagePool(pages, page_size), enabled=enabled)


def keep(cache: RadixCache, salt: str, tokens: Sequence[int], canonical: int | None = None) -> list[int]:
    """Stores a path as a request that came, computed all and went; returns its page table."""
    holder = Holder(cache, salt, tokens)
    holder.compute()
    holder.store(canonical)
    row = list(holder.row)
    holder.release()
    return row


def hit(cache: RadixCache, salt: str, tokens: Sequence[int]) -> int:
    return cache.match(chain(salt), array("i", tokens), len(tokens)).length


def new_scheduler(seed: int = 0, table: Sequence[bytes] = TABLE, **changes: object) -> Scheduler:
    settings: dict[str, object] = {
        "page_size": 1, "kv_tokens": 256, "context_max": 200, "batch_tokens_max": 32, "running_max": 8,
        "waiting_max": 16, "share_tokens_min": 4, "reserve_tokens": 4,
    }  # fmt: skip
    return Scheduler(SchedulerConfig(**{**settings, **changes}), table, random.Random(seed))  # type: ignore[arg-type]


def request(name: str, tokens: Sequence[int], new: int = 4, salt: str = "", **changes: object) -> Request:
    settings: dict[str, object] = {"canonical": len(tokens), "max_new_tokens": new, "chain": chain(salt)}
    return Request(id=name, tokens=tuple(tokens), **{**settings, **changes})  # type: ignore[arg-type]


def _step(state: int, token: int) -> int:
    return (state * 1_000_003 + token + 17) % (1 << 61)


def next_token(state: int) -> int:
    """What the stand-in for a model says after a context: long tokens often, so that outputs fill blocks."""
    return state % 8 if state % 3 else 8 + state % 248


def reference(namespace: Chain, tokens: Sequence[int], new: int) -> list[int]:
    """The output that any correct serving of the prompt gives."""
    state = namespace.root
    for token in tokens:
        state = _step(state, token)
    out = []
    for _ in range(new):
        out.append(next_token(state))
        state = _step(state, out[-1])
    return out


class Engine:
    """Stands in for the model: a slot's KV is a digest of the namespace and of all tokens up to it. It refuses a step
    whose page table holds anything but the KV of exactly that context."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.requests: dict[str, Request] = {}
        self.paths: dict[str, list[int]] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.held: dict[int, int] = {}
        self.computed = 0
        self.ended: dict[str, str] = {}  # finish reasons of those that the scheduler ended
        self._slots: dict[tuple[int, int], int] = {}

    def add(self, one: Request, now: float = 0.0, *, as_hint: bool = False) -> None:
        assert (self.scheduler.hint if as_hint else self.scheduler.add)(one, now) is None
        self.requests[one.id] = replace(one, max_new_tokens=0) if as_hint else one
        self.paths[one.id] = list(one.tokens)
        self.outcomes[one.id] = []

    def plan(self, now: float = 0.0) -> Plan:
        plan = self.scheduler.plan(now)
        self._inspect(plan)
        return plan

    def compute(self, plan: Plan) -> dict[str, int]:
        page = self.scheduler.config.page_size
        sampled = {}
        for work in plan.work:
            path = self.paths[work.id]
            end = work.start + len(work.tokens)
            assert list(work.tokens) == path[work.start : end]
            assert len(work.pages) == -(-end // page)
            state = self.requests[work.id].chain.root
            for at, token in enumerate(path[:end]):
                state = _step(state, token)
                slot = (work.pages[at // page], at % page)
                if at < work.start:
                    assert self._slots[slot] == state, f"token {at} of {work.id} reads another context's KV"
                else:
                    self._slots[slot] = state
            self.computed += len(work.tokens)
            if work.samples:
                assert end == len(path)
                sampled[work.id] = next_token(state)
        return sampled

    def commit(self, plan: Plan, sampled: Mapping[str, int], now: float = 0.0) -> Committed:
        committed = self.scheduler.commit(plan, sampled, now)
        for name, outcome in committed.outcomes.items():
            self.outcomes[name].append(outcome)
            if outcome.token is not None:
                self.paths[name].append(outcome.token)
            if outcome.finish is not None:
                self.ended[name] = outcome.finish
        return committed

    def step(self, now: float = 0.0, took: float = 0.0) -> Plan:
        plan = self.plan(now)
        self.commit(plan, self.compute(plan), now + took)
        return plan

    def run(self, now: float = 0.0, took: float = 0.0, steps_max: int = 2000) -> float:
        """Steps until nothing is left to do; returns the time after."""
        for _ in range(steps_max):
            if not self.scheduler.has_work():
                return now
            self.step(now, took)
            now += took
        raise AssertionError("it never ends")

    def output(self, name: str) -> list[int]:
        return [outcome.token for outcome in self.outcomes[name] if outcome.token is not None]

    def cached(self, name: str) -> int:
        firsts = [outcome.first for outcome in self.outcomes[name] if outcome.first is not None]
        assert len(firsts) == 1
        return firsts[0].cached_tokens

    def verify(self) -> None:
        """The scheduler's sums, the announced set against its replay, the outputs against the reference."""
        self.scheduler.check()
        replay(self.scheduler.drain_events(), self.held)
        assert self.held == dict(self.scheduler.kv.cache.announcer.announced)
        for name, one in self.requests.items():
            output = self.output(name)
            assert output == reference(one.chain, one.tokens, len(output))

    def _inspect(self, plan: Plan) -> None:
        config = self.scheduler.config
        assert plan.prefill_tokens + plan.decode_tokens == sum(len(work.tokens) for work in plan.work)
        assert plan.prefill_tokens + plan.decode_tokens <= config.batch_tokens_max
        assert len({work.id for work in plan.work}) == len(plan.work)
        for work in plan.work:
            end = work.start + len(work.tokens)
            assert end == len(self.paths[work.id]) or end % config.page_size == 0
            assert work.samples == (end == len(self.paths[work.id]) and self.requests[work.id].max_new_tokens > 0)
