"""Why a replica waits for a place: what it asks of a node against what the nodes offer. Pure.

Keeps true: the reason names the one thing that no node has, or says which nodes are full. Does not know how Ray places,
only what Ray cannot get around.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SHOWN_MAX = 4
PLACING = "a node has room: it is being prepared"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a replica asks of its node: amounts by name (`CPU`, `GPU`, custom ones) and labels as Ray selects them."""

    amounts: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A node that lives: what it has in all, what of it is free, and its labels."""

    address: str
    amounts: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str]


def wish(options: Mapping[str, object]) -> Wish:
    """Of the options of an actor, as Serve tells them."""
    amounts = {"CPU": _number(options.get("num_cpus")), "GPU": _number(options.get("num_gpus"))}
    custom = options.get("resources")
    if isinstance(custom, Mapping):
        amounts |= {str(name): _number(amount) for name, amount in custom.items()}
    labels = options.get("label_selector")
    return Wish(
        amounts={name: amount for name, amount in amounts.items() if amount > 0},
        labels={str(name): str(value) for name, value in labels.items()} if isinstance(labels, Mapping) else {},
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def why_waiting(asked: Wish, offers: Sequence[Offer]) -> str:
    """In words, for a replica that has no node."""
    for name, wanted in asked.labels.items():
        if not any(matches(wanted, offer.labels.get(name)) for offer in offers):
            return f"no node has the label {name}={wanted}; {_labels(name, offers)}"
    fit = [one for one in offers if all(matches(v, one.labels.get(k)) for k, v in asked.labels.items())]
    if not fit:
        return f"no node has all the labels {_pairs(asked.labels)}"
    where = f" with {_pairs(asked.labels)}" if asked.labels else ""
    for name, amount in asked.amounts.items():
        most = max(one.amounts.get(name, 0.0) for one in fit)
        if most < amount:
            return f"no node{where} offers {amount:g} {name}; the most is {most:g}"
    wide = [one for one in fit if _holds(one.amounts, asked.amounts)]
    if not wide:
        return f"no node{where} offers all of {_amounts(asked.amounts)} at once"
    if not any(_holds(one.free, asked.amounts) for one in wide):
        full = ", ".join(f"{one.address} ({_amounts(_free(one, asked))})" for one in wide[:SHOWN_MAX])
        return f"{_amounts(asked.amounts)} asked for, nodes that could are full; free: {full}{_more(wide)}"
    return PLACING


def matches(wanted: str, value: str | None) -> bool:
    """Whether a node's label is as selected: `a`, `!a`, `in(a,b)`, `!in(a,b)`. A missing label is not any value."""
    text = wanted.strip()
    negated = text.startswith("!")
    text = text.removeprefix("!").strip()
    if text.startswith("in(") and text.endswith(")"):
        options = {option.strip() for option in text[3:-1].split(",")}
    else:
        options = {text}
    return (value not in options) if negated else (value in options)


def _holds(has: Mapping[str, float], asked: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in asked.items())


def _free(offer: Offer, asked: Wish) -> dict[str, float]:
    return {name: offer.free.get(name, 0.0) for name in asked.amounts}


def _labels(name: str, offers: Sequence[Offer]) -> str:
    seen = sorted({value for offer in offers if (value := offer.labels.get(name)) is not None})
    return f"{name} is {', '.join(seen[:SHOWN_MAX])}{_more(seen)}" if seen else f"none has {name} at all"


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items())


def _more(shown: Sequence[object] | Iterable[object]) -> str:
    count = len(list(shown)) - SHOWN_MAX
    return f" and {count} more" if count > 0 else ""
