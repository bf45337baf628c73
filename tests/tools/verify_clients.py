"""`make verify-clients`: our figures against those of aiperf, an independent client, on the same server.

Both ask the same prompts in the same order with the same number of users, each after a flush, in rounds that begin with
the one and the other in turn: a router learns, so whoever comes second meets another one. Requests, tokens and the
cached share must agree within 5 %; latencies are printed beside. The servers: a mock, a worker, and that worker and two
behind a router (`--on`), or `--url`. Exit code 2: no aiperf here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from trieway.loadgen.arrivals import parse
from trieway.loadgen.client.loop import run_loop
from trieway.loadgen.client.target import Access, Target
from trieway.loadgen.client.url import Url, parse_url
from trieway.loadgen.prompts import text_of
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.reports.study import Setting
from trieway.loadgen.runs.fleets import fleet_of
from trieway.loadgen.runs.once import Stop, run_once
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.vocabulary import Call, Message, Text, Workload
from trieway.loadgen.workloads import make
from trieway.worker.models.catalog import resolve

STAGES = ("mock", "worker", "router-1", "router-2")
OUTPUT_TOKENS = 8
WITHIN = 0.05
TIMEOUT_S = 900


def questions(count: int, seed: int) -> list[str]:
    """Few-shot prompts that share a good part, as one message each."""
    made = make("few-shot-5", seed, scale=0.3)
    texts = [" ".join(text_of(m.parts, {}) for m in call.messages) or text_of(call.prompt, {}) for call in made.calls]
    return (texts * (count // len(texts) + 1))[:count]


async def ours(url: Url, prompts: list[str], users: int) -> Report:
    """One run."""
    calls = tuple(
        Call(
            id=f"q{number}",
            session=f"s{number}",
            messages=(Message("user", (Text(prompt),)),),
            output_tokens=OUTPUT_TOKENS,
            max_tokens=OUTPUT_TOKENS,
        )
        for number, prompt in enumerate(prompts)
    )
    text = f"closed:{users}"
    plan = Plan(
        access=Access(url=url),
        workload=Workload(name="verify", seed=0, calls=calls),
        arrivals=parse(text),
        arrivals_text=text,
        seed=0,
        flush=True,
        bound=False,
    )
    return (await run_once(plan, Stop())).report


async def flush(url: Url) -> str:
    """Every worker's cache; the model that is served."""
    async with Target(Access(url=url)) as target:
        await target.flush(await target.backends())
        return await target.model(None)


