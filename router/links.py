"""The shell's record of each worker: where it is, what it said of itself, which requests are with it.

Keeps true: `group_sources` has exactly the groups of the workers known; a worker whose process died cuts the waits of
all requests lent to it at once. Does not know loads or prefixes (router/core does) nor how a worker is watched
(feeds.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Any

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
    """The time that one attempt has at a worker: a timeout that moves on with each byte, entered through `Link.lend`.

    As `asyncio.timeout` does, it cancels the task and turns that cancel into TimeoutError; but its end is a number that
    the link looks at every LEASE_GRAIN_S, not a timer of the loop, which would cost each request some microseconds. A
    lost worker ends it early (`lost`). `until`: when the whole request must be done, by time.monotonic().
    """

    __slots__ = ("_cancelling", "_idle_s", "_link", "_task", "ends_at", "expired", "lost", "until")

    def __init__(self, patience: Patience, until: float) -> None:
        self._idle_s = patience.idle_s
        self._link: Link | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self.until = until
        self.ends_at = min(monotonic() + patience.first_byte_s, until)
        self.expired = False
        self.lost = False

    def heard(self) -> None:
        """Bytes came: the pause starts anew."""
        self.ends_at = min(monotonic() + self._idle_s, self.until)

    def lose(self) -> None:
        """The worker is gone: whatever waits for it stops now."""
        self.lost = True
        self.expire()

    def expire(self) -> None:
        """The time is over."""
        if self._task is not None and not self.expired:
            self.expired = True
            self._task.cancel()

    def enter(self, link: Link) -> Lease:
        """For `Link.lend`."""
        self._link = link
        return self

    def __enter__(self) -> None:
        link = self._link
        assert link is not None, "a lease is lent by a link"
        self._task = task = asyncio.current_task(link.loop)
        assert task is not None
        self._cancelling = task.cancelling()
        link.took(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        link, task, self._task = self._link, self._task, None
        assert link is not None
        assert task is not None
        link.gave_back(self)
        if self.expired and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


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
    _watch: asyncio.TimerHandle | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def fleet(self) -> bool:
        """Whether this is a Trieway worker."""
        return self.fleet_token is not None

    @property
    def reads_clock(self) -> bool:
        return self.card is not None and self.card.reads_clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def lend(self, lease: Lease) -> Lease:
        """A context: inside it the lease runs, and ends early if the worker is lost. Raises TimeoutError."""
        return lease.enter(self)

    def took(self, lease: Lease) -> None:
        """A request is with the worker from now on."""
        self.leases.add(lease)
        self.idle.clear()
        if self._watch is None:
            self._watch = self.loop.call_later(LEASE_GRAIN_S, self._look)

    def gave_back(self, lease: Lease) -> None:
        """It is no longer."""
        self.leases.discard(lease)
        if not self.leases:
            self.idle.set()

    def _look(self) -> None:
        """Ends the leases whose time is over; comes again as long as there are any."""
        now = monotonic()
        for lease in tuple(self.leases):
            if lease.ends_at <= now:
                lease.expire()
        self._watch = self.loop.call_later(LEASE_GRAIN_S, self._look) if self.leases else None

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
