"""The clients of a simulated fleet: a workload's calls, in the order that its flow allows, and what became of them.

Keeps true: each call ends once, in one record; a call whose router dies goes to another one, a bounded number of times;
the answer to a call is a function of its id and the seed. Hints go first: those of a session with its first call, the
others before any call. Does not know workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from zlib import crc32

from trieway.loadgen.filler import filler
from trieway.loadgen.flow import Flow, Ready
from trieway.loadgen.prompts import prompt_bytes
from trieway.loadgen.records import ABANDONED, INTERRUPTED, Record
from trieway.loadgen.sim.flight import Flight
from trieway.loadgen.sim.network import Network
from trieway.loadgen.sim.router import SimRouter
from trieway.loadgen.sim.texts import tokenizer
from trieway.loadgen.sim.values import Ask, Done, End
from trieway.loadgen.vocabulary import Call, Hint, Workload
from trieway.meta_tree.chain import Chain, FleetKey
from trieway.meta_tree.ids import Namespace

TRIES_MAX = 5
"""Routers that a call is given to, one after the other."""
AGAIN_S = 0.5
"""Pause of a client whose router died or is not there."""


def answer_text(seed: int, call_id: str, tokens: int) -> str:
    """What a fleet of this seed answers to a call: so many words, a token each."""
    return filler(crc32(f"{seed}/{call_id}".encode()), tokens)


class Pending:
    """A call between its due time and its end; `call` is None for a hint."""

    __slots__ = ("call", "due_s", "ended", "first_s", "flight", "name", "router", "sent_s", "source", "tries")

    def __init__(self, name: str, source: Call | Hint, due_s: float) -> None:
        self.name = name
        self.source = source
        self.call = source if isinstance(source, Call) else None
        self.due_s = due_s
        self.sent_s: float | None = None
        self.first_s: float | None = None
        self.flight: Flight | None = None
        self.router: SimRouter | None = None
        self.tries = 0
        self.ended = False


class Clients:
    """Plays one workload. `records` has every ended call, in the order of their ends."""

    def __init__(
        self, workload: Workload, routers: Sequence[SimRouter], key: FleetKey, network: Network, seed: int,
        note: Callable[..., None], *, users_max: int | None = None,
    ) -> None:  # fmt: skip
        self.records: list[Record] = []
        self.pending: dict[str, Pending] = {}
        self._workload = workload
        self._flow = Flow(workload, users_max=users_max)
        self._routers = routers
        self._key = key
        self._network = network
        self._timeline = network.timeline
        self._seed = seed
        self._note = note
        self._chains: dict[Namespace, Chain] = {}
        self._hints: dict[str | None, list[Hint]] = {}
        for hint in workload.hint_prefixes:
            self._hints.setdefault(hint.session, []).append(hint)
        self._awaited = 0
        self._turn = 0
        self._began_s = 0.0
        self._codec = tokenizer()

    @property
    def unfinished(self) -> int:
        """Calls that have not ended."""
        return self._flow.unfinished

    @property
    def sent(self) -> int:
        """Calls that have been sent, ended ones too."""
        under_way = sum(pending.sent_s is not None and pending.call is not None for pending in self.pending.values())
        return under_way + sum(record.sent_s is not None for record in self.records)

    def interrupted(self) -> list[Record]:
        """What has not ended, as the records of a run that is cut short here."""
        ended = {record.call for record in self.records}
        return [self._cut(call) for call in self._workload.calls if call.id not in ended]

    def _cut(self, call: Call) -> Record:
        pending = self.pending.get(call.id)
        unsent = replace(self._abandoned(call), status=INTERRUPTED)
        if pending is None or pending.sent_s is None:
            return unsent
        return replace(
            unsent, due_s=pending.due_s - self._began_s, sent_s=self._since(pending.sent_s), last_s=unsent.due_s
        )

    def start(self) -> None:
        """The common hints, then the flow."""
        first = self._hints.pop(None, [])
        self._awaited = len(first)
        self._send_hints(first)
        if not first:
            self._begin()

    def _begin(self) -> None:
        self._began_s = self._timeline.now
        self._take(self._flow.start(self._began_s))

    def _since(self, moment: float | None) -> float | None:
        """Records count from the flow's start."""
        return None if moment is None else moment - self._began_s

    def _take(self, ready: Iterable[Ready]) -> None:
        for one in ready:
            pending = self.pending[one.call.id] = Pending(one.call.id, one.call, one.due_s)
            self._timeline.at(one.due_s, self._due, pending)

    def _due(self, pending: Pending) -> None:
        assert pending.call is not None
        if self._hints:
            self._send_hints(self._hints.pop(pending.call.session, []))
        self._send(pending)

    def _send_hints(self, hints: Sequence[Hint]) -> None:
        for hint in hints:
            name = f"hint/{len(self.pending)}.{self._timeline.steps}"
            pending = self.pending[name] = Pending(name, hint, self._timeline.now)
            self._send(pending)

    # One call.

    def _send(self, pending: Pending) -> None:
        if pending.ended:
            return
        pending.tries += 1
        if pending.sent_s is None:
            pending.sent_s = self._timeline.now
        router = self._pick()
        if router is None:
            self._lost(pending)
            return
        pending.router = router
        pending.flight = Flight(self._ask(pending), self)
        self._timeline.after(self._network.delay(), self._arrive, pending, pending.flight)

    def _pick(self) -> SimRouter | None:
        """In turn, of those that are up."""
        for _ in self._routers:
            self._turn += 1
            router = self._routers[self._turn % len(self._routers)]
            if router.up:
                return router
        return None

    def _arrive(self, pending: Pending, flight: Flight) -> None:
        router = pending.router
        if pending.ended:
            return
        if router is not None and router.up:
            router.serve(flight)
        else:
            self._lost(pending)

    def _lost(self, pending: Pending) -> None:
        """No router has it: try again a little later."""
        pending.flight, pending.first_s = None, None
        if pending.tries < TRIES_MAX:
            self._timeline.after(AGAIN_S, self._send, pending)
        else:
            self._end(pending, End.ROUTER_LOST, None, None)

    def _ask(self, pending: Pending) -> Ask:
        source = pending.source
        chain = self._chain(Namespace(tenant=source.tenant, salt=source.salt))
        prompt = prompt_bytes(source, self._flow.answers)
        if isinstance(source, Hint):
            return Ask(pending.name, chain, prompt, (), 0, hint=True)
        answer = self._codec.encode(self._text(source, source.output_tokens).encode())
        assert len(answer) == source.output_tokens
        return Ask(
            source.id, chain, prompt, answer, source.output_tokens, source.priority, source.session, source.stream
        )

    def _chain(self, namespace: Namespace) -> Chain:
        chain = self._chains.get(namespace)
        if chain is None:
            chain = self._chains[namespace] = self._key.chain(namespace)
        return chain

    def _text(self, call: Call, tokens: int) -> str:
        """What the model says to it; a context that is full cuts it short."""
        return answer_text(self._seed, call.id, tokens)

    # What routers tell.

    def on_first(self, flight: Flight) -> None:
        """The first token is here."""
        pending = self.pending.get(flight.ask.id)
        if pending is not None and pending.flight is flight:
            pending.first_s = self._timeline.now

    def on_end(self, flight: Flight, end: End, done: Done | None) -> None:
        """The router has ended it."""
        pending = self.pending.get(flight.ask.id)
        if pending is None or pending.flight is not flight:
            return
        if end is End.ROUTER_LOST and pending.first_s is None:
            self._lost(pending)
        else:
            self._end(pending, end, flight, done)

    def hang_up(self, call_id: str) -> None:
        """The user goes away in the middle, if the call is under way."""
        pending = self.pending.get(call_id)
        if pending is None or pending.flight is None:
            return
        flight, router = pending.flight, pending.router
        assert router is not None
        self._timeline.after(self._network.delay(), router.hang_up, flight)
        self._end(pending, End.HUNG_UP, flight, None)

    def _end(self, pending: Pending, end: End, flight: Flight | None, done: Done | None) -> None:
        assert not pending.ended, f"{pending.name} ends twice"
        pending.ended = True
        del self.pending[pending.name]
        call = pending.call
        if call is None:
            self._hinted()
            return
        self._note("result", call.id, end)
        self.records.append(self._record(pending, call, end, flight, done))
        if done is not None:
            self._take(self._flow.answered(call.id, self._text(call, done.output_tokens), self._timeline.now))
            return
        fallout = self._flow.failed(call.id, self._timeline.now)
        self.records.extend(self._abandoned(one) for one in fallout.abandoned)
        self._take(fallout.ready)

    def _hinted(self) -> None:
        if self._awaited:
            self._awaited -= 1
            if not self._awaited:
                self._begin()

    def _record(self, pending: Pending, call: Call, end: End, flight: Flight | None, done: Done | None) -> Record:
        now = self._timeline.now
        first = pending.first_s
        if first is None and done is not None:
            first = now  # not streamed: all comes at once
        return Record(
            call=call.id,
            session=call.session,
            worker=None if flight is None else flight.worker,
            due_s=pending.due_s - self._began_s,
            sent_s=self._since(pending.sent_s),
            first_s=self._since(first),
            last_s=self._since(now),
            prompt_tokens=None if flight is None else flight.prompt_tokens,
            cached_tokens=None if flight is None else flight.cached_tokens,
            predicted_tokens=None if flight is None else flight.predicted_tokens,
            output_tokens=0 if done is None else done.output_tokens,
            gaps=done.gaps if done is not None and call.stream else (),
            status=end.value,
            tenant=call.tenant,
            attempts=pending.tries if flight is None else flight.attempts,
        )

    def _abandoned(self, call: Call) -> Record:
        return Record(
            call=call.id,
            session=call.session,
            worker=None,
            due_s=self._timeline.now - self._began_s,
            sent_s=None,
            first_s=None,
            last_s=None,
            prompt_tokens=None,
            cached_tokens=None,
            predicted_tokens=None,
            output_tokens=0,
            status=ABANDONED,
            tenant=call.tenant,
            attempts=0,
        )
