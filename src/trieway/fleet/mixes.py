"""Small mixes of work that calibration drives a server with, and what each of them cost.

A mix is a closed loop for a second or two: so many users per worker, each at one request after the other, chats and
plain completions, of lengths that vary so that they do not march in step. It keeps true that every prompt is new to the
cache but for the part that shall be cached, that a worker has work from its first request to its last (so that its wall
time is the sum of its steps), and that counts are what the server said, not what was asked for. It does not know what
the counts are used for.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic

from trieway.fleet.errors import CommandError
from trieway.loadgen.client.dialect import Dialect
from trieway.loadgen.client.driver import Driver, Pace
from trieway.loadgen.client.pool import Pool
from trieway.loadgen.client.scrape import parse_metrics
from trieway.loadgen.client.target import Backend, Target
from trieway.loadgen.client.url import parse_url
from trieway.loadgen.filler import KEY_MAX
from trieway.loadgen.records import Record
from trieway.loadgen.vocabulary import Call, Filler, Form, Message, Part, Text, Workload

MIX_S = 1.25
"""Requests are begun for so long."""
TIMEOUT_S = 120.0
REQUESTS_MAX = 400
"""Of one worker in one mix."""
CONNECTIONS = 1024
STEPS_METRIC = "trieway_worker_step_seconds_count"
SAME_STEP_S = 0.002
"""Where a server does not count its steps: text that arrives so soon after other text is of the same step."""
TOO_LONG = "http_400"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """`users` of each worker; tokens of the `prompt` that are new, after `shared` ones; of the `output`: the mean of
    lengths from half to one and a half times as much."""

    users: int
    prompt: int
    shared: int = 0
    output: int = 1


MIXES = (
    Mix(users=48, prompt=16),
    Mix(users=5, prompt=256),
    Mix(users=12, prompt=64, shared=1000),
    Mix(users=48, prompt=16, shared=2000),
    Mix(users=2, prompt=16, shared=200, output=64),
    Mix(users=6, prompt=16, shared=300, output=64),
    Mix(users=16, prompt=16, output=48),
    Mix(users=4, prompt=32, shared=600, output=64),
    Mix(users=8, prompt=32, shared=1000, output=48),
    Mix(users=4, prompt=128, output=32),
    Mix(users=8, prompt=64, shared=500, output=32),
    Mix(users=4, prompt=480, output=8),
)
"""Each kind of work alone as far as that can be, and together. Users enough that no worker waits for one: where answers
have one token, more than a step takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one worker did within `seconds`. Pairs: of a computed prompt token and one that it attends to; contexts:
    tokens that were there already when a prompt's others, or a decode, were computed."""

    mix: Mix
    seconds: float
    steps: int
    requests: int
    prefill_tokens: int
    prefill_pairs: int
    prefill_context: int
    decodes: int
    decode_context: int


Pair = tuple[Record, Record]
"""Of one prompt through the server, and one of a worker itself."""


