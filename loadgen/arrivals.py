"""When calls arrive: a profile of the rate over time, and how regular arrivals are around it.

Keeps true: the same arrivals and seed give the same times; times never go back; in the long run the rate is kept. An
arrival is a session's: all its free calls are due together. Rates are calls per second unless told otherwise, so
sessions of many calls begin more rarely. Pure: `schedule` writes due times into a workload, the flow keeps them. Does
not know clocks.

`parse` reads what a command line says: constant:4 poisson:4 gamma:4:0.25 ramp:1:20:60 steps:1x30,2x30,4x30 trace
trace:2 closed:16. Ramps and steps are Poisson around their profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from trieway.loadgen.errors import ArrivalError
from trieway.loadgen.vocabulary import Call, Workload

USERS_MAX = 1_000_000
Per = Literal["call", "session"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """The rate goes straight from `first` to `last` (per second) within `seconds`."""

    first: float
    last: float
    seconds: float

    @property
    def arrivals(self) -> float:
        """How many are expected."""
        return (self.first + self.last) / 2 * self.seconds

    def moment(self, arrivals: float) -> float:
        """After how many seconds so many (at most all) are expected."""
        slope = (self.last - self.first) / self.seconds
        # The root of first * t + slope * t^2 / 2 = arrivals, in the form that is stable for slopes near 0.
        inner = max(self.first * self.first + 2 * slope * arrivals, 0.0)
        return min(2 * arrivals / (self.first + math.sqrt(inner)), self.seconds) if arrivals else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLoop:
    """Arrivals that wait for nobody. After the last stretch its last rate holds on.

    `burstiness` is the shape of the gamma distributed gaps: 1 is Poisson, below is burstier (a quarter: gaps vary twice
    as much), None is perfectly even.
    """

    stretches: tuple[Stretch, ...]
    burstiness: float | None = 1.0

    def __post_init__(self) -> None:
        if not self.stretches:
            raise ArrivalError("a rate profile needs a stretch")
        for one in self.stretches:
            if not all(math.isfinite(x) and x >= 0 for x in (one.first, one.last)) or not 0 < one.seconds < math.inf:
                raise ArrivalError(
                    f"rates are at least 0 and times above 0: {one.first} to {one.last} in {one.seconds} s"
                )
        if self.stretches[-1].last <= 0:
            raise ArrivalError("the last rate has to be above 0, or the rest would never arrive")
        if self.burstiness is not None and not 0.01 <= self.burstiness <= 1000:
            raise ArrivalError(f"burstiness is 0.01 to 1000, not {self.burstiness}")

    @property
    def seconds(self) -> float:
        """How long the profile is."""
        return sum(one.seconds for one in self.stretches)

    @property
    def arrivals(self) -> float:
        """How many are expected within the profile."""
        return sum(one.arrivals for one in self.stretches)

    def times(self, rng: Random) -> Iterator[float]:
        """Endless, never falling, from 0 on."""
        marks = self._marks(rng)
        mark, elapsed, passed = next(marks), 0.0, 0.0
        for one in self.stretches:
            while mark < passed + one.arrivals:
                yield elapsed + one.moment(mark - passed)
                mark = next(marks)
            passed += one.arrivals
            elapsed += one.seconds
        while True:
            yield elapsed + (mark - passed) / self.stretches[-1].last
            mark = next(marks)

    def _marks(self, rng: Random) -> Iterator[float]:
        """The process at a rate of 1; the profile stretches it. An even one begins at 0."""
        mark = 0.0
        if self.burstiness is None:
            for number in range(1 << 62):
                yield float(number)
        while True:
            shape = self.burstiness
            assert shape is not None, "the even process is endless"
            mark += rng.expovariate(1.0) if shape == 1.0 else rng.gammavariate(shape, 1.0 / shape)
            yield mark


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedLoop:
    """So many users, each at one session after the other: as fast as answers come. Due times are taken out."""

    users: int

    def __post_init__(self) -> None:
        if not 1 <= self.users <= USERS_MAX:
            raise ArrivalError(f"users are 1 to {USERS_MAX}, not {self.users}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceTimes:
    """The due and think times that the calls bring along, `speed` times as fast."""

    speed: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise ArrivalError(f"the speed has to be above 0, not {self.speed}")


Arrivals = OpenLoop | ClosedLoop | TraceTimes


def constant(rate: float) -> OpenLoop:
    """Evenly spaced."""
    return OpenLoop(stretches=(_flat(rate, 1.0),), burstiness=None)


def poisson(rate: float) -> OpenLoop:
    """Independent of each other."""
    return OpenLoop(stretches=(_flat(rate, 1.0),))


def gamma(rate: float, burstiness: float) -> OpenLoop:
    """Burstier than Poisson below 1, more even above."""
    return OpenLoop(stretches=(_flat(rate, 1.0),), burstiness=burstiness)


def ramp(first: float, last: float, seconds: float) -> OpenLoop:
    """From one rate to the other, which then holds on."""
    return OpenLoop(stretches=(Stretch(first=first, last=last, seconds=seconds),))


def steps(levels: Sequence[tuple[float, float]]) -> OpenLoop:
    """(rate, seconds) one after the other."""
    return OpenLoop(stretches=tuple(_flat(rate, seconds) for rate, seconds in levels))


def _flat(rate: float, seconds: float) -> Stretch:
    if not (math.isfinite(rate) and rate > 0):
        raise ArrivalError(f"the rate has to be above 0, not {rate}")
    return Stretch(first=rate, last=rate, seconds=seconds)


def schedule(
    workload: Workload, arrivals: Arrivals, *, seed: int, per: Per = "call", until_s: float | None = None
) -> Workload:
    """The workload with due times for its free calls; of sessions that begin after `until_s` nothing is left.

    Open loop: sessions arrive in the order of their first calls. `per`: whether rates count calls or sessions.
    ArrivalError: trace times for a workload that has none.
    """
    match arrivals:
        case TraceTimes(speed=speed):
            if all(call.due_s is None for call in workload.calls):
                raise ArrivalError(
                    f"{workload.name} has no times of its own: give a rate (poisson:4) or users (closed:8)"
                )
            calls = [_faster(call, speed) for call in workload.calls]
        case ClosedLoop():
            calls = [replace(call, due_s=None) for call in workload.calls]
        case OpenLoop():
            begins = _begin(workload, arrivals, Random(seed), per)
            calls = [replace(call, due_s=None if call.after else begins[call.session]) for call in workload.calls]
    if until_s is not None:
        late = {call.session for call in calls if call.due_s is not None and not call.after and call.due_s >= until_s}
        calls = [call for call in calls if call.session not in late]
        hints = tuple(hint for hint in workload.hint_prefixes if hint.session not in late)
        workload = replace(workload, hint_prefixes=hints)
    return replace(workload, calls=tuple(calls))


def users_of(arrivals: Arrivals) -> int | None:
    """What the flow has to be told: the users of a closed loop, else None."""
    return arrivals.users if isinstance(arrivals, ClosedLoop) else None


def _begin(workload: Workload, arrivals: OpenLoop, rng: Random, per: Per) -> dict[str, float]:
    sessions = list(dict.fromkeys(call.session for call in workload.calls))
    if not sessions:
        return {}
    factor = len(sessions) / len(workload.calls) if per == "call" else 1.0
    slower = [replace(s, first=s.first * factor, last=s.last * factor) for s in arrivals.stretches]
    return dict(zip(sessions, replace(arrivals, stretches=tuple(slower)).times(rng), strict=False))


def _faster(call: Call, speed: float) -> Call:
    return replace(call, due_s=None if call.due_s is None else call.due_s / speed, think_s=call.think_s / speed)


def parse(text: str) -> Arrivals:
    """What a command line says (see above). ArrivalError: not one of these, or unusable numbers."""
    name, _, rest = text.partition(":")
    fields = rest.split(":") if rest else []
    try:
        match name, fields:
            case "constant", [rate]:
                return constant(float(rate))
            case "poisson", [rate]:
                return poisson(float(rate))
            case "gamma", [rate, burstiness]:
                return gamma(float(rate), float(burstiness))
            case "ramp", [first, last, seconds]:
                return ramp(float(first), float(last), float(seconds))
            case "steps", [levels]:
                pairs = [level.split("x") for level in levels.split(",")]
                return steps([(float(rate), float(seconds)) for rate, seconds in pairs])
            case "closed", [users]:
                return ClosedLoop(users=int(users))
            case "trace", []:
                return TraceTimes()
            case "trace", [speed]:
                return TraceTimes(speed=float(speed))
    except ValueError:
        raise ArrivalError(f"{text!r} has a number that is none") from None
    forms = "constant:4, poisson:4, gamma:4:0.25, ramp:1:20:60, steps:1x30,2x30, trace, trace:2 or closed:16"
    raise ArrivalError(f"{text!r} is no arrival process: say {forms}")
