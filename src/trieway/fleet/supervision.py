"""What a supervisor decides: which child to start, wait for, restart, stop, and when to give up.

Pure: events and `now` come in, effects go out. It keeps true that a name has at most one live process, that every
wait has an end (start, back-off, drain), that the router is stopped before the workers it sends to, and that once
asked to stop nothing is started again. It does not know what a process, a port or a health check is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trieway.fleet.lifecycle import (
    AnnounceReady,
    Answered,
    Complete,
    Effect,
    Event,
    Exited,
    Limits,
    Phase,
    Role,
    Say,
    Start,
    Started,
    Stop,
    StopAsked,
    Tick,
    describe_exit,
)


@dataclass(slots=True)
class _Child:
    role: Role
    phase: Phase = Phase.WAITING
    until: float = 0.0  # the end of the phase's wait; meaning by phase
    since: float = 0.0  # when the phase began
    failures: int = 0  # in a row: exits that were not preceded by a stable run
    last_words: str = ""


class Supervision:
    """The state of every child. `handle` is the only way in; `finished` and `exit_code` are the end."""

    def __init__(self, children: Mapping[str, Role], limits: Limits) -> None:
        assert children, "a fleet has at least one child"
        self.limits = limits
        self.exit_code = 0
        self.failure: str | None = None
        self._children = {name: _Child(role=role) for name, role in children.items()}
        self._complete_once = False
        self._stopping = False
        self._in_a_hurry = False

    @property
    def finished(self) -> bool:
        """True once stopping is done: no process is left and none will be started."""
        return self._stopping and all(child.phase is Phase.GONE for child in self._children.values())

    @property
    def stopping(self) -> bool:
        """True from the first wish to end, whoever had it."""
        return self._stopping

    @property
    def complete_once(self) -> bool:
        """True once the whole fleet has been ready together."""
        return self._complete_once

    def phase(self, name: str) -> Phase:
        """Where this child stands."""
        return self._children[name].phase

    def phases(self) -> dict[str, Phase]:
        """Where every child stands."""
        return {name: child.phase for name, child in self._children.items()}

    def wake_at(self) -> float | None:
        """When a `Tick` is due at the latest, if any wait is running."""
        timed = (Phase.STOPPING,) if self._stopping else (Phase.WAITING, Phase.STARTING)
        ends = [child.until for child in self._children.values() if child.phase in timed]
        if self._assembling():
            ends.append(self._assembled_by())
        return min(ends, default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in, give what is to be done. `now` in seconds, never backward."""
        match event:
            case Started(name=name):
                self._started(self._children[name], now)
            case Answered(name=name):
                return list(self._answered(name, now))
            case Complete():
                return list(self._completed())
            case Exited(name=name, code=code, reason=reason):
                return [*self._exited(name, code, reason, now), *self._advance(now)]
            case StopAsked():
                return [*self._stop_asked(now), *self._advance(now)]
            case Tick():
                return list(self._advance(now))
        return []

    def check(self) -> None:
        """Prove the sums: phases and wishes agree."""
        if self._stopping:
            assert all(child.phase is not Phase.WAITING for child in self._children.values())
            workers_asked = any(
                child.phase is Phase.STOPPING for child in self._children.values() if child.role is Role.WORKER
            )
            if workers_asked and not self._in_a_hurry:
                assert not self._routers_alive(), "a worker was stopped under a live router"
        else:
            assert not any(child.phase in (Phase.GONE, Phase.STOPPING) for child in self._children.values())
        assert (self.exit_code == 0) == (self.failure is None)

    # -- events ---------------------------------------------------------------------------------------------------

    def _started(self, child: _Child, now: float) -> None:
        assert child.phase in (Phase.STARTING, Phase.STOPPING), f"started in phase {child.phase}"
        child.since = now

    def _answered(self, name: str, now: float) -> Iterator[Effect]:
        child = self._children[name]
        if child.phase is not Phase.STARTING:
            return  # a late answer of a process that is leaving or gone
        yield Say(text=f"{name} ready after {now - child.since:.1f} s")
        child.phase, child.since = Phase.READY, now

    def _completed(self) -> Iterator[Effect]:
        if self._assembling():
            self._complete_once = True
            yield AnnounceReady()

    def _exited(self, name: str, code: int, reason: str | None, now: float) -> Iterator[Effect]:
        child = self._children[name]
        assert child.phase not in (Phase.WAITING, Phase.GONE), f"exit of {name} in phase {child.phase}"
        was_ready = child.phase is Phase.READY
        if self._stopping:
            child.phase = Phase.GONE
            return
        stable = was_ready and now - child.since >= self.limits.stable_s
        child.failures = 1 if stable else child.failures + 1
        child.last_words = reason or describe_exit(code)
        wait_s = self.limits.backoff_s(child.failures)
        child.phase, child.since, child.until = Phase.WAITING, now, now + wait_s
        gave_its_reason = reason is not None or code == 2
        if verdict := self._verdict(name, child, hopeless=gave_its_reason and not was_ready):
            yield from self._fail(verdict, now)
        else:
            verb = "died" if was_ready else "died while starting"
            yield Say(text=f"{name} {verb} ({child.last_words}); restarting in {wait_s:.2f} s")

    def _stop_asked(self, now: float) -> Iterator[Effect]:
        if self._stopping:
            self._in_a_hurry = True
            for name, child in self._children.items():
                if child.phase is not Phase.GONE:
                    child.phase, child.until = Phase.STOPPING, now + self.limits.worker_drain_max_s
                    yield Stop(name=name, hard=True)
            return
        yield Say(text="stopping once running requests are done; Ctrl-C again ends them at once")
        self._begin_stop()

    # -- time -----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> Iterator[Effect]:
        for name, child in self._children.items():
            if child.phase is Phase.WAITING and now >= child.until:
                child.phase, child.since, child.until = Phase.STARTING, now, now + self.limits.start_max_s
                yield Start(name=name)
            elif child.phase is Phase.STARTING and now >= child.until and not self._stopping:
                yield Say(text=f"{name} did not answer within {self.limits.start_max_s:.0f} s; ending it")
                child.until = now + self.limits.start_max_s
                yield Stop(name=name, hard=True)
            elif child.phase is Phase.STOPPING and now >= child.until:
                yield Say(text=f"{name} did not leave in time; killing it")
                child.until = now + self.limits.worker_drain_max_s
                yield Stop(name=name, hard=True)
        if self._assembling() and now >= self._assembled_by():
            waited = f"{self.limits.start_max_s:.0f} s"
            yield from self._fail(
                f"all processes are ready, but the router does not count all workers in {waited}", now
            )
        elif self._stopping:
            yield from self._stop_next(now)

    def _assembling(self) -> bool:
        """True while every child is ready and the router has yet to say so of its workers."""
        all_ready = all(child.phase is Phase.READY for child in self._children.values())
        return all_ready and not self._complete_once and not self._stopping

    def _assembled_by(self) -> float:
        return max(child.since for child in self._children.values()) + self.limits.start_max_s

    def _stop_next(self, now: float) -> Iterator[Effect]:
        """Routers first; workers once no router is left to send to them."""
        role = Role.ROUTER if self._routers_alive() else Role.WORKER
        drain_s = self.limits.router_drain_max_s if role is Role.ROUTER else self.limits.worker_drain_max_s
        for name, child in self._children.items():
            if child.role is role and child.phase in (Phase.STARTING, Phase.READY):
                child.phase, child.since, child.until = Phase.STOPPING, now, now + drain_s
                yield Stop(name=name, hard=False)

    # -- giving up ------------------------------------------------------------------------------------------------

    def _verdict(self, name: str, child: _Child, *, hopeless: bool) -> str | None:
        """Why the fleet should end, or None: try again."""
        limit = self.limits.failures_max
        if not self._complete_once:
            if hopeless:
                return f"{name} cannot start: {child.last_words}"
            if child.failures >= limit:
                return f"{name} died {child.failures} times in a row: {child.last_words}"
            return None
        if child.role is Role.ROUTER:
            return (
                f"{name} died {child.failures} times in a row: {child.last_words}" if child.failures >= limit else None
            )
        workers = [child for child in self._children.values() if child.role is Role.WORKER]
        if all(worker.failures >= limit and worker.phase is not Phase.READY for worker in workers):
            return f"no worker stays alive; {name} died {child.failures} times in a row: {child.last_words}"
        return None

    def _fail(self, why: str, now: float) -> Iterator[Effect]:
        self.failure, self.exit_code = why, 1
        self._begin_stop()
        yield from self._stop_next(now)

    def _begin_stop(self) -> None:
        self._stopping = True
        for child in self._children.values():
            if child.phase is Phase.WAITING:
                child.phase = Phase.GONE

    def _routers_alive(self) -> bool:
        return any(child.role is Role.ROUTER and child.phase is not Phase.GONE for child in self._children.values())
