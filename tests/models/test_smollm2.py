"""The packaged model against transformers on the same weights: every way a scheduler can cut a prompt."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trieway.worker.core.sequence import Work
from trieway.worker.runner import ModelRunner
from trieway.worker.tokenizer import Tokenizer

pytestmark = pytest.mark.model

KV_TOKENS = 640
TEXT = "<|im_start|>user\nWrite a short story about a lighthouse keeper and 3 ships.<|im_end|>\n<|im_start|>assistant\n"
OTHER = "def fibonacci(n):\n    if n < 2:\n        return n\n"
LOGITS_APART_MAX = 1e-3

MakeRunner = Callable[..., ModelRunner]


@pytest.fixture(scope="module")
def runners(smollm2_dir: Path) -> MakeRunner:
    """Float32 runners by page size and backend, each made once: loading takes longer than the tests."""
    made: dict[tuple[int, str], ModelRunner] = {}

    def make(page_size: int, attention: str) -> ModelRunner:
        key = (page_size, attention)
        if key not in made:
            made[key] = ModelRunner(
                smollm2_dir, kv_tokens=KV_TOKENS, page_size=page_size, device="cpu", dtype="fp32", attention=attention
            )
        return made[key]

    return make


@dataclass
class Sequence:
    """One sequence on shuffled pages of its own."""

    runner: ModelRunner
    pages: list[int]
    name: str = "a"
    done: int = 0
    logits: list[Tensor] = field(default_factory=list)

    def work(self, tokens: list[int]) -> Work:
        size = self.runner.kv.page_size
        pages = self.pages[: -(-(self.done + len(tokens)) // size)]
        made = Work(id=self.name, tokens=tuple(tokens), start=self.done, pages=pages, samples=True)
        self.done += len(tokens)
        return made

    def run(self, tokens: list[int]) -> Tensor:
        """Logits of every one of `tokens`."""
        return self.runner.step([self.work(tokens)], {self.name}).every[self.name]


def start(runner: ModelRunner, seed: int, *, shared: list[int] | None = None) -> Sequence:
    """A sequence on shuffled pages; `shared` come first."""
    taken = shared or []
    pages = [page for page in range(runner.kv.pages) if page not in set(taken)]
    random.Random(seed).shuffle(pages)
    return Sequence(runner, [*taken, *pages])


def wanted_logits(reference: Any, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = reference(torch.tensor([ids])).logits[0]
    return logits


def assert_near(got: Tensor, wanted: Tensor) -> None:
    apart = float((got - wanted).abs().max())
    assert apart < LOGITS_APART_MAX, f"logits are {apart:.2e} apart"


VARIANTS = [(1, "blocked"), (16, "blocked"), (1, "sdpa")]


@pytest.mark.parametrize(("page_size", "attention"), VARIANTS)
def test_every_way_to_cut_a_prompt(
    runners: MakeRunner, reference: Any, tokenizer: Tokenizer, page_size: int, attention: str
) -> None:
    runner = runners(page_size, attention)
    tail = tokenizer.encode("Once there were")
    ids = tokenizer.encode(TEXT + OTHER) + tail
    prompt, steps = ids[: -len(tail)], tail
    wanted = wanted_logits(reference, ids)

    def decodes(sequence: Sequence) -> None:
        for index, token in enumerate(steps):
            assert_near(sequence.run([token])[0], wanted[len(prompt) + index])

    at_once = start(runner, 1)
    assert_near(at_once.run(prompt), wanted[: len(prompt)])
    decodes(at_once)

    chunked = start(runner, 2)
    for first in range(0, len(prompt), 7):
        assert_near(chunked.run(prompt[first : first + 7]), wanted[first : min(first + 7, len(prompt))])
    decodes(chunked)

    owner = start(runner, 3)
    prefix = len(prompt) // 2 // page_size * page_size
    assert prefix > 0
    owner.run(prompt[:prefix])
    heir = start(runner, 4, shared=owner.pages[: prefix // page_size])
    heir.done = prefix
    assert_near(heir.run(prompt[prefix:]), wanted[prefix : len(prompt)])
    decodes(heir)


@pytest.mark.parametrize(("page_size", "attention"), VARIANTS[:2])
def test_a_mixed_batch_of_decodes_and_prefills(
    runners: MakeRunner, reference: Any, tokenizer: Tokenizer, page_size: int, attention: str
) -> None:
    runner = runners(page_size, attention)
    all_ids = [tokenizer.encode(TEXT), tokenizer.encode(OTHER * 2), tokenizer.encode(OTHER), tokenizer.encode("Hi")]
    pages = list(range(runner.kv.pages))
    random.Random(5).shuffle(pages)
    share = len(pages) // len(all_ids)
    sequences = [Sequence(runner, pages[i * share : (i + 1) * share], name=str(i)) for i in range(len(all_ids))]
    sequences[0].run(all_ids[0][:-1])
    sequences[1].run(all_ids[1][:10])
    cuts = [all_ids[0][-1:], all_ids[1][10:], all_ids[2], all_ids[3]]
    work = [sequence.work(cut) for sequence, cut in zip(sequences, cuts, strict=True)]
    got = runner.step(work)
    assert got.ids == ("0", "1", "2", "3")
    for row, ids in zip(got.rows, all_ids, strict=True):
        assert_near(row, wanted_logits(reference, ids)[-1])


def greedy(runner: ModelRunner, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Greedy continuations of prompts, decoded together."""
    pages = list(range(runner.kv.pages))
    random.Random(6).shuffle(pages)
    share = len(pages) // len(prompts)
    sequences = [Sequence(runner, pages[i * share : (i + 1) * share], name=str(i)) for i in range(len(prompts))]
    outputs: list[list[int]] = [[] for _ in prompts]
    feeds = prompts
    for _ in range(count):
        step = runner.step([sequence.work(feed) for sequence, feed in zip(sequences, feeds, strict=True)])
        tokens = step.rows.argmax(-1).tolist()
        feeds = [[token] for token in tokens]
        for output, token in zip(outputs, tokens, strict=True):
            output.append(token)
    return outputs


