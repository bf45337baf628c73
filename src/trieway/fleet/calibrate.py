"""`trieway calibrate URL`: what a worker's time goes into, measured from outside, alone and with its neighbours busy.

It drives the server with small mixes of work (mixes.py) and explains how long they took by how much of each kind of
work they were (fitting.py). Behind a router with several workers it does so twice: on one worker alone, asked directly,
and on all at once through the router. The second is how they work in earnest: with the router, the client and each
other on the same machine. It keeps true that nothing is fitted to but these mixes. It assumes that nobody else uses the
fleet meanwhile, and that all its workers are alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from trieway.fleet.client import read_key
from trieway.fleet.console import Console
from trieway.fleet.errors import CommandError
from trieway.fleet.fitting import Costs, fit
from trieway.fleet.mixes import MIXES, Bench, Mix, Pair, Work, work_of
from trieway.fleet.options import Access
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.target import Access as TargetAccess
from trieway.loadgen.client.target import Target
from trieway.loadgen.client.url import parse_url
from trieway.loadgen.records import Record
from trieway.loadgen.sim.cost import CALIBRATION_VERSION
from trieway.loadgen.vocabulary import Form

POINTS_MIN = 7
"""As many as there are costs."""
LONE_TOKENS = (16, 64)
Play = Callable[[Mix], Awaitable[list[Work] | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Costs, and the points they were fitted to."""

    costs: Costs
    points: tuple[Work, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values; a point says what it was and how well it is explained."""
        costs = {name: round(value, 4) for name, value in asdict(self.costs).items()}
        return {**costs, "points": [self._point(point) for point in self.points]}

    def _point(self, point: Work) -> dict[str, Any]:
        plain = asdict(point)
        return {
            **plain.pop("mix"),
            **plain,
            "seconds": round(point.seconds, 4),
            "fitted_seconds": round(self.costs.seconds(point), 4),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The whole report. `latency_ms`: what a lone request takes through the server beyond the engine's own work, which
    it is delayed by while the engine is free. `together`: None for a single worker."""

    model: str
    workers: int
    repeats: int
    latency_ms: float
    alone: Measured
    together: Measured | None

    def as_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {
            "version": CALIBRATION_VERSION,
            "model": self.model,
            "workers": self.workers,
            "repeats": self.repeats,
            "latency_ms": round(self.latency_ms, 3),
            "alone": self.alone.as_json(),
            "together": None if self.together is None else self.together.as_json(),
        }


async def calibrate(access: Access, model: str | None, repeats: int, console: Console) -> Calibration:
    """Measure the server at `access`. Raises CommandError, LoadError."""
    key = read_key(access.key_file).get("authorization", "").removeprefix("Bearer ") or None
    url = parse_url(access.url)
    async with Target(TargetAccess(url=url, key=key, admin_key=key)) as target:
        dialect = Dialect(url=url, model=await target.model(model), key=key)
        await target.probe(dialect, stream=True, usage_needed=True)
        bench = Bench(target, dialect, await target.backends(), await _forms(target, dialect.model))
        await bench.one_alone(MIXES[0])  # one-off costs of a fresh process
        lone: list[Pair] = []

        async def one_alone(mix: Mix) -> list[Work] | None:
            for tokens in LONE_TOKENS:  # in between, so that both see the same machine
                lone.extend(await bench.lone_pair(tokens))
            return await bench.one_alone(mix)

        alone = await _measured(one_alone, "one worker alone", repeats, console)
        together = None
        if len(bench.backends) > 1:
            together = await _measured(bench.all_together, "all workers", repeats, console)
        latency_ms = latency_ms_of(lone, alone.costs)
    console.clear()
    return Calibration(
        model=dialect.model,
        workers=len(bench.backends),
        repeats=repeats,
        latency_ms=latency_ms,
        alone=alone,
        together=together,
    )


async def _forms(target: Target, model: str) -> list[Form]:
    """Chats cost a little more than completions; models without a template have none."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    status, _ = await target.post("/v1/chat/completions", body)
    return ["completion", "chat"] if status == 200 else ["completion"]


async def _measured(play: Play, whose: str, repeats: int, console: Console) -> Measured:
    points: list[Work] = []
    refused: set[Mix] = set()
    for turn in range(repeats):
        for number, mix in enumerate(MIXES, 1):
            if mix in refused:
                continue
            console.step(f"{whose}, round {turn + 1} of {repeats}, mix {number} of {len(MIXES)}: {_words(mix)}")
            found = await play(mix)
            if found is None:
                refused.add(mix)
            else:
                points += found
    if len(points) < POINTS_MIN:
        raise CommandError(f"only {len(points)} mixes of work could be measured; the server's context is too short")
    return Measured(costs=fit(points), points=tuple(points))


def _words(mix: Mix) -> str:
    shared = f" after {mix.shared:,} shared ones" if mix.shared else ""
    return f"{mix.users} at a time, {mix.prompt} new tokens{shared}, {mix.output} of answer"


def latency_ms_of(lone: Sequence[Pair], costs: Costs) -> float:
    """What lone prompts take beyond the costs: the way through the router, as the difference to those asked directly;
    and what these took that is not explained."""
    times = [(routed.ttft_s or 0.0, direct.ttft_s or 0.0, _explained_s(direct, costs)) for routed, direct in lone]
    if not times:
        return 0.0
    way_s = median(routed_s - direct_s for routed_s, direct_s, _ in times)
    rest_s = median(direct_s - explained_s for _, direct_s, explained_s in times)
    return (max(way_s, 0.0) + max(rest_s, 0.0)) * 1e3


def _explained_s(record: Record, costs: Costs) -> float:
    return costs.seconds(work_of(Mix(users=1, prompt=record.prompt_tokens or 1), [record], 1))
