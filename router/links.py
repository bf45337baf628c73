"""The shell's record of each worker: where it is, what it said of itself, which requests are with it.

Keeps true: `group_sources` has exactly the groups of the workers known; a worker whose process died cuts the waits of
all requests lent to it at once. Does not know loads or prefixes (router/core does) nor how a worker is watched
(feeds.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic

from trieway.meta_tree.ids import GroupId, WorkerId
from trieway.serving.chat_template import ChatTemplate
from trieway.serving.handshake import ModelCard
from trieway.serving.prompt_key import KeySource

LEASE_GRAIN_S = 0.1
"""Timeouts are kept to this precision."""


class LinkState(StrEnum):
    """How far the router is with a worker."""

    NEW = "new"
    """Not reached yet."""
    UP = "up"
    AWAY = "away"
    """Was reached, does not answer now."""
    REFUSED = "refused"
    """It answers, but cannot be used; `Link.note` says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a request may take, in seconds: until a worker's first byte, between bytes, in all."""

    first_byte_s: float
    idle_s: float
    total_s: float


class Lease:
    """The time that one attempt has at a worker: an `asyncio.timeout` that moves on with each byte.

    A lost worker ends it early (`lost`). `until`: when the whole request must be done, by the loop's clock, which is
    time.monotonic().
    """

    __slots__ = ("_idle_s", "_moved_at", "lost", "timer", "until")

    def __init__(self, patience: Patience, until: float) -> None:
        now = monotonic()
        self._idle_s = patience.idle_s
        self._moved_at = now
        self.until = until
        self.lost = False
        self.timer = asyncio.timeout_at(min(now + patience.first_byte_s, until))

    def heard(self) -> None:
        """Bytes came: the pause starts anew. Cheap: the timer is moved a few times a second at most."""
        now = monotonic()
        if now - self._moved_at > LEASE_GRAIN_S and not self.lost:
            self._moved_at = now
            self.timer.reschedule(min(now + self._idle_s, self.until))

    def lose(self) -> None:
        """The worker is gone: whatever waits for it stops now."""
        self.lost = True
        if not self.timer.expired():
            self.timer.reschedule(asyncio.get_running_loop().time())


@dataclass(kw_only=True, slots=True)
class Link:
    """One worker as the shell sees it. `fleet_token` is set exactly for workers of our fleet that are known as such."""

    worker: WorkerId
    url: str
    state: LinkState = LinkState.NEW
    note: str = ""
    card: ModelCard | None = None
    source: KeySource = field(default_factory=KeySource)
    model: str = ""
    aliases: tuple[str, ...] = ()
    group: GroupId | None = None
    fleet_token: str | None = None
    draining: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    leases: set[Lease] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no request is with the worker."""

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def fleet(self) -> bool:
        """Whether this is a Trieway worker."""
        return self.fleet_token is not None

    @property
    def reads_clock(self) -> bool:
        return self.card is not None and self.card.reads_clock

    @contextmanager
    def lend(self, lease: Lease) -> Iterator[None]:
        """The lease ends early if the worker is lost inside the block."""
        self.leases.add(lease)
        self.idle.clear()
        try:
            yield
        finally:
            self.leases.discard(lease)
            if not self.leases:
                self.idle.set()

    def suspect(self) -> None:
        """Something went wrong there: look at once."""
        self.wake.set()

    def lose(self) -> None:
        """The worker's process is dead."""
        for lease in tuple(self.leases):
            lease.lose()


@dataclass(kw_only=True, slots=True)
class Group:
    """Workers that key prompts alike. `foreign`: no template known, keyed on raw messages under the model's name."""

    id: GroupId
    foreign: bool
    source: KeySource
    vocabulary_digest: str | None
    links: list[Link] = field(default_factory=list)


class Links:
    """All workers, and the groups that they form."""

    def __init__(self) -> None:
        self._links: dict[WorkerId, Link] = {}
        self._groups: dict[GroupId, Group] = {}
        self._by_model: dict[str, tuple[Group, ...]] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(tuple(self._links.values()))

    def __len__(self) -> int:
        return len(self._links)

    def get(self, worker: WorkerId) -> Link:
        """KeyError if unknown."""
        return self._links[worker]

    def find(self, worker: str) -> Link | None:
        return self._links.get(WorkerId(worker))

    def add(self, link: Link) -> None:
        assert link.worker not in self._links
        self._links[link.worker] = link

    def remove(self, worker: WorkerId) -> None:
        self._links.pop(worker, None)
        self.regroup()

    @property
    def fresh(self) -> int:
        """Workers that have not answered yet."""
        return sum(link.state is LinkState.NEW for link in self._links.values())

    def groups_of(self, model: str) -> tuple[Group, ...]:
        """The groups that serve `model`, by name or alias."""
        return self._by_model.get(model, ())

    def models(self) -> dict[str, Link]:
        """Each model's name and aliases, with a worker that serves it."""
        names: dict[str, Link] = {}
        for link in self._links.values():
            for name in (link.model, *link.aliases):
                if name:
                    names.setdefault(name, link)
        return names

    def regroup(self) -> None:
        """Call after any link's card, model or group has changed. What a group has learnt (vocabulary) stays."""
        groups: dict[GroupId, Group] = {}
        by_model: dict[str, list[Group]] = {}
        for link in self._links.values():
            if link.group is None:
                continue
            group = groups.get(link.group)
            if group is None:
                group = groups[link.group] = self._groups.get(link.group) or _group(link, link.group)
                group.links = []
            group.links.append(link)
            for name in (link.model, *link.aliases):
                serving = by_model.setdefault(name, [])
                if group not in serving:
                    serving.append(group)
        self._groups = groups
        self._by_model = {model: tuple(serving) for model, serving in by_model.items()}

    def check(self) -> None:
        """Every link with a group is in that group exactly once, and no group is empty."""
        for group in self._groups.values():
            assert group.links, "a group without workers"
            assert all(self._links.get(link.worker) is link for link in group.links), "a group holds a stranger"
        grouped = [link.worker for group in self._groups.values() for link in group.links]
        assert sorted(grouped) == sorted(link.worker for link in self._links.values() if link.group is not None)


def _group(link: Link, group: GroupId) -> Group:
    card = link.card
    return Group(
        id=group,
        foreign=card is None,
        source=link.source,
        vocabulary_digest=None if card is None else card.vocabulary_digest,
    )


def source_of(card: ModelCard) -> KeySource:
    """How prompts are keyed for the workers of this card. Raises TemplateInvalid."""
    template = ChatTemplate(card.template, card.bos_token, card.eos_token) if card.template is not None else None
    return KeySource(template=template, completion_prefix=card.completion_prefix.encode())
