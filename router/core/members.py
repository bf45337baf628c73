"""The workers that the router knows: what they are, whether they may be sent work, how fast they are.

Keeps true: a gone worker is never among those that may serve; every member is found under its model and its aliases
and nowhere else. Does not know prefixes or bookings (view and ledger do), nor how anybody found out.
"""

from collections.abc import Iterable, Iterator, Sequence

from trieway.meta_tree.frames import WorkerLoad
from trieway.meta_tree.ids import GroupId, WorkerId
from trieway.meta_tree.subscriber import Subscriber
from trieway.router.core.breaker import Breaker
from trieway.router.core.config import CoreConfig
from trieway.router.core.learning import PEERS_PULL, Pool, new_line
from trieway.router.core.rates import Line
from trieway.router.core.values import WorkerState

UNGROUPED = GroupId("")
"""Group of workers without one: no prompt has hashes there, so nothing ever matches."""

UP, SUSPECT = WorkerState.UP, WorkerState.SUSPECT  # asked of every worker for every request
DRAINING, GONE = WorkerState.DRAINING, WorkerState.GONE


class Member:
    """One worker. Its book lives in the ledger, its blocks in the view."""

    __slots__ = (
        "_decode", "_prefill", "aliases", "breaker", "context_tokens", "differing", "draining", "epoch",
        "gaps_before", "gone", "group", "has_feed", "heard_at", "kv_tokens", "load", "load_at", "model", "page_size",
        "pool", "resyncs_before", "running_max", "subscriber", "told_silent", "url", "worker",
    )  # fmt: skip

    def __init__(self, config: CoreConfig, worker: WorkerId, pool: Pool, now: float) -> None:
        self.worker = worker
        self.url = ""
        self.model = ""
        self.aliases: tuple[str, ...] = ()
        self.group = UNGROUPED
        self.has_feed = False
        self.context_tokens: int | None = None
        self.kv_tokens: int | None = None
        self.page_size = 1
        self.running_max: int | None = None
        self.draining = False
        self.gone = False
        self.heard_at = now
        self.told_silent = False  # a silent feed is asked for again once per silence
        self.subscriber: Subscriber | None = None
        self.epoch: int | None = None  # the process's, as last told; outlives the subscriber
        self.differing = 0  # digest buckets that differed when last compared
        self.gaps_before = 0  # counted by subscribers that were replaced
        self.resyncs_before = 0
        self.load: WorkerLoad | None = None
        self.load_at = now
        self.pool = pool
        self._prefill = new_line(config, PEERS_PULL, config.peer_halflife_s)
        self._decode = new_line(config, PEERS_PULL, config.peer_halflife_s)
        self.breaker = new_breaker(config)

    @property
    def names(self) -> tuple[str, ...]:
        """Every model name that this worker answers to, each once."""
        return tuple(dict.fromkeys((self.model, *self.aliases)))

    def state(self, now: float, heartbeat_timeout_s: float) -> WorkerState:
        if self.gone:
            return GONE
        if self.draining or (self.load is not None and self.load.draining):
            return DRAINING
        if self.has_feed and now - self.heard_at > heartbeat_timeout_s:
            return SUSPECT
        return UP

    def prefill(self, now: float) -> Line:
        """Milliseconds over uncached prompt tokens."""
        return self._prefill.line(now, self.pool.prefill(now))

    def decode(self, now: float) -> Line:
        """Milliseconds of a decode step over running requests."""
        return self._decode.line(now, self.pool.decode(now))

    def observe_prefill(self, tokens: float, ms: float, now: float, weight: float = 1.0) -> None:
        """This router saw `tokens` computed in `ms`; for `weight` see Affine.observe."""
        self._prefill.observe(tokens, ms, now, weight)
        self.pool.observe_prefill(tokens, ms, now, weight)

    def report(self, load: WorkerLoad, step_tokens: int, now: float) -> None:
        """Take in the worker's own numbers. Its rate counts only until there are samples of our own: it does not say
        over how long prompts it was measured, and short ones make any worker look slow."""
        before, self.load, self.load_at = self.load, load, now
        rate, step_ms = load.prefill_tokens_per_s, load.decode_step_ms
        if rate > 0.0 and self._prefill.samples(now) < 1.0:
            self.observe_prefill(step_tokens, step_tokens / rate * 1e3, now)
        if load.running and step_ms > 0.0 and (before is None or before.decode_step_ms != step_ms):
            self._decode.observe(load.running, step_ms, now)
            self.pool.observe_decode(load.running, step_ms, now)


def new_breaker(config: CoreConfig) -> Breaker:
    return Breaker(errors_max=config.breaker_errors, open_s=config.breaker_open_s, open_max_s=config.breaker_open_max_s)


class Members:
    """All members, by id and by model name."""

    def __init__(self) -> None:
        self._by_id: dict[WorkerId, Member] = {}
        self._by_name: dict[str, list[Member]] = {}

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._by_id

    def __getitem__(self, worker: WorkerId) -> Member:
        return self._by_id[worker]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, worker: WorkerId) -> Member | None:
        return self._by_id.get(worker)

    def named(self, model: str) -> Sequence[Member]:
        """The workers that answer to this model name."""
        return self._by_name.get(model, ())

    def put(self, member: Member, *, model: str, aliases: Iterable[str]) -> None:
        """Index a member under its names; again for a member whose names changed."""
        if member.worker in self._by_id:
            self.remove(member.worker)
        member.model, member.aliases = model, tuple(aliases)
        self._by_id[member.worker] = member
        for name in member.names:
            self._by_name.setdefault(name, []).append(member)

    def remove(self, worker: WorkerId) -> Member:
        """KeyError: unknown."""
        member = self._by_id.pop(worker)
        for name in member.names:
            same = self._by_name[name]
            same.remove(member)
            if not same:
                del self._by_name[name]
        return member

    def check(self) -> None:
        """The two indexes agree."""
        listed = sorted((name, member.worker) for name, members in self._by_name.items() for member in members)
        expected = sorted((name, member.worker) for member in self._by_id.values() for name in member.names)
        assert listed == expected
        for worker, member in self._by_id.items():
            assert member.worker == worker
            member.breaker.check()
            if member.subscriber is not None:
                member.subscriber.check()
