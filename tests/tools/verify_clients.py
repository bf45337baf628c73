"""`make verify-clients`: our figures against those of aiperf, an independent client, on the same server.

Both ask the same prompts in the same order with the same number of users, each after a flush. Requests, tokens and the
cached share must agree within 5 %; latencies are printed beside. Without a URL the server is the mock. Exit code 2: no
aiperf here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trieway.loadgen.arrivals import parse
from trieway.loadgen.client.loop import run_loop
from trieway.loadgen.client.target import Access, Target
from trieway.loadgen.client.url import Url, parse_url
from trieway.loadgen.prompts import text_of
from trieway.loadgen.reports.schema import Report
from trieway.loadgen.runs.once import Stop, run_once
from trieway.loadgen.runs.plan import Plan
from trieway.loadgen.vocabulary import Call, Message, Text, Workload
from trieway.loadgen.workloads import make
from trieway.worker.models.catalog import resolve

OUTPUT_TOKENS = 8
WITHIN = 0.05
TIMEOUT_S = 900


def questions(count: int, seed: int) -> list[str]:
    """Few-shot prompts that share a good part, as one message each."""
    made = make("few-shot-5", seed, scale=0.3)
    texts = [" ".join(text_of(m.parts, {}) for m in call.messages) or text_of(call.prompt, {}) for call in made.calls]
    return (texts * (count // len(texts) + 1))[:count]


def ours(url: Url, prompts: list[str], users: int) -> Report:
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

    async def once() -> Report:
        return (await run_once(plan, Stop())).report

    return run_loop(once())


def flush(url: Url) -> str:
    """Every worker's cache; the model that is served."""

    async def once() -> str:
        async with Target(Access(url=url)) as target:
            await target.flush(await target.backends())
            return await target.model(None)

    return run_loop(once())


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


def compare(mine: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Print both; whether what is judged agrees."""
    agree = True
    print(f"{'':<30}{'trieway':>12}{'aiperf':>12}{'difference':>12}")
    for name, value in mine.items():
        difference = abs(value - other[name]) / other[name] if other[name] else float(value != other[name])
        judged = name in JUDGED
        agree &= not judged or difference <= WITHIN
        mark = ("  ok" if difference <= WITHIN else "  TOO FAR") if judged else ""
        print(f"{name:<30}{value:>12.4g}{other[name]:>12.4g}{difference:>11.1%}{mark}")
    return agree


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aiperf", required=True, help="its executable")
    parser.add_argument("--url", help="a server; default: the mock")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--users", type=int, default=4)
    asked = parser.parse_args()
    if not Path(asked.aiperf).exists():
        print("verify-clients: aiperf is not installed here; nothing was compared")
        return 2
    mock = None
    if asked.url is None:
        mock = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.mock_openai"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert mock.stdout is not None
        asked.url = mock.stdout.readline().split()[-1]
    try:
        url = parse_url(asked.url)
        prompts = questions(asked.requests, seed=1)
        mine = figures(ours(url, prompts, asked.users))
        model = flush(url)
        with tempfile.TemporaryDirectory() as folder:
            other = theirs(asked.aiperf, url, model, prompts, asked.users, Path(folder))
        return 0 if compare(mine, other) else 1
    finally:
        if mock is not None:
            assert mock.stdin is not None
            mock.stdin.close()
            mock.wait()


if __name__ == "__main__":
    sys.exit(main())
