"""The paper's machine, and the ways in which its runtime is set or cut down.

One A10G with Llama-7B in 16 bits (section 6.1, appendix C), pages of one token. `full` is everything on, with waiting
requests ordered by their hits alone, however long one waits: the paper's schedule, which it says can starve. `shipped`
has the defaults of a worker. Keeps true: a variant changes what its line says and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

from trieway.loadgen.reproductions.benchmarks import one_by_one, unhinted
from trieway.loadgen.sim.ablations import AblatedWorker
from trieway.loadgen.sim.cost import GPUS, Model, Roofline
from trieway.loadgen.vocabulary import Workload

LLAMA_7B = Model(parameters=6.74e9, layers=32, heads=32, kv_heads=32, head_dim=128)
"""Llama-2-7B: every head has its own keys, half a megabyte for a token."""
MACHINE = Roofline(gpu=GPUS["a10g"], model=LLAMA_7B)
CONTEXT_MAX = 8192
"""Twice the model's: generated chats are now and then a little longer than the paper's."""
BATCH_TOKENS = 2048
WAITING_MAX = 1 << 16
FOLLOW_UP_S = 0.005
"""The published runtime sleeps for 30 ms when a request ends, so that the next one of its program comes first."""


def _as_it_is(workload: Workload) -> Workload:
    return workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """What is changed of `full`."""

    name: str
    about: str
    worker: AblatedWorker
    workload: Callable[[Workload], Workload] = _as_it_is


SHIPPED = AblatedWorker(
    kv_tokens=MACHINE.kv_tokens,
    page_size=1,
    batch_tokens_max=BATCH_TOKENS,
    context_max=CONTEXT_MAX,
    waiting_max=WAITING_MAX,
    cost=MACHINE,
)
FULL = replace(SHIPPED, wait_max_s=inf, lpm_waiting_max=WAITING_MAX, follow_up_s=FOLLOW_UP_S, keep_warm=True)
TABLE = replace(FULL, index="table", await_siblings=False)
LATE = replace(FULL, store_late=True, await_siblings=False)

VARIANTS: Mapping[str, Variant] = {
    one.name: one
    for one in (
        Variant(name="full", about="everything on", worker=FULL),
        Variant(
            name="shipped", about="a worker's defaults: 10 s of waiting at most, no wait for turns", worker=SHIPPED
        ),
        Variant(name="no-cache", about="nothing is kept", worker=replace(FULL, prefix_cache=False)),
        Variant(
            name="table",
            about="whole entries of a table, no parts",
            worker=replace(FULL, index="table", await_siblings=False),
        ),
        Variant(name="fcfs", about="first come, first served", worker=replace(FULL, policy="fcfs", keep_warm=False)),
        Variant(name="random", about="in random order", worker=replace(FULL, policy="random", keep_warm=False)),
        Variant(name="no-parallelism", about="a program's calls one by one", worker=FULL, workload=one_by_one),
        Variant(name="no-hints", about="prefixes are not sent first", worker=FULL, workload=unhinted),
        Variant(name="late", about="stored when a request ends, as published", worker=LATE),
        Variant(name="late-no-hints", about="that, without hints", worker=LATE, workload=unhinted),
    )
}
