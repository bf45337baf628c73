"""`make bench`: CPU microseconds of what every request or step pays for. Best of several; nothing is judged here."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

from trieway.kernels import block_hash
from trieway.loadgen.sim.texts import tokenizer
from trieway.meta_tree.chain import FleetKey
from trieway.meta_tree.events import Stored
from trieway.meta_tree.frames import Delta, Heartbeat, Hello, SnapshotBegin, SnapshotEnd, WorkerLoad
from trieway.meta_tree.ids import GroupId, Namespace, Reject, Tier, WorkerId
from trieway.meta_tree.publisher import Publisher
from trieway.router.core import Choice, CoreConfig, Query, RouterCore
from trieway.serving.chat_template import ChatTemplate, render_prompt
from trieway.serving.peek import peek
from trieway.worker.core.scheduler import Scheduler
from trieway.worker.core.sequence import Request, SchedulerConfig

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT_TEMPLATE = ChatTemplate(TEMPLATE, "", "")
KEY = FleetKey.from_secret(b"bench")
CHAIN = KEY.chain(Namespace())
GROUP = GroupId("g")
Frames = Hello | SnapshotBegin | SnapshotEnd | Delta | Heartbeat


def best_us(call: Callable[[], object], rounds: int = 7, least_s: float = 0.05) -> float:
    """Best CPU microseconds of one call."""
    best = float("inf")
    for _ in range(rounds):
        calls, began = 0, time.process_time()
        while time.process_time() - began < least_s:
            call()
            calls += 1
        best = min(best, (time.process_time() - began) / calls)
    return best * 1e6


def line(name: str, *values: float) -> None:
    print(f"{name:<58}" + "".join(f"{value:>12.1f}" for value in values))


def chat_body(size: int) -> bytes:
    text = "".join(random.Random(size).choice("abcdefgh ,.\n") for _ in range(size))
    messages = [{"role": "system", "content": text[: size // 2]}, {"role": "user", "content": text[size // 2 :]}]
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


def router_holding(prompt: bytes, workers: int) -> RouterCore:
    core = RouterCore(CoreConfig(seed_id=KEY.seed_id), random.Random(1))
    hashes = CHAIN.hashes(prompt)
    load = WorkerLoad(
        running=1, waiting=0, waiting_tokens=0, running_tokens=100, prefill_tokens_per_s=2000.0, decode_step_ms=20.0,
        kv_free_tokens=1000, kv_cached_tokens=1000, kv_total_tokens=10_000,
    )  # fmt: skip
    for index in range(workers):
        worker = WorkerId(f"w{index}")
        core.add_worker(worker, f"http://w{index}", 0.0, model="m", group=GROUP)
        publisher = Publisher(epoch=1, seed_id=KEY.seed_id, group=GROUP, ring_events_max=16)
        held = hashes[: len(hashes) * (index + 1) // workers]
        if held:
            usable = tuple(16 * (block + 1) for block in range(len(held)))
            event = Stored(
                namespace_id=CHAIN.root, parent=CHAIN.root, hashes=tuple(held), usable=usable, tier=Tier.DEVICE
            )
            publisher.publish([event])
        for frame in (*publisher.subscribe(None, None), publisher.heartbeat(load)):
            core.feed_frame(worker, frame, 0.1)
    return core


def decider(body: bytes, workers: int) -> Callable[[], Choice]:
    """The router's whole decision about a chat body, `workers` workers holding parts of its prompt."""
    core = router_holding(rendered(body), workers)

    def decide() -> Choice:
        text = rendered(body)
        query = Query(model="m", group=GROUP, hashes=CHAIN.hashes(text), prompt_bytes=len(text))
        choice = core.choose(query, 0.2)
        assert not isinstance(choice, Reject)
        return choice

    return decide


def rendered(body: bytes) -> bytes:
    return render_prompt(peek(body, "chat"), CHAT_TEMPLATE, 0.0).encode()


def decision() -> None:
    how = "native hash" if block_hash.NATIVE is not None else "hash twin"
    print(f"\nrouter decision with the {how}, CPU us at{'200 B':>26}{'16 KB':>12}{'128 KB':>12}")
    rows: dict[str, list[float]] = {}
    for size in (200, 16_384, 131_072):
        body = chat_body(size)
        prompt = rendered(body)
        for workers in (2, 8):
            decide = decider(body, workers)
            rows.setdefault(f"peek + render + hash + choose, {workers} workers", []).append(best_us(decide))
        rows.setdefault("  of it peek", []).append(best_us(lambda body=body: peek(body, "chat")))  # type: ignore[misc]
        rows.setdefault("  of it hash", []).append(best_us(lambda prompt=prompt: CHAIN.hashes(prompt)))  # type: ignore[misc]
        query = Query(model="m", group=GROUP, hashes=CHAIN.hashes(prompt), prompt_bytes=len(prompt))
        core = router_holding(prompt, 8)
        rows.setdefault("  of it choose, 8 workers", []).append(best_us(lambda q=query, c=core: c.choose(q, 0.2)))  # type: ignore[misc]
    for name, values in rows.items():
        line(name, *values)


def hashing() -> None:
    data = random.Random(0).randbytes(131_072)
    print("\nblock hashes of 128 KB, CPU us")
    if block_hash.NATIVE is not None:
        native = block_hash.NATIVE
        line("native", best_us(lambda: native(data, 1, 2)))
    line("twin", best_us(lambda: block_hash.hash_chain_twin(data, 1, 2)))


def scheduler_step(running: int) -> float:
    """CPU us of one plan + commit while `running` requests decode."""
    config = SchedulerConfig(kv_tokens=100_000, context_max=4096, running_max=64)
    scheduler = Scheduler(config, tokenizer().table, random.Random(0))
    rng = random.Random(1)
    for index in range(running):
        tokens = [rng.randrange(256) for _ in range(200)]
        request = Request(id=str(index), chain=CHAIN, tokens=tokens, canonical=200, max_new_tokens=3000)
        assert scheduler.add(request, 0.0) is None

    def step() -> None:
        plan = scheduler.plan(1.0)
        scheduler.commit(plan, {work.id: 65 for work in plan.work if work.samples}, 1.0)
        scheduler.drain_events()

    for _ in range(running):
        step()
    return best_us(step, rounds=5, least_s=0.02)


def main() -> None:
    hashing()
    decision()
    print("\nworker scheduler, plan + commit of one decode step, CPU us")
    for running in (1, 16, 64):
        line(f"{running} running", scheduler_step(running))


if __name__ == "__main__":
    main()
