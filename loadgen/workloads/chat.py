"""Conversations: each turn brings all that was said before. Short or long answers; under one system prompt, many, none.

Tenants are conversations whose system prompts belong to a few customers of different weight.
"""

from dataclasses import dataclass, replace

from trieway.loadgen.errors import WorkloadError
from trieway.loadgen.vocabulary import AnswerOf, Call, Filler, Message
from trieway.loadgen.workloads.common import Draft, Pause, Popularity, choice, number, share, switch


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatShort:
    """Conversations with short answers; nothing is shared between them."""

    conversations: int = number(20, "conversations")
    turns: int = number(4, "turns of each")
    user_tokens: int = number(384, "length of what a user says")
    output_tokens: int = number(6, "length of an answer")
    pause: str = choice("exponential:1", "think time between turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatLong(ChatShort):
    """Conversations with long answers."""

    output_tokens: int = number(384, "length of an answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemPrompts:
    """Conversations under a few system prompts, some far more popular than others."""

    conversations: int = number(200, "conversations")
    turns: int = number(1, "turns of each")
    systems: int = number(8, "system prompts")
    popularity: float = share(1.0, "exponent of Zipf's law over system prompts (0: all alike)", most=5.0)
    system_tokens: int = number(500, "length of a system prompt")
    user_tokens: int = number(60, "length of what a user says")
    output_tokens: int = number(32, "length of an answer")
    pause: str = choice("exponential:1", "think time between turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenants:
    """Conversations of tenants with weights; each tenant has a system prompt of its own."""

    weights: str = choice("8,4,2,1", "a weight for each tenant: its part of the conversations")
    conversations: int = number(60, "conversations over all tenants")
    turns: int = number(3, "turns of each")
    system_tokens: int = number(300, "length of a tenant's system prompt")
    user_tokens: int = number(80, "length of what a user says")
    output_tokens: int = number(32, "length of an answer")
    salted: bool = switch(False, "keep tenants' caches apart by a salt; without, all share one system prompt's cache")
    one_system: bool = switch(False, "one system prompt for all tenants")
    pause: str = choice("exponential:1", "think time between turns")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixed:
    """Long conversations under a few system prompts, and groups of few-shot questions among them."""

    conversations: int = number(64, "conversations")
    turns: int = number(8, "turns of each")
    systems: int = number(4, "system prompts")
    system_tokens: int = number(400, "length of a system prompt")
    user_tokens: int = number(60, "length of what a user says")
    output_tokens: int = number(40, "length of an answer")
    groups: int = number(8, "groups of questions", least=0)
    group_size: int = number(16, "questions of a group")
    examples_tokens: int = number(500, "length of a group's examples")
    pause: str = choice("exponential:1", "think time between turns")


def chat(settings: ChatShort, draft: Draft) -> None:
    """A session is a conversation."""
    pause = Pause.parse(settings.pause)
    for index in range(settings.conversations):
        talk(draft, f"chat-{index}", None, settings.turns, settings.user_tokens, settings.output_tokens, pause)
    draft.shuffle()


def system_prompts(settings: SystemPrompts, draft: Draft) -> None:
    """A session is a conversation; the group is its system prompt."""
    pause, popularity = Pause.parse(settings.pause), Popularity(settings.systems, settings.popularity)
    systems = [draft.words(settings.system_tokens) for _ in range(settings.systems)]
    for index in range(settings.conversations):
        system = popularity.draw(draft.rng)
        calls = talk(
            draft, f"chat-{index}", systems[system], settings.turns, settings.user_tokens, settings.output_tokens, pause
        )
        draft.sessions[-1] = [_of(call, group=f"system-{system}") for call in calls]


def tenants(settings: Tenants, draft: Draft) -> None:
    """A session is a conversation; its tenant is drawn by weight. WorkloadError: no usable weights."""
    try:
        weights = [float(one) for one in settings.weights.split(",")]
    except ValueError:
        weights = []
    if not weights or not all(0 < one < float("inf") for one in weights):
        raise WorkloadError(f"weights are numbers above 0 with commas between, as 8,4,2,1, not {settings.weights!r}")
    pause = Pause.parse(settings.pause)
    shared = draft.words(settings.system_tokens)
    systems = [shared if settings.one_system else draft.words(settings.system_tokens) for _ in weights]
    for index in range(settings.conversations):
        (tenant,) = draft.rng.choices(range(len(weights)), weights)
        calls = talk(
            draft, f"chat-{index}", systems[tenant], settings.turns, settings.user_tokens, settings.output_tokens, pause
        )
        name = f"tenant-{tenant}"
        draft.sessions[-1] = [
            _of(call, group=name, tenant=name, salt=name if settings.salted else None) for call in calls
        ]


def mixed(settings: Mixed, draft: Draft) -> None:
    """A session is a conversation, or one question of a group."""
    pause = Pause.parse(settings.pause)
    systems = [draft.words(settings.system_tokens) for _ in range(settings.systems)]
    for index in range(settings.conversations):
        system = systems[index % settings.systems]
        talk(draft, f"chat-{index}", system, settings.turns, settings.user_tokens, settings.output_tokens, pause)
    for group in range(settings.groups):
        examples = draft.words(settings.examples_tokens)
        for index in range(settings.group_size):
            session = f"question-{group}-{index}"
            calls = talk(draft, session, examples, 1, settings.user_tokens, settings.output_tokens, pause)
            draft.sessions[-1] = [_of(call, group=f"group-{group}") for call in calls]
    draft.shuffle()


def talk(
    draft: Draft, session: str, system: Filler | None, turns: int, user_tokens: int, output_tokens: int, pause: Pause
) -> list[Call]:
    """Add a conversation to the draft, and give its calls."""
    messages = [] if system is None else [Message("system", (system,))]
    calls: list[Call] = []
    for turn in range(turns):
        if calls:
            messages.append(Message("assistant", (AnswerOf(calls[-1].id),)))
        messages.append(Message("user", (draft.some_words(user_tokens),)))
        length = draft.about(output_tokens)
        calls.append(
            Call(
                id=f"{session}.{turn}",
                session=session,
                messages=tuple(messages),
                output_tokens=length,
                max_tokens=length,
                after=(calls[-1].id,) if calls else (),
                think_s=pause.draw(draft.rng) if calls else 0.0,
                share_group=session,
            )
        )
    draft.sessions.append(calls)
    return calls


def _of(call: Call, *, group: str, tenant: str | None = None, salt: str | None = None) -> Call:
    return replace(call, share_group=group, tenant=tenant, salt=salt)