class Bench:
    """One server and the workers behind it."""

    def __init__(self, target: Target, dialect: Dialect, backends: Sequence[Backend], forms: Sequence[Form]) -> None:
        """`forms`: what the server can be asked."""
        self.backends = list(backends)
        self._target = target
        self._dialect = dialect
        self._forms = forms
        self._turn = 0

    async def all_together(self, mix: Mix) -> list[Work] | None:
        """The mix on every worker at once, through the server. None: a prompt was too long for it."""
        return await self._play(mix, self.backends, self._dialect)

    async def one_alone(self, mix: Mix) -> list[Work] | None:
        """The mix on the first worker, asked directly; the others rest."""
        first = self.backends[0]
        return await self._play(mix, [first], self._direct(first))

    async def lone_pair(self, tokens: int) -> list[Pair]:
        """A new prompt of this length through the server, then one asked of a worker directly, nothing beside them;
        none if it is too long."""
        self._turn += 1
        form = self._forms[self._turn % len(self._forms)]
        worker = self._direct(self.backends[self._turn // len(self._forms) % len(self.backends)])
        pace = Pace(users_max=1, timeout_s=TIMEOUT_S)
        routed = await self._drive(self._dialect, [_call("c0", form, tokens, None, 1)], pace)
        direct = await self._drive(worker, [_call("c0", form, tokens, None, 1)], pace)
        return [] if _refused(routed + direct) else [(routed[0], direct[0])]

    def _direct(self, backend: Backend) -> Dialect:
        return replace(self._dialect, url=parse_url(backend.url))

    async def _play(self, mix: Mix, workers: Sequence[Backend], dialect: Dialect) -> list[Work] | None:
        head = Filler(secrets.randbelow(KEY_MAX), mix.shared) if mix.shared else None
        if head is not None:
            for worker in workers:
                first = [_call(form, form, 1, head, 1) for form in self._forms]
                if _refused(await self._drive(self._direct(worker), first, Pace(timeout_s=TIMEOUT_S))):
                    return None
        before = [await self._steps(worker) for worker in workers]
        calls = [
            _call(f"c{number}", secrets.choice(self._forms), _about(mix.prompt), head, _about(mix.output))
            for number in range(REQUESTS_MAX * len(workers))
        ]
        pace = Pace(users_max=mix.users * len(workers), stop_s=MIX_S, timeout_s=TIMEOUT_S)
        records = await self._drive(dialect, calls, pace)
        if _refused(records):
            return None
        after = [await self._steps(worker) for worker in workers]
        found = []
        for worker, one, other in zip(workers, before, after, strict=True):
            own = records if len(workers) == 1 else [record for record in records if record.worker == worker.name]
            if 2 * len(own) >= mix.users:  # a worker that the router left out had no work all the time
                found.append(work_of(mix, own, None if one is None or other is None else other - one))
        return found

    async def _steps(self, worker: Backend) -> int | None:
        status, page = await self._target.get("/metrics", url=worker.url)
        value = parse_metrics(page.decode(errors="replace")).get(STEPS_METRIC) if status == 200 else None
        return None if value is None else int(value)

    async def _drive(self, dialect: Dialect, calls: Sequence[Call], pace: Pace) -> list[Record]:
        records: list[Record] = []
        pool = Pool(dialect.url, connections_max=CONNECTIONS)
        workload = Workload(name="calibration", seed=0, calls=tuple(calls))
        driver = Driver(workload, pace, dialect, pool, lambda record, text: records.append(record))
        try:
            await driver.run(monotonic())
        finally:
            await pool.close()
        bad = next((record for record in records if not record.ok and record.status != TOO_LONG), None)
        if bad is not None:
            said = driver.messages.get(bad.status, "")
            raise CommandError(f"{dialect.url} failed on a request ({bad.status}): {said or 'no reason given'}")
        return records


def _about(mean: int) -> int:
    return mean - mean // 2 + secrets.randbelow(2 * (mean // 2) + 1)


def _call(name: str, form: Form, prompt: int, head: Filler | None, output: int) -> Call:
    new = Filler(secrets.randbelow(KEY_MAX), prompt)
    if form == "chat":
        user = Message("user", (new,))
        messages = (user,) if head is None else (Message("system", (head,)), user)
        return Call(id=name, session=name, messages=messages, output_tokens=output, max_tokens=output)
    parts: tuple[Part, ...] = (new,) if head is None else (head, Text("."), new)
    return Call(id=name, session=name, form=form, prompt=parts, output_tokens=output, max_tokens=output)


def _refused(records: Iterable[Record]) -> bool:
    """The model's context is shorter than this mix."""
    return any(record.status == TOO_LONG for record in records)


def work_of(mix: Mix, records: Sequence[Record], steps: int | None) -> Work:
    """What answered requests of one worker come to. `steps`: as the worker counts, else as text arrived."""
    assert records, "nothing was done"
    computed = pairs = before = decodes = context = 0
    for record in records:
        prompt, cached = record.prompt_tokens or 0, record.cached_tokens or 0
        new = prompt - cached
        computed += new
        before += cached
        pairs += new * cached + new * (new + 1) // 2
        more = max(record.output_tokens - 1, 0)
        decodes += more
        context += more * prompt + more * (more + 1) // 2
    return Work(
        mix=mix,
        seconds=max(record.last_s or 0.0 for record in records) - min(record.sent_s or 0.0 for record in records),
        steps=moments(records) if steps is None else steps,
        requests=len(records),
        prefill_tokens=computed,
        prefill_pairs=pairs,
        prefill_context=before,
        decodes=decodes,
        decode_context=context,
    )


def moments(records: Iterable[Record]) -> int:
    """How often text arrived, whoever's it was."""
    times = sorted(moment for record in records for moment in _arrivals(record))
    return bool(times) + sum(after - before > SAME_STEP_S for before, after in pairwise(times))


def _arrivals(record: Record) -> Iterable[float]:
    moment = record.first_s
    if moment is not None:
        yield moment
        for gap, count in record.gaps:
            for _ in range(count):
                moment += gap
                yield moment
