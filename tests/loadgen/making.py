"""Records and reports made up for tests."""

from __future__ import annotations

from random import Random

from trieway.loadgen.records import Record
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.summary import Client, Context, summarise


def record(number: int = 0, **changes: object) -> Record:
    """Due at `number` seconds, 10 ms late, first token 100 ms after due, 5 tokens 20 ms apart."""
    due = float(number)
    values: dict[str, object] = {
        "call": f"c{number}",
        "session": f"s{number}",
        "worker": f"w{number % 2}",
        "due_s": due,
        "sent_s": due + 0.01,
        "first_s": due + 0.1,
        "last_s": due + 0.18,
        "prompt_tokens": 100,
        "cached_tokens": 50,
        "predicted_tokens": 60,
        "output_tokens": 5,
        "gaps": ((0.02, 4),),
    }
    made = Record(**(values | changes))  # type: ignore[arg-type]
    made.check()
    return made


def context(**changes: object) -> Context:
    values: dict[str, object] = {
        "kind": "load",
        "version": "0",
        "workload": "made up",
        "seed": 1,
        "client": Client(processes=1),
    }
    return Context(**(values | changes))  # type: ignore[arg-type]


def noisy(count: int, *, seed: int, mean_s: float = 0.1, cached: int = 50) -> list[Record]:
    """Requests with exponential times to first token around `mean_s`."""
    rng = Random(seed)
    made = []
    for number in range(count):
        due = number * 0.1
        first = due + 0.001 + rng.expovariate(1 / mean_s)
        made.append(
            record(
                number, due_s=due, sent_s=due + 0.001, first_s=first, last_s=first + 0.08, gaps=((0.02, 4),),
                cached_tokens=cached,
            )
        )  # fmt: skip
    return made


def report(count: int = 400, *, seed: int = 1, mean_s: float = 0.1, **changes: object) -> Report:
    return summarise(noisy(count, seed=seed, mean_s=mean_s), context(**changes))
