"""The supervisor's decisions, on a clock made by hand."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from trieway.fleet.supervision import Supervision

LIMITS = Limits(
    failures_max=3,
    backoff_first_s=0.25,
    backoff_max_s=10.0,
    stable_s=30.0,
    start_max_s=60.0,
    router_drain_max_s=15.0,
    worker_drain_max_s=10.0,
)
NAMES = {"router": Role.ROUTER, "worker-0": Role.WORKER, "worker-1": Role.WORKER}
WORKERS = ("worker-0", "worker-1")


class Table:
    """A supervision with a hand-moved clock, checked after each step; a start succeeds at once."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.core = Supervision(NAMES, limits)
        self.now = 100.0

    def do(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.core.check()
        for effect in tuple(effects):
            if isinstance(effect, Start):
                effects += self.do(Started(name=effect.name))
        return effects

    def after(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.do(Tick())

    def up(self) -> Table:
        self.do(Tick())
        for name in NAMES:
            self.do(Answered(name=name))
        assert AnnounceReady() in self.do(Complete())
        return self

    def crash(self, name: str, code: int = 1, reason: str | None = None) -> list[Effect]:
        return self.do(Exited(name=name, code=code, reason=reason))


def starts(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Start)]


def stops(effects: list[Effect], *, hard: bool = False) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Stop) and effect.hard is hard]


def said(effects: list[Effect]) -> str:
    return "\n".join(effect.text for effect in effects if isinstance(effect, Say))


def test_all_children_are_started_at_once() -> None:
    table = Table()
    assert starts(table.do(Tick())) == ["router", "worker-0", "worker-1"]
    assert starts(table.after(1)) == []


def test_the_ready_line_comes_once_when_all_are_ready_and_the_router_sees_them() -> None:
    table = Table()
    table.do(Tick())
    table.do(Answered(name="router"))
    table.do(Answered(name="worker-0"))
    assert table.do(Complete()) == []
    assert "worker-1 ready after 0.0 s" in said(table.do(Answered(name="worker-1")))
    assert table.do(Complete()) == [AnnounceReady()]
    assert table.do(Complete()) == []


def test_a_router_that_never_sees_its_workers_ends_the_fleet() -> None:
    table = Table()
    table.do(Tick())
    for name in NAMES:
        table.do(Answered(name=name))
    assert table.core.wake_at() == table.now + 60
    assert table.after(59) == []
    assert stops(table.after(1)) == ["router"]
    assert table.core.failure == "all processes are ready, but the router does not count all workers in 60 s"


def test_a_dead_worker_is_restarted_after_the_backoff() -> None:
    table = Table().up()
    effects = table.crash("worker-1", -9)
    assert starts(effects) == []
    assert "worker-1 died (killed by SIGKILL); restarting in 0.25 s" in said(effects)
    assert table.core.wake_at() == pytest.approx(table.now + 0.25)
    assert starts(table.after(0.2)) == []
    assert starts(table.after(0.1)) == ["worker-1"]
    assert table.core.phase("worker-0") is Phase.READY


def test_the_backoff_doubles_and_is_bounded() -> None:
    waits = [LIMITS.backoff_s(failures) for failures in range(1, 9)]
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert LIMITS.backoff_s(10_000) == 10.0


def test_a_stable_run_is_forgiven_its_past() -> None:
    table = Table().up()
    for wait in (0.25, 0.5):
        assert f"restarting in {wait:.2f} s" in said(table.crash("worker-0"))
        table.after(wait)
        table.do(Answered(name="worker-0"))
    table.after(31)
    assert "restarting in 0.25 s" in said(table.crash("worker-0"))


def test_a_worker_that_dies_at_start_again_and_again_ends_the_fleet() -> None:
    table = Table()
    table.do(Tick())
    table.crash("worker-0")
    table.after(0.3)
    table.crash("worker-0")
    table.after(0.6)
    effects = table.crash("worker-0")
    assert table.core.failure == "worker-0 died 3 times in a row: exit code 1"
    assert table.core.exit_code == 1
    assert stops(effects) == ["router"]


def test_a_worker_that_says_why_ends_a_starting_fleet_at_once() -> None:
    table = Table()
    table.do(Tick())
    table.crash("worker-0", 1, "no model named 'nope'; see `trieway models`")
    assert table.core.failure == "worker-0 cannot start: no model named 'nope'; see `trieway models`"


def test_bad_usage_of_a_child_is_hopeless_too() -> None:
    table = Table()
    table.do(Tick())
    table.crash("router", 2)
    assert table.core.failure == "router cannot start: exit code 2"


