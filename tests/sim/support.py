"""What the simulator's tests share: small workloads and fleets."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trieway.loadgen.sim.config import FleetSetup, NetworkSetup, WorkerSetup
from trieway.loadgen.sim.cost import CALIBRATION_VERSION, Rates
from trieway.loadgen.vocabulary import AnswerOf, Call, Filler, Message, Workload

RATES = Rates(prefill_tokens_per_s=8000.0, prefill_step_s=0.005, decode_step_s=0.01, per_decode_s=0.0005)


def calibration(*, workers: int = 1, slower: float = 1.0) -> dict[str, object]:
    """What `trieway calibrate` prints, but for its points. `slower`: by what factor neighbours slow each other."""
    costs = {
        "step_ms": 12.0, "request_us": 2000.0, "prefill_token_us": 600.0, "prefill_pair_ns": 400.0,
        "prefill_context_us": 8.0, "decode_us": 900.0, "decode_context_us": 3.0,
    }  # fmt: skip
    beside = {name: cost * slower for name, cost in costs.items()}
    return {
        "version": CALIBRATION_VERSION, "model": "m", "workers": workers, "repeats": 1, "latency_ms": 5.0,
        "alone": costs, "together": beside if workers > 1 else None,
    }  # fmt: skip


def chats(
    sessions: int, turns: int = 3, *, seed: int = 0, rate: float = 10.0, system_words: int = 100, output: int = 30
) -> Workload:
    """Chats over one system prompt, with short user turns."""
    rng = random.Random(seed)
    calls: list[Call] = []
    due_s = 0.0
    for number in range(sessions):
        due_s += rng.expovariate(rate)
        messages = [Message("system", (Filler(1, system_words),))]
        for turn in range(turns):
            messages.append(Message("user", (Filler(rng.randrange(10, 2**31), rng.randint(4, 40)),)))
            calls.append(
                Call(
                    id=f"s{number}.{turn}", session=f"s{number}", messages=tuple(messages), output_tokens=output,
                    max_tokens=output, after=(f"s{number}.{turn - 1}",) if turn else (),
                    think_s=rng.expovariate(2.0) if turn else 0.0, due_s=None if turn else due_s,
                )
            )  # fmt: skip
            messages.append(Message("assistant", (AnswerOf(f"s{number}.{turn}"),)))
    return Workload(name="chats", seed=seed, calls=tuple(calls))


def one_call(words: int = 50, output: int = 20, name: str = "c", **changes: object) -> Workload:
    """A single completion."""
    call = Call(
        id=name, session=name, form="completion", prompt=(Filler(1, words),), output_tokens=output, max_tokens=output,
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    return Workload(name="one", seed=0, calls=(call,))


def joined(*workloads: Workload) -> Workload:
    """All their calls in one."""
    calls = tuple(call for workload in workloads for call in workload.calls)
    return Workload(name="joined", seed=0, calls=calls)


def setup(
    workers: int = 2, *, seed: int = 0, delay_s: float = 0.001, jitter_s: float = 0.0, routers: int = 1,
    worker: WorkerSetup | None = None, kinds: Sequence[WorkerSetup] = (),
) -> FleetSetup:  # fmt: skip
    one = worker or WorkerSetup(kv_tokens=8192, page_size=4, batch_tokens_max=256, running_max=32, cost=RATES)
    return FleetSetup(
        seed=seed,
        workers=tuple(kinds) or (one,) * workers,
        routers=routers,
        network=NetworkSetup(delay_s=delay_s, jitter_s=jitter_s),
    )
