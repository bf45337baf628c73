"""The words of the load generator: calls, what their prompts are made of, and the workload they form.

Keeps true (`Workload.check`): ids are unique; a call comes after the calls it waits for, and these are of its own
session; it quotes only answers of calls it waits for, directly or through others. So a session is whole in itself: a
user of the closed loop, or a client process, can be given any set of sessions. Values only: the order in time is the
flow's (flow.py), bytes are made in prompts.py. Does not know servers, clocks or tokenizers.

Lengths in tokens are what the workload means; where text is filler (filler.py), a word is a token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Form = Literal["chat", "completion"]
Setting = str | int | float | bool | None
NO_SETTINGS: Mapping[str, Setting] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Text:
    """Text as it stands."""

    text: str


@dataclass(frozen=True, slots=True)
class Filler:
    """`words` words of generated text (4 bytes each, with a leading space); equal keys give equal text. Made late, so
    that a trace of 100 million tokens needs no memory for its prompts."""

    key: int
    words: int


@dataclass(frozen=True, slots=True)
class AnswerOf:
    """The text that an earlier call was answered with."""

    call: str


Part = Text | Filler | AnswerOf


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; its content is its parts joined."""

    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One request to come. Exactly one of `messages` (form chat) and `prompt` (form completion) is filled."""

    id: str
    session: str
    form: Form = "chat"
    messages: tuple[Message, ...] = ()
    prompt: tuple[Part, ...] = ()
    output_tokens: int = 16
    """Expected length of the answer; with `forced`, exactly that (the end-of-text token is ignored). At least 1."""
    max_tokens: int = 16
    forced: bool = True
    after: tuple[str, ...] = ()
    """Calls that must have been answered before; empty: free to start."""
    think_s: float = 0.0
    """Wait after the last of those answers. Free calls: 0."""
    due_s: float | None = None
    """Not before this time from the start (trace time, or given by an arrival process). Free calls with None start
    when the flow starts (or a user of the closed loop is free)."""
    temperature: float = 0.0
    seed: int | None = None
    salt: str | None = None
    tenant: str | None = None
    stream: bool = True
    priority: int = 0
    share_group: str = ""
    """A label for reports: calls of one group are meant to share a prefix."""
    prompt_tokens: int | None = None
    """What a trace says of the prompt's length; None where only a tokenizer can tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """A prefix to make resident before the calls that fork from it arrive (`POST /cache/prefix`). No AnswerOf parts."""

    session: str | None
    """Due when this session's first call is; None: before anything else."""
    form: Form = "chat"
    messages: tuple[Message, ...] = ()
    prompt: tuple[Part, ...] = ()
    salt: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Calls, each after those it waits for; free calls in the order in which they should arrive."""

    name: str
    seed: int
    calls: tuple[Call, ...]
    settings: Mapping[str, Setting] = field(default_factory=lambda: NO_SETTINGS)
    """The effective parameters, for reports."""
    hint_prefixes: tuple[Hint, ...] = ()

    def check(self) -> None:
        """Prove what the module promises."""
        seen: dict[str, Call] = {}
        for call in self.calls:
            assert call.id not in seen, f"two calls are named {call.id!r}"
            assert (call.form == "chat") == bool(call.messages), f"{call.id}: messages belong to chat"
            assert (call.form == "completion") == bool(call.prompt), f"{call.id}: a prompt belongs to a completion"
            assert call.output_tokens >= 1, f"{call.id}: no output"
            assert call.max_tokens >= call.output_tokens, f"{call.id}: max_tokens is below output_tokens"
            assert call.think_s >= 0.0, f"{call.id}: negative think time"
            assert call.after or not call.think_s, f"{call.id}: nothing to think about"
            assert all(name in seen for name in call.after), f"{call.id} waits for a call that comes later or never"
            same = all(seen[name].session == call.session for name in call.after)
            assert same, f"{call.id} waits for another session"
            unknown = quoted_in_vain(call, seen)
            assert not unknown, f"{call.id} quotes {sorted(unknown)}, for which it does not wait"
            seen[call.id] = call
        for hint in self.hint_prefixes:
            assert not any(isinstance(part, AnswerOf) for part in _parts(hint.messages, hint.prompt)), "a hint is fixed"


def quoted_in_vain(call: Call, earlier: Mapping[str, Call]) -> set[str]:
    """Calls that `call` quotes but does not wait for, directly or through others; `earlier` holds all it waits for."""
    wanted = {part.call for part in parts(call) if isinstance(part, AnswerOf)}
    queue, met = list(call.after), set(call.after)
    while wanted and queue:
        name = queue.pop()
        wanted.discard(name)
        fresh = [other for other in earlier[name].after if other not in met]
        met.update(fresh)
        queue += fresh
    return wanted


def parts(call: Call) -> Iterable[Part]:
    """All parts of a call's prompt in order."""
    return _parts(call.messages, call.prompt)


def _parts(messages: tuple[Message, ...], prompt: tuple[Part, ...]) -> Iterable[Part]:
    for message in messages:
        yield from message.parts
    yield from prompt