def reference_greedy(reference: Any, prompt: list[int], count: int) -> list[int]:
    with torch.inference_mode():
        out = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    ids: list[int] = out[0, len(prompt) :].tolist()
    return ids


def test_greedy_text_is_equal_over_64_tokens(runners: MakeRunner, reference: Any, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(TEXT), tokenizer.encode(OTHER)]
    wanted = [reference_greedy(reference, prompt, 64) for prompt in prompts]
    for page_size in (1, 16):
        got = greedy(runners(page_size, "blocked"), prompts, 64)
        assert [tokenizer.decode(output) for output in got] == [tokenizer.decode(output) for output in wanted]


def test_bf16_is_as_near_as_bf16_can_be(smollm2_dir: Path, reference: Any, tokenizer: Tokenizer) -> None:
    runner = ModelRunner(smollm2_dir, kv_tokens=256, device="cpu")
    ids = tokenizer.encode(TEXT + OTHER)
    wanted = wanted_logits(reference, ids).log_softmax(-1)
    got = start(runner, 1).run(ids).log_softmax(-1)
    divergence = (wanted.exp() * (wanted - got)).sum(-1)
    assert float(divergence.mean()) < 0.01
    assert float((got.argmax(-1) == wanted.argmax(-1)).float().mean()) > 0.85
    assert tokenizer.encode(" Paris")[0] == greedy(runner, [tokenizer.encode("The capital of France is")], 1)[0][0]


@pytest.mark.verify
def test_speed_beside_transformers(smollm2_dir: Path, tokenizer: Tokenizer) -> None:
    """Prints tokens per CPU second of both, alternating in one run; asserts only that the worker is the faster."""
    from transformers import AutoModelForCausalLM

    runner = ModelRunner(smollm2_dir, kv_tokens=16_384, device="cpu")
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.bfloat16).eval()
    prompt = [(i * 7919) % 49152 for i in range(1024)]
    best: dict[tuple[str, str], float] = {}
    for _ in range(3):
        for case, batch, context in (("prefill 1,024", 1, 1024), ("decode b1", 1, 64), ("decode b8", 8, 64)):
            for who, seconds in (
                ("trieway", _own_seconds(runner, prompt[:context], batch, case)),
                ("transformers", _their_seconds(model, prompt[:context], batch, case)),
            ):
                rate = (context if case.startswith("prefill") else batch * 24) / seconds
                best[who, case] = max(best.get((who, case), 0.0), rate)
    for (who, case), rate in sorted(best.items(), key=lambda item: item[0][::-1]):
        print(f"{case}: {who} {rate:.0f} tokens per CPU second")
    for case in ("prefill 1,024", "decode b1", "decode b8"):
        assert best["trieway", case] > best["transformers", case]


def _own_seconds(runner: ModelRunner, prompt: list[int], batch: int, case: str) -> float:
    sequences = [Sequence(runner, list(range(i * 1100, (i + 1) * 1100)), name=str(i)) for i in range(batch)]
    began = time.process_time()
    for sequence in sequences:
        for first in range(0, len(prompt), 512):
            runner.step([sequence.work(prompt[first : first + 512])])
    if case.startswith("prefill"):
        return time.process_time() - began
    began = time.process_time()
    for _ in range(24):
        runner.step([sequence.work([5]) for sequence in sequences]).rows.argmax(-1).tolist()
    return time.process_time() - began


def _their_seconds(model: Any, prompt: list[int], batch: int, case: str) -> float:
    ids = torch.tensor([prompt] * batch)

    def generate(count: int) -> float:
        began = time.process_time()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        return time.process_time() - began

    return generate(1) if case.startswith("prefill") else generate(25) - generate(1)
