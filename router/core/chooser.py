"""From a query to a choice: who could serve, what each would cost, whom the policy picks.

Keeps true: nothing is changed, so asking twice is the same as asking once; gone, draining, excluded and full workers
and those whose breaker is open are never picked; suspects only where nobody else is left. Does not book.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from trieway.meta_tree.ids import Reject, WorkerId
from trieway.meta_tree.view import Held, View
from trieway.router.core.config import CoreConfig
from trieway.router.core.cost import Candidate, Job, cost_rows, size_job
from trieway.router.core.heat import Heat
from trieway.router.core.ledger import Ledger
from trieway.router.core.members import Member, Members
from trieway.router.core.policies import draw, make_policy, most_likely
from trieway.router.core.values import Choice, CostRow, Explanation, Query, Rejection, Rng, WorkerState

NOTHING = (0, 0, 0)
UP, SUSPECT = WorkerState.UP, WorkerState.SUSPECT  # an enum's member is dear to look up a thousand times


@dataclass(kw_only=True, slots=True)
class Weighed:
    """A query with its candidates' costs and chances."""

    job: Job
    matched: tuple[int, int]
    rows: tuple[CostRow, ...]
    chances: tuple[float, ...]

    def choice(self, index: int, policy: str) -> Choice:
        row = self.rows[index]
        available = max(row.cached_tokens for row in self.rows)
        return Choice(
            worker=row.worker,
            predicted_tokens=row.cached_tokens,
            prompt_tokens=self.job.prompt_tokens,
            predicted_ttft_ms=row.ttft_ms,
            reason=self._reason(row, available, policy),
            available_tokens=available,
            matched=self.matched,
            rows=self.rows,
        )

    def _reason(self, row: CostRow, available: int, policy: str) -> str:
        if policy != "cache_aware":
            return policy
        if len(self.rows) == 1:
            return "only"
        if row.cached_tokens < available:
            return "load"
        if sum(chance > 0.0 for chance in self.chances) > 1:
            return "tie"
        return "prefix" if row.cached_tokens else "cold"


