"""Prefixes that are expected at a worker because a request is on its way there.

A speculation begins with a booking and ends when the worker's feed has told the truth: once the event number on the
receipt is applied, or, where no receipt named one, with the heartbeat after the release. Workers without a feed learn
the prefix for good when the request succeeds. Keeps true: every ticket alive in the view is listed here, once, under
its worker; their number is bounded; none outlives its worker's incarnation or `age_max_s`. Does not choose.
"""

from collections.abc import Sequence
from typing import overload

from trieway.kernels.block_hash import BLOCK_BYTES
from trieway.meta_tree.ids import WorkerId
from trieway.meta_tree.view import View


class Speculation:
    """One expected prefix; its ticket is the booking's id."""

    __slots__ = ("began_at", "hashes", "number", "released", "ticket", "usable", "worker")

    def __init__(
        self, ticket: int, worker: WorkerId, hashes: Sequence[int], usable: Sequence[int], began_at: float
    ) -> None:
        self.ticket = ticket
        self.worker = worker
        self.hashes = hashes
        self.usable = usable
        self.began_at = began_at
        self.number: int | None = None  # ends once this feed event is applied
        self.released = False  # ends with the next heartbeat


class Speculations:
    """All speculations alive."""

    def __init__(self, view: View, *, alive_max: int, age_max_s: float) -> None:
        self._view = view
        self._alive_max = alive_max
        self._age_max_s = age_max_s
        self._by_worker: dict[WorkerId, dict[int, Speculation]] = {}
        self._ending: dict[WorkerId, dict[int, Speculation]] = {}  # those with a number, oldest first
        self._all: dict[int, Speculation] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, ticket: int, worker: WorkerId, hashes: Sequence[int], usable: Sequence[int], now: float) -> None:
        """Expect `hashes` at `worker`. At the bound: nothing is expected, the request goes all the same."""
        if not hashes or len(self._all) >= self._alive_max:
            return
        spec = Speculation(ticket, worker, hashes, usable, now)
        self._all[ticket] = spec
        self._by_worker.setdefault(worker, {})[ticket] = spec
        self._view.speculate(ticket, worker, hashes, usable)

    def computed(self, ticket: int, number: int | None, applied: int | None) -> None:
        """The receipt came: the prompt is computed, and announced by feed event `number` (None: not said)."""
        spec = self._all.get(ticket)
        if spec is None or number is None:
            return
        if applied is not None and applied >= number:
            self._end(spec)
        else:
            spec.number = number
            self._ending.setdefault(spec.worker, {})[ticket] = spec

    def learn(self, ticket: int) -> None:
        """The prompt was computed by a worker without a feed: take it that its blocks stay there."""
        spec = self._all.get(ticket)
        if spec is not None:
            self._view.learn(spec.worker, spec.hashes, spec.usable)
            self._end(spec)

    def released(self, ticket: int, *, computed: bool, fed: bool) -> None:
        """The booking ended. computed: the worker got as far as the prompt's end."""
        spec = self._all.get(ticket)
        if spec is None or spec.number is not None:
            return
        if computed and fed:
            spec.released = True
        else:
            self._end(spec)

    def applied(self, worker: WorkerId, number: int | None) -> None:
        """The worker's feed is applied up to `number`."""
        ending = self._ending.get(worker)
        if not ending or number is None:
            return
        for spec in list(ending.values()):
            if spec.number is None or spec.number > number:
                break  # receipts come nearly in the order of their numbers; a straggler goes with the next event
            self._end(spec)

    def heartbeat(self, worker: WorkerId) -> None:
        """A heartbeat came: what was released before it is known by now."""
        alive = self._by_worker.get(worker)
        if alive:
            for spec in [spec for spec in alive.values() if spec.released]:
                self._end(spec)

    def drop_worker(self, worker: WorkerId) -> None:
        """The worker's incarnation ended, and with it all that was expected of it."""
        for spec in list(self._by_worker.get(worker, {}).values()):
            self._end(spec)

    def expire(self, now: float) -> None:
        """End those past their age."""
        while self._all:
            oldest = next(iter(self._all.values()))
            if now - oldest.began_at < self._age_max_s:
                break
            self._end(oldest)

    def _end(self, spec: Speculation) -> None:
        self._view.retire(spec.ticket)
        del self._all[spec.ticket]
        for index in (self._by_worker, self._ending):
            tickets = index.get(spec.worker)
            if tickets is not None and tickets.pop(spec.ticket, None) is not None and not tickets:
                del index[spec.worker]

    def check(self) -> None:
        """The indexes list the same speculations, each once."""
        assert len(self._all) <= self._alive_max
        listed = {ticket: spec for alive in self._by_worker.values() for ticket, spec in alive.items()}
        assert listed == self._all
        assert sum(map(len, self._by_worker.values())) == len(self._all)
        ending = {ticket for alive in self._ending.values() for ticket in alive}
        assert ending == {ticket for ticket, spec in self._all.items() if spec.number is not None}


class EvenTokens(Sequence[int]):
    """Estimated reusable tokens at the end of each of `blocks` blocks, worked out where asked.

    Up to the deepest match they are spread evenly over its exact count; beyond it over what the prompt has left.
    """

    __slots__ = ("_blocks", "_inside", "_known_blocks", "_known_tokens", "_per_block")

    def __init__(self, blocks: int, known: tuple[int, int], prompt_tokens: int, prompt_bytes: int) -> None:
        """known: (blocks, usable tokens) of the deepest match."""
        self._blocks = blocks
        self._known_blocks, self._known_tokens = known
        self._inside = self._known_tokens / self._known_blocks if self._known_blocks else 0.0
        rest_bytes = max(prompt_bytes - self._known_blocks * BLOCK_BYTES, 1)
        self._per_block = min(max(prompt_tokens - self._known_tokens, 0) / rest_bytes, 1.0) * BLOCK_BYTES

    def __len__(self) -> int:
        return self._blocks

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._blocks))]
        if not -self._blocks <= index < self._blocks:
            raise IndexError(index)
        blocks = index % self._blocks + 1
        if blocks <= self._known_blocks:
            return int(self._inside * blocks)
        return self._known_tokens + int(self._per_block * (blocks - self._known_blocks))