def theirs(aiperf: str, url: Url, model: str, prompts: list[str], users: int, folder: Path) -> Mapping[str, float]:
    """aiperf's figures, by our names."""
    source = folder / "prompts.jsonl"
    source.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts))
    command = [
        *(aiperf, "profile", "--model", model, "--url", str(url), "--endpoint-type", "chat", "--streaming"),
        *("--input-file", str(source), "--custom-dataset-type", "single_turn"),
        *("--dataset-sampling-strategy", "sequential", "--request-count", str(len(prompts))),
        *("--concurrency", str(users), "--use-server-token-count", "--use-legacy-max-tokens"),
        *("--extra-inputs", json.dumps({"max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True})),
        *("--tokenizer", str(resolve("smollm2-135m")), "--artifact-dir", str(folder / "out"), "--ui-type", "none"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder)
    found = folder / "out" / "profile_export_aiperf.json"
    if not found.exists():
        sys.exit(f"aiperf failed:\n{(done.stdout + done.stderr)[-2000:]}")
    told = json.loads(found.read_text())
    prompt = told["total_usage_prompt_tokens"]["avg"]
    cached = told.get("total_usage_prompt_cache_read_tokens", {}).get("avg", 0.0)
    return {
        "requests": told["request_count"]["avg"],
        "prompt tokens": prompt,
        "output tokens": told["total_usage_completion_tokens"]["avg"],
        "cached share": cached / prompt,
        "requests/s": told["request_throughput"]["avg"],
        "TTFT p50 ms": told["time_to_first_token"]["p50"],
        "time per output token p50 ms": told["inter_token_latency"]["p50"],
        "latency p50 ms": told["request_latency"]["p50"],
    }


def figures(report: Report) -> Mapping[str, float]:
    """Ours, by the same names."""
    cache, latency = report.cache, report.latency
    return {
        "requests": report.requests.ok,
        "prompt tokens": cache.input_tokens,
        "output tokens": sum(share.output_tokens for share in report.balance.workers)
        or round((report.rates.output_tokens_per_s or 0.0) * report.rates.window_s),
        "cached share": cache.hit_rate or 0.0,
        "requests/s": report.rates.achieved_per_s or 0.0,
        "TTFT p50 ms": latency.ttft_ms.p50 or 0.0,
        "time per output token p50 ms": latency.tpot_ms.p50 or 0.0,
        "latency p50 ms": latency.e2e_ms.p50 or 0.0,
    }


JUDGED = ("requests", "prompt tokens", "output tokens", "cached share")


@dataclass(frozen=True)
class Asked:
    """How to compare."""

    aiperf: str
    requests: int
    users: int
    rounds: int


Rows = Sequence[Mapping[str, float]]


async def both(url: Url, asked: Asked) -> tuple[Rows, Rows]:
    """The figures of all rounds, ours and theirs."""
    prompts = questions(asked.requests, seed=1)
    found: tuple[list[Mapping[str, float]], list[Mapping[str, float]]] = ([], [])
    for number in range(asked.rounds):
        for turn in range(2):
            if (number + turn) % 2 == 0:
                found[0].append(figures(await ours(url, prompts, asked.users)))
                continue
            model = await flush(url)
            with tempfile.TemporaryDirectory() as folder:
                told = await asyncio.to_thread(theirs, asked.aiperf, url, model, prompts, asked.users, Path(folder))
                found[1].append(told)
    return found


def compare(mine: Rows, other: Rows) -> bool:
    """Print both; whether what is judged agrees."""
    agree = True
    print(f"{'':<30}{'trieway':>22}{'aiperf':>22}{'difference':>12}")
    for name in mine[0]:
        first, second = ([row[name] for row in rows] for rows in (mine, other))
        a, b = sum(first) / len(first), sum(second) / len(second)
        difference = abs(a - b) / b if b else float(a != b)
        judged = name in JUDGED
        agree &= not judged or difference <= WITHIN
        mark = ("  ok" if difference <= WITHIN else "  TOO FAR") if judged else ""
        print(f"{name:<30}{_told(first):>22}{_told(second):>22}{difference:>11.1%}{mark}", flush=True)
    return agree


def _told(values: Sequence[float]) -> str:
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:.4g}" if high - low <= 1e-4 * high else f"{mean:.4g} ({low:.4g}-{high:.4g})"


@asynccontextmanager
async def served(stage: str) -> AsyncIterator[str]:
    """The URL of a server to ask."""
    if stage == "mock":
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.tools.mock_openai", stdin=-1, stdout=-1
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield (await process.stdout.readline()).decode().split()[-1]
        finally:
            process.stdin.close()
            await process.wait()
        return
    async with fleet_of(Setting(workers=2 if stage == "router-2" else 1), ("--model", "smollm2-135m")) as url:
        if stage != "worker":
            yield url
            return
        async with Target(Access(url=parse_url(url))) as target:
            (backend,) = await target.backends()
        yield str(backend.url)


async def whole(stages: Sequence[str], asked: Asked) -> bool:
    """Every server; whether all agree."""
    agree = True
    for stage in stages:
        if stage in STAGES:
            async with served(stage) as url:
                found = await both(parse_url(url), asked)
        else:
            found = await both(parse_url(stage), asked)
        print(f"\n{stage}: {asked.requests} requests, {asked.users} users, {asked.rounds} rounds")
        agree &= compare(*found)
    return agree


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aiperf", required=True, help="its executable")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--on", default=",".join(STAGES), help=f"servers to start (default: {','.join(STAGES)})")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    if not Path(asked.aiperf).exists():
        print("verify-clients: aiperf is not installed here; nothing was compared")
        return 2
    stages = [asked.url] if asked.url else asked.on.split(",")
    how = Asked(
        aiperf=str(Path(asked.aiperf).resolve()), requests=asked.requests, users=asked.users, rounds=asked.rounds
    )
    return 0 if run_loop(whole(stages, how)) else 1


if __name__ == "__main__":
    sys.exit(main())
