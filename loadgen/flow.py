"""Which calls may be sent, and from when: the order in time of a workload, as a state machine without a clock.

Keeps true (`check`): each call is in exactly one state (held, waiting, out, answered, failed, abandoned); a call is
given out once, after all calls it waits for were answered; an answer is kept until the last call that quotes it has
ended. With `users_max`, at most so many sessions are open, and the next one begins when one ends. Does not know who
sends, or how a prompt is rendered. Times are seconds of the caller's clock.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from trieway.loadgen.vocabulary import AnswerOf, Call, Workload, parts


class State(Enum):
    """Where a call is in its life."""

    HELD = "held"
    """Its session has not begun (closed loop only)."""
    WAITING = "waiting"
    OUT = "out"
    """Given out: due, or being served."""
    ANSWERED = "answered"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """It waited for a call that failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A call that may be sent at `due_s` (caller's clock; may lie ahead of now). Latency counts from there."""

    call: Call
    due_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallout:
    """What a failure brings: calls that will never be sent, and calls that became ready."""

    abandoned: tuple[Call, ...]
    ready: list[Ready]


class Flow:
    """One pass through a workload. `start` once, then `answered` or `failed` once for each call given out."""

    def __init__(self, workload: Workload, *, users_max: int | None = None) -> None:
        """`users_max`: closed loop with so many users (at least 1), each at one session after the other."""
        assert users_max is None or users_max >= 1, "a closed loop needs a user"
        self._calls = {call.id: call for call in workload.calls}
        self._states = dict.fromkeys(self._calls, State.HELD)
        self._missing = {call.id: len(set(call.after)) for call in workload.calls}
        self._next: dict[str, list[str]] = {}
        self._quoted: dict[str, int] = {}
        self._sessions: dict[str, list[str]] = {}
        for call in workload.calls:
            self._sessions.setdefault(call.session, []).append(call.id)
            for name in set(call.after):
                self._next.setdefault(name, []).append(call.id)
            for name in _quotes(call):
                self._quoted[name] = self._quoted.get(name, 0) + 1
        self._open = {session: len(calls) for session, calls in self._sessions.items()}
        self._held = deque(self._sessions)
        self._users_max = len(self._sessions) if users_max is None else users_max
        self._users = 0
        self._unfinished = len(self._calls)
        self._answers: dict[str, str] = {}
        self._began_s: float | None = None

    @property
    def answers(self) -> Mapping[str, str]:
        """Answers that calls given out may quote, by id."""
        return MappingProxyType(self._answers)

    @property
    def unfinished(self) -> int:
        """Calls that have neither ended nor been abandoned."""
        return self._unfinished

    def state(self, call_id: str) -> State:
        """KeyError: no such call."""
        return self._states[call_id]

    def start(self, now: float) -> list[Ready]:
        """Begin; `due_s` of calls counts from `now`. Ready calls come in order of due time."""
        assert self._began_s is None, "a flow is started once"
        self._began_s = now
        return self._admit(now)

    def answered(self, call_id: str, text: str, now: float) -> list[Ready]:
        """A call came back with `text`; what may be sent because of it."""
        self._end(call_id, State.ANSWERED)
        if self._quoted.get(call_id):
            self._answers[call_id] = text
        self._forget(call_id)
        ready = []
        for name in self._next.get(call_id, ()):
            self._missing[name] -= 1
            if not self._missing[name] and self._states[name] is State.WAITING:
                ready.append(self._out(name, now + self._calls[name].think_s))
        return _in_order(ready + self._admit(now))

    def failed(self, call_id: str, now: float) -> Fallout:
        """A call ended without an answer: what waits for it, directly or through others, is abandoned."""
        self._end(call_id, State.FAILED)
        self._forget(call_id)
        abandoned: list[Call] = []
        queue = deque(self._next.get(call_id, ()))
        while queue:
            name = queue.popleft()
            if self._states[name] is State.WAITING:
                self._close(name, State.ABANDONED)
                self._forget(name)
                abandoned.append(self._calls[name])
                queue.extend(self._next.get(name, ()))
        return Fallout(abandoned=tuple(abandoned), ready=self._admit(now))

    def _admit(self, now: float) -> list[Ready]:
        ready = []
        while self._held and self._users < self._users_max:
            self._users += 1
            for name in self._sessions[self._held.popleft()]:
                self._states[name] = State.WAITING
                if not self._missing[name]:
                    ready.append(self._out(name, now))
        return _in_order(ready)

    def _out(self, name: str, earliest_s: float) -> Ready:
        assert self._began_s is not None, "start the flow first"
        self._states[name] = State.OUT
        call = self._calls[name]
        due = earliest_s if call.due_s is None else max(earliest_s, self._began_s + call.due_s)
        return Ready(call=call, due_s=due)

    def _end(self, name: str, state: State) -> None:
        assert self._states[name] is State.OUT, f"{name} is {self._states[name].value}, not out"
        self._close(name, state)

    def _close(self, name: str, state: State) -> None:
        self._states[name] = state
        self._unfinished -= 1
        session = self._calls[name].session
        self._open[session] -= 1
        if not self._open[session]:
            self._users -= 1

    def _forget(self, name: str) -> None:
        """`name` is over: what it quoted may no longer be needed."""
        for quoted in _quotes(self._calls[name]):
            self._quoted[quoted] -= 1
            if not self._quoted[quoted]:
                self._answers.pop(quoted, None)

    def check(self) -> None:
        """Prove what the module promises."""
        over = {State.ANSWERED, State.FAILED, State.ABANDONED}
        assert self._unfinished == sum(state not in over for state in self._states.values()), "unfinished is wrong"
        for name, state in self._states.items():
            call = self._calls[name]
            before = [self._states[other] for other in call.after]
            if state in (State.OUT, State.ANSWERED, State.FAILED):
                assert all(one is State.ANSWERED for one in before), f"{name} went before what it waits for"
            if state is State.ABANDONED:
                assert any(one in (State.FAILED, State.ABANDONED) for one in before), f"{name} was abandoned in vain"
            if state is State.OUT:
                assert _quotes(call) <= self._answers.keys(), f"{name} lacks an answer it quotes"
        for session, calls in self._sessions.items():
            assert self._open[session] == sum(self._states[name] not in over for name in calls), f"{session}: count"
        held = set(self._held)
        begun = [session for session in self._sessions if session not in held]
        assert self._users == sum(self._open[session] > 0 for session in begun) <= self._users_max, "users are wrong"
        assert all(self._quoted.get(name, 0) > 0 for name in self._answers), "an answer is kept that nobody needs"


def shard(workload: Workload, index: int, of: int) -> Workload:
    """The part of one of `of` client processes: every `of`-th session. Hints without a session go with the first."""
    assert 0 <= index < of, "no such shard"
    numbers: dict[str, int] = {}
    for call in workload.calls:
        numbers.setdefault(call.session, len(numbers))
    mine = {session for session, number in numbers.items() if number % of == index}
    hints = tuple(h for h in workload.hint_prefixes if (index == 0 if h.session is None else h.session in mine))
    return replace(workload, calls=tuple(c for c in workload.calls if c.session in mine), hint_prefixes=hints)


def _quotes(call: Call) -> set[str]:
    return {part.call for part in parts(call) if isinstance(part, AnswerOf)}


def _in_order(ready: list[Ready]) -> list[Ready]:
    return sorted(ready, key=lambda one: one.due_s)
