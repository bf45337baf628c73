"""`make gpu-smoke`: serve on CUDA, compare with the CPU. Exit code 0: equal; 1: different or broken; 2: no GPU here."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.verify.fleet import Running, free_port, start

MODEL = "smollm2-135m"
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time there was a lantern in a quiet harbour. " * 8,
    "1, 1, 2, 3, 5, 8, 13,",
]
LOGPROB_ERROR_MAX = 2e-3
"""fp32 on both sides; GPUs sum in another order."""


def serve(folder: Path, name: str, *arguments: str) -> Running:
    port = free_port()
    worker = start(
        folder / f"{name}.log",
        f"http://127.0.0.1:{port}",
        ["worker", "--model", MODEL, "--port", str(port), *arguments],
    )
    worker.wait_ready("trieway worker ready")
    return worker


def ask(url: str, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 32, "temperature": 0, "logprobs": 1} | more
    answer: dict[str, Any] = httpx.post(f"{url}/v1/completions", json=body, timeout=300).raise_for_status().json()
    return answer


def compare(cpu: str, gpu: str) -> float:
    worst = 0.0
    for prompt in PROMPTS:
        for echo in (True, False):  # With echo nothing is taken from the cache; without, the second time most is.
            left = ask(cpu, prompt, echo=echo)["choices"][0]
            right = ask(gpu, prompt, echo=echo)["choices"][0]
            assert left["text"] == right["text"], f"greedy texts differ after {prompt[:30]!r}"
            pairs = zip(left["logprobs"]["token_logprobs"], right["logprobs"]["token_logprobs"], strict=True)
            worst = max([worst, *(abs(a - b) for a, b in pairs if a is not None)])
    return worst


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("gpu-smoke: no CUDA device here; nothing was checked")
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running: list[Running] = []
        try:
            running.append(serve(folder, "cpu", "--device", "cpu", "--dtype", "fp32"))
            running.append(serve(folder, "gpu", "--device", "cuda", "--dtype", "fp32"))
            worst = compare(running[0].url, running[1].url)
            print(f"fp32, {len(PROMPTS)} prompts, cold and cached: worst logprob difference {worst:.2e}")
            running.append(serve(folder, "bf16", "--device", "cuda"))
            url = running[-1].url
            with ThreadPoolExecutor(32) as pool:
                answers = list(pool.map(lambda i: ask(url, PROMPTS[i % 4] + str(i % 8), ignore_eos=True), range(64)))
            assert all(answer["usage"]["completion_tokens"] == 32 for answer in answers)
            print(f"bf16: 64 requests at concurrency 32 served on {torch.cuda.get_device_name()}")
            return 0 if worst < LOGPROB_ERROR_MAX else 1
        finally:
            for worker in running:
                worker.stop()


if __name__ == "__main__":
    sys.exit(main())
