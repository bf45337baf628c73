"""What routers are known to do badly: one prefix that is hot, and prompts that share nothing, or nearly nothing.

A hot prefix tempts a router to send everything to the one worker that holds it; when the heat moves, to stay there.
Unique prompts show what managing a cache costs where there is nothing to gain.
"""

from dataclasses import dataclass

from trieway.loadgen.vocabulary import Call, Part
from trieway.loadgen.workloads.common import Draft, choice, number, share


@dataclass(frozen=True, kw_only=True, slots=True)
class HotPrefix:
    """One prefix gets most of the calls; then another does."""

    requests: int = number(300, "calls")
    hot_share: float = share(0.8, "part of the calls that have the hot prefix")
    phases: int = number(2, "how often there is a new hot prefix")
    cold: int = number(20, "prefixes that share the rest")
    prefix_tokens: int = number(800, "length of a prefix")
    tail_tokens: int = number(40, "length of what follows it")
    output_tokens: int = number(16, "length of an answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unique:
    """Nothing can be reused; `near` and `late` look as if."""

    requests: int = number(200, "calls")
    kind: str = choice(
        "plain",
        "near: all begin alike, but for less than a block; late: all are alike but for their first word",
        "plain", "near", "late",
    )  # fmt: skip
    prompt_tokens: int = number(300, "length of a prompt", least=16)
    output_tokens: int = number(16, "length of an answer")


NEAR_TOKENS = 15
"""60 bytes: one word less than a block of text."""


def hot_prefix(settings: HotPrefix, draft: Draft) -> None:
    """A session is a call; they come in order of phases."""
    hot = [draft.words(settings.prefix_tokens) for _ in range(settings.phases)]
    cold = [draft.words(settings.prefix_tokens) for _ in range(settings.cold)]
    for index in range(settings.requests):
        phase = index * settings.phases // settings.requests
        is_hot = draft.rng.random() < settings.hot_share
        which = draft.rng.randrange(settings.cold)
        prefix, group = (hot[phase], f"hot-{phase}") if is_hot else (cold[which], f"cold-{which}")
        _add(draft, index, (prefix, draft.some_words(settings.tail_tokens)), settings.output_tokens, group)


def unique(settings: Unique, draft: Draft) -> None:
    """A session is a call."""
    shared = draft.words(NEAR_TOKENS if settings.kind == "near" else settings.prompt_tokens)
    for index in range(settings.requests):
        if settings.kind == "plain":
            prompt: tuple[Part, ...] = (draft.words(settings.prompt_tokens),)
        elif settings.kind == "near":
            prompt = (shared, draft.words(settings.prompt_tokens - NEAR_TOKENS))
        else:
            prompt = (draft.words(4), shared)
        _add(draft, index, prompt, settings.output_tokens, settings.kind)


def _add(draft: Draft, index: int, prompt: tuple[Part, ...], output_tokens: int, group: str) -> None:
    call = Call(
        id=f"call-{index}",
        session=f"call-{index}",
        form="completion",
        prompt=prompt,
        output_tokens=output_tokens,
        max_tokens=output_tokens,
        share_group=group,
    )
    draft.sessions.append([call])