def test_in_a_complete_fleet_a_crash_looping_worker_does_not_end_the_others() -> None:
    table = Table().up()
    for _ in range(20):
        table.crash("worker-0", 1, "out of memory")
        assert table.core.failure is None
        table.after(10)
    assert table.core.phase("worker-0") is Phase.STARTING


def test_a_complete_fleet_ends_when_no_worker_stays_alive() -> None:
    table = Table().up()
    for _ in range(2):
        for name in WORKERS:
            table.crash(name)
        table.after(10)
    table.crash("worker-0")
    assert table.core.failure is None
    table.crash("worker-1")
    assert table.core.failure is not None
    assert table.core.failure.startswith("no worker stays alive; worker-1 died 3 times in a row")


def test_a_router_is_restarted_likewise_and_given_up_in_the_end() -> None:
    table = Table().up()
    for wait in (0.25, 0.5):
        table.crash("router", -11)
        assert starts(table.after(wait)) == ["router"]
    table.crash("router", -11)
    assert table.core.failure == "router died 3 times in a row: killed by SIGSEGV"


def test_a_child_that_never_answers_is_killed_and_counts_as_failed() -> None:
    table = Table()
    table.do(Tick())
    effects = table.after(61)
    assert stops(effects, hard=True) == ["router", "worker-0", "worker-1"]
    assert "did not answer within 60 s" in said(effects)
    assert "worker-0 died while starting" in said(table.crash("worker-0", -9))


def test_stopping_is_router_first_then_workers() -> None:
    table = Table().up()
    effects = table.do(StopAsked())
    assert stops(effects) == ["router"]
    assert stops(table.after(5)) == []
    assert stops(table.crash("router", 0)) == ["worker-0", "worker-1"]
    assert not table.core.finished
    table.crash("worker-0", 0)
    table.crash("worker-1", 0)
    assert table.core.finished
    assert table.core.exit_code == 0


def test_what_does_not_leave_is_killed() -> None:
    table = Table().up()
    table.do(StopAsked())
    assert stops(table.after(15), hard=True) == ["router"]
    assert stops(table.crash("router", -9)) == ["worker-0", "worker-1"]
    table.crash("worker-0", 0)
    assert stops(table.after(10), hard=True) == ["worker-1"]


def test_a_second_wish_to_stop_kills_all_at_once() -> None:
    table = Table().up()
    table.do(StopAsked())
    assert stops(table.do(StopAsked()), hard=True) == list(NAMES)


def test_stopping_while_a_worker_waits_for_its_restart_starts_nothing() -> None:
    table = Table().up()
    table.crash("worker-0")
    table.do(StopAsked())
    assert table.core.phase("worker-0") is Phase.GONE
    assert starts(table.after(60)) == []


def test_stopping_in_the_middle_of_the_start() -> None:
    table = Table()
    table.do(Tick())
    assert stops(table.do(StopAsked())) == ["router"]
    assert table.do(Answered(name="router")) == [], "a late answer revives nobody"
    assert stops(table.crash("router", -15)) == ["worker-0", "worker-1"]


def test_exit_statuses_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-int(signal.SIGKILL)) == "killed by SIGKILL"
    assert describe_exit(-250) == "killed by signal 250"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["tick", "answer", "whole", "exit", "stop"]), st.integers(0, 2))), st.data())
def test_whatever_happens_a_stopped_fleet_ends(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    """Any mix of answers, deaths and waits: `check` holds, waits are bounded, and after a stop all are gone."""
    table = Table()
    alive: set[str] = set()

    def note(effects: list[Effect]) -> None:
        alive.update(starts(effects))

    note(table.do(Tick()))
    for what, which in steps:
        name = list(NAMES)[which]
        match what:
            case "tick":
                note(table.after(data.draw(st.floats(0, 100))))
            case "answer" if name in alive:
                note(table.do(Answered(name=name)))
            case "whole":
                note(table.do(Complete()))
            case "exit" if name in alive:
                alive.discard(name)
                note(table.crash(name, data.draw(st.sampled_from([-9, 0, 1, 2]))))
            case "stop":
                note(table.do(StopAsked()))
            case _:
                pass
        assert table.core.finished or table.core.wake_at() is not None or set(NAMES) == alive
    table.do(StopAsked())
    for _ in range(2 * len(NAMES)):
        table.after(20)  # every drain is over: killed
        for name in sorted(alive):
            if table.core.phase(name) is Phase.STOPPING:
                alive.discard(name)
                table.crash(name, -9)
    assert table.core.finished
    assert not alive
