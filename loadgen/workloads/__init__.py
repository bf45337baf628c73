"""Seeded workloads by name: `make("chat-short", seed=1, turns=6)`.

Keeps true: the same name, seed and settings give the same calls; a made workload passes its check; prompts are
generated text, so nothing of anyone else's is shipped. Lengths are in words of filler, a token each. Does not know when
calls arrive (arrivals.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, fields
from math import isfinite
from typing import Any

from trieway.loadgen.errors import WorkloadError
from trieway.loadgen.vocabulary import Setting, Workload
from trieway.loadgen.workloads import agents, chat, few_shot, retrieval, stress
from trieway.loadgen.workloads import tree_of_thought as tot
from trieway.loadgen.workloads.common import Draft, bounds

SCALE = "scale"
"""A setting of all: every length in tokens times this (at least 1 stays 1)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A workload that can be made."""

    settings: type[Any]
    build: Callable[[Any, Draft], None]

    @property
    def about(self) -> str:
        """One line."""
        return (self.settings.__doc__ or "").splitlines()[0]


RECIPES: Mapping[str, Recipe] = {
    "few-shot-5": Recipe(few_shot.FewShot5, few_shot.few_shot),
    "few-shot-20": Recipe(few_shot.FewShot20, few_shot.few_shot),
    "react-agent": Recipe(agents.ReactAgent, agents.react_agent),
    "generative-agents": Recipe(agents.GenerativeAgents, agents.generative_agents),
    "tree-of-thought": Recipe(tot.TreeOfThought, tot.tree_of_thought),
    "self-consistency": Recipe(few_shot.SelfConsistency, few_shot.self_consistency),
    "chat-short": Recipe(chat.ChatShort, chat.chat),
    "chat-long": Recipe(chat.ChatLong, chat.chat),
    "rag": Recipe(retrieval.Rag, retrieval.rag),
    "system-prompts": Recipe(chat.SystemPrompts, chat.system_prompts),
    "hot-prefix": Recipe(stress.HotPrefix, stress.hot_prefix),
    "tenants": Recipe(chat.Tenants, chat.tenants),
    "mixed": Recipe(chat.Mixed, chat.mixed),
    "unique": Recipe(stress.Unique, stress.unique),
}


def make(name: str, seed: int = 0, **settings: Setting) -> Workload:
    """The workload. Settings may be text, as a command line gives them. WorkloadError: no such name, setting, value."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise WorkloadError(f"no workload named {name!r}; there are {', '.join(RECIPES)}")
    scale = _real(SCALE, settings.pop(SCALE, 1.0), 1e-4, 1e4)
    chosen = _settings(name, recipe, settings, scale)
    draft = Draft.begin(seed)
    recipe.build(chosen, draft)
    calls = tuple(call for session in draft.sessions for call in session)
    effective: dict[str, Setting] = {**asdict(chosen), SCALE: scale}
    return Workload(name=name, seed=seed, calls=calls, settings=effective, hint_prefixes=tuple(draft.hints))


def describe(name: str) -> list[tuple[str, Setting, str]]:
    """Settings of a workload: (name, default, what it is)."""
    return [(one.name, _default(one), one.metadata["about"]) for one in fields(RECIPES[name].settings)]


def _default(one: Field[Any]) -> Setting:
    default: Setting = one.default  # type: ignore[assignment]  # settings all have one
    return default


def _settings(name: str, recipe: Recipe, given: Mapping[str, Setting], scale: float) -> Any:
    known: dict[str, Field[Any]] = {one.name: one for one in fields(recipe.settings)}
    for key in given:
        if key not in known:
            raise WorkloadError(f"{name} has no setting {key!r}; it has {', '.join((*known, SCALE))}")
    values: dict[str, Setting] = {}
    for key, one in known.items():
        value: Setting = given.get(key, _default(one))
        limits = bounds(one)
        if isinstance(one.default, bool):
            value = _switch(key, value)
        elif limits is not None and isinstance(one.default, int):
            value = _whole(key, value, *limits)
            if key.endswith("_tokens"):
                value = min(max(int(limits[0]), round(value * scale)), int(limits[1]))
        elif limits is not None:
            value = _real(key, value, *limits)
        elif one.metadata["options"] and value not in one.metadata["options"]:
            raise WorkloadError(f"{key} is one of {', '.join(one.metadata['options'])}, not {value!r}")
        elif not isinstance(value, str):
            raise WorkloadError(f"{key} is text, not {value!r}")
        values[key] = value
    return recipe.settings(**values)


def _switch(key: str, value: Setting) -> bool:
    meant = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    found = meant.get(str(value).lower())
    if found is None:
        raise WorkloadError(f"{key} is true or false, not {value!r}")
    return found


def _whole(key: str, value: Setting, least: float, most: float) -> int:
    try:
        found = int(str(value))
    except ValueError:
        raise WorkloadError(f"{key} is a whole number, not {value!r}") from None
    if not least <= found <= most:
        raise WorkloadError(f"{key} is {least:g} to {most:g}, not {found}")
    return found


def _real(key: str, value: Setting, least: float, most: float) -> float:
    try:
        found = float(str(value))
    except ValueError:
        raise WorkloadError(f"{key} is a number, not {value!r}") from None
    if not (isfinite(found) and least <= found <= most):
        raise WorkloadError(f"{key} is {least:g} to {most:g}, not {found:g}")
    return found