class Chooser:
    """The pure part of routing, over state that others own."""

    def __init__(self, config: CoreConfig, members: Members, view: View, ledger: Ledger, heat: Heat) -> None:
        self._config = config
        self._heat = heat
        self._members = members
        self._view = view
        self._ledger = ledger
        self._policy = make_policy(config)

    def choose(self, query: Query, rng: Rng, now: float) -> Choice | Reject:
        weighed = self.weigh(query, now)
        if isinstance(weighed, Reject):
            return weighed
        return weighed.choice(draw(weighed.chances, rng), self._policy.name)

    def explain(self, query: Query, now: float) -> Explanation:
        weighed = self.weigh(query, now)
        blocks = len(query.hashes)
        if isinstance(weighed, Reject):
            return Explanation(decision=weighed, rows=(), prompt_tokens=query.prompt_tokens or 0, blocks=blocks)
        choice = weighed.choice(most_likely(weighed.chances), self._policy.name)
        return Explanation(decision=choice, rows=weighed.rows, prompt_tokens=weighed.job.prompt_tokens, blocks=blocks)

    def weigh(self, query: Query, now: float) -> Weighed | Reject:
        """Cost and chance of every worker that could serve."""
        able = self._able(query, now)
        if isinstance(able, Reject):
            return able
        held: Mapping[WorkerId, Held] = {}
        if query.group is not None and query.hashes and query.reuse_max != 0:
            held = self._view.match(query.group, query.hashes)
        able = self._shortened(able, held)
        matched = max(((entry.blocks, entry.usable[-1]) for entry in held.values()), default=(0, 0))
        job = self._size(query, matched, now)
        rows = cost_rows(self._config, job, [self._candidate(member, held, now) for member in able], now)
        chances = self._policy.chances(rows, query)
        for row, chance in zip(rows, chances, strict=True):
            row.probability = chance
        return Weighed(job=job, matched=matched, rows=tuple(rows), chances=tuple(chances))

    def _size(self, query: Query, matched: tuple[int, int], now: float) -> Job:
        """How long the prompt is, and how much of it may be reused."""
        named = self._members.named(query.model)
        ratio = named[0].pool.bytes_per_token.value if named else self._config.prior_bytes_per_token
        return size_job(
            self._config,
            prompt_bytes=query.prompt_bytes,
            prompt_tokens=query.prompt_tokens,
            reuse_max=query.reuse_max,
            max_tokens=query.max_tokens,
            matched=matched,
            heat=self._heat.at(fork(query.hashes, matched[0]), now),
            bytes_per_token=ratio,
        )

    def _able(self, query: Query, now: float) -> Sequence[Member] | Reject:
        """Those that may be sent this query now, or why there is none."""
        config = self._config
        named = self._members.named(query.model)
        if not named:
            if not len(self._members):  # a router that knows nobody cannot call a model unknown
                return Reject(reason=Rejection.NO_WORKER, retry_after_s=config.retry_after_s)
            return Reject(reason=Rejection.UNKNOWN_MODEL)
        up: list[Member] = []
        suspect: list[Member] = []
        full = short = 0
        waits: list[float] = []
        group, exclude, tokens = query.group, query.exclude, query.prompt_tokens
        books, most, silence_s = self._ledger.books, config.worker_bookings_max, config.heartbeat_timeout_s
        for member in named:
            if (group is not None and member.group != group) or (exclude and member.worker in exclude):
                continue
            state = member.state(now, silence_s)
            if state is not UP and state is not SUSPECT:
                continue
            if not member.breaker.allows(now):
                waits.append(member.breaker.opens_in_s(now))
            elif tokens is not None and _too_long(tokens, member):
                short += 1
            elif len(books[member.worker].open) >= most:
                full += 1
            else:
                (up if state is UP else suspect).append(member)
        if (up or suspect) and len(self._ledger) < config.bookings_max:
            return up or suspect
        if up or suspect or full:
            return Reject(reason=Rejection.QUEUES_FULL, retry_after_s=config.retry_after_s)
        if short:
            return Reject(reason=Rejection.TOO_LONG)
        wait = max(min(waits), config.retry_after_s) if waits else config.retry_after_s
        return Reject(reason=Rejection.NO_WORKER, retry_after_s=wait)

    def _shortened(self, able: Sequence[Member], held: Mapping[WorkerId, Held]) -> Sequence[Member]:
        """At most about `candidates_max`: those that hold most, those with least to do, those used longest ago."""
        most = self._config.candidates_max
        if len(able) <= most or self._policy.weighs_all:
            return able
        part = max(most // 3, 1)
        books = self._ledger.books
        reuse: list[int] = []
        work: list[tuple[int, int]] = []
        booked: list[tuple[int, int]] = []
        used: list[int] = []
        for member in able:
            entry, book = held.get(member.worker), books[member.worker]
            reuse.append(0 if entry is None else -max(entry.usable[-1], entry.speculative_usable))
            present = len(book.open) + book.foreign_requests
            work.append((book.pending_tokens, present))
            booked.append((present, book.last_booked))
            used.append(book.last_booked)
        kept: dict[int, None] = dict.fromkeys(
            sorted([at for at, tokens in enumerate(reuse) if tokens], key=reuse.__getitem__)[:part]
        )
        for order in (work, booked, used):
            kept.update(dict.fromkeys(nsmallest(part, range(len(able)), key=order.__getitem__)))
        return [able[at] for at in kept]

    def _candidate(self, member: Member, held: Mapping[WorkerId, Held], now: float) -> Candidate:
        entry = held.get(member.worker)
        load = member.load
        # Without the worker's own number, by the blocks known, at a typical 16 tokens each.
        cached = self._view.blocks(member.worker) * 16 if load is None else load.kv_cached_tokens
        return Candidate(
            worker=member.worker,
            usable=NOTHING if entry is None else entry.usable,
            speculative_tokens=0 if entry is None else entry.speculative_usable,
            book=self._ledger.books[member.worker],
            load=load,
            held_tokens=cached,
            prefill=member.prefill(now),
            decode=member.decode(now),
            page_size=member.page_size,
            running_max=member.running_max,
        )


def fork(hashes: Sequence[int], blocks: int) -> int | None:
    """The last of the matched blocks; a chain hash names all before it too. None: nothing is shared."""
    return hashes[blocks - 1] if blocks else None


def _too_long(prompt_tokens: int, member: Member) -> bool:
    """Only an exact length rejects: where it is an estimate the worker decides."""
    return member.context_tokens is not None and prompt_tokens > member.context_tokens
