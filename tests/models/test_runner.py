"""The runner's bookkeeping on a small model: any batch gives what each sequence gives alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.models.conftest import MakeTiny
from trieway.worker.core.sequence import Work
from trieway.worker.models.errors import ModelUnsupported
from trieway.worker.runner import ModelRunner, make_attention, pick_device

PROMPT_MAX = 60


@pytest.fixture(scope="module")
def tiny(make_tiny: MakeTiny) -> Path:
    return make_tiny()


def sequence(seed: int, length: int) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(97) for i in range(length)]


@pytest.fixture(scope="module")
def alone(tiny: Path) -> dict[int, Tensor]:
    """All logits of each of eight sequences, computed at once and alone."""
    runner = ModelRunner(tiny, kv_tokens=PROMPT_MAX, device="cpu", dtype="fp32", attention="sdpa")
    result = {}
    for seed in range(8):
        work = Work(id="a", tokens=tuple(sequence(seed, PROMPT_MAX)), start=0, pages=range(PROMPT_MAX), samples=True)
        result[seed] = runner.step([work], {"a"}).every["a"]
    return result


@dataclass
class Live:
    seed: int
    pages: list[int]
    done: int = 0
    ids: list[int] = field(default_factory=list)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("attention", ["sdpa", "blocked"])
def test_any_schedule_gives_the_same_logits(
    tiny: Path, alone: dict[int, Tensor], page_size: int, attention: str, data: st.DataObject
) -> None:
    seeds = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
    each = -(-PROMPT_MAX // page_size)
    runner = ModelRunner(
        tiny, kv_tokens=8 * each * page_size, page_size=page_size, device="cpu", dtype="fp32", attention=attention
    )
    free = list(range(8 * each))
    random.Random(seeds[0]).shuffle(free)
    live = [Live(seed=seed, pages=[free.pop() for _ in range(each)], ids=sequence(seed, PROMPT_MAX)) for seed in seeds]
    while active := [item for item in live if item.done < PROMPT_MAX]:
        chosen = data.draw(st.lists(st.sampled_from(active), min_size=1, unique_by=id))
        work = []
        for item in chosen:
            count = min(data.draw(st.sampled_from([1, 1, 5, 30])), PROMPT_MAX - item.done)
            pages = item.pages[: -(-(item.done + count) // page_size)]
            tokens = tuple(item.ids[item.done : item.done + count])
            samples = data.draw(st.booleans())
            work.append(Work(id=str(item.seed), tokens=tokens, start=item.done, pages=pages, samples=samples))
            item.done += count
        every = frozenset(item.id for item in work if data.draw(st.booleans()))
        got = runner.step(work, every)
        assert got.ids == tuple(item.id for item in work if item.samples)
        assert set(got.every) == set(every)
        for name, row in zip(got.ids, got.rows, strict=True):
            (item,) = (item for item in work if item.id == name)
            wanted = alone[int(name)][item.start + len(item.tokens) - 1]
            torch.testing.assert_close(row, wanted, atol=1e-4, rtol=1e-4)
        for item in work:
            if item.id in every:
                wanted = alone[int(item.id)][item.start : item.start + len(item.tokens)]
                torch.testing.assert_close(got.every[item.id], wanted, atol=1e-4, rtol=1e-4)


def test_two_sequences_read_one_cached_prefix(tiny: Path, alone: dict[int, Tensor]) -> None:
    runner = ModelRunner(tiny, kv_tokens=64, device="cpu", dtype="fp32")
    ids = sequence(3, 20)
    runner.step([Work(id="a", tokens=tuple(ids[:16]), start=0, pages=range(16), samples=False)])
    tails = [[*range(16), *range(first, first + 4)] for first in (20, 40)]
    work = [Work(id=str(i), tokens=tuple(ids[16:]), start=16, pages=tail, samples=True) for i, tail in enumerate(tails)]
    rows = runner.step(work).rows
    torch.testing.assert_close(rows[0], rows[1])
    torch.testing.assert_close(rows[0], alone[3][19], atol=1e-4, rtol=1e-4)


def test_nothing_samples_nothing_comes_back(tiny: Path) -> None:
    runner = ModelRunner(tiny, kv_tokens=8, device="cpu")
    got = runner.step([Work(id="a", tokens=(1, 2), start=0, pages=range(2), samples=False)])
    assert got.ids == ()
    assert got.rows.shape == (0, 97)


def test_a_step_writes_only_its_own_slots(tiny: Path) -> None:
    runner = ModelRunner(tiny, kv_tokens=32, page_size=4, device="cpu")
    runner.step([Work(id="a", tokens=(1, 2, 3), start=0, pages=[5], samples=True)])
    written = runner.kv.keys.float().abs().sum((0, 2, 3)).nonzero()[:, 0].tolist()
    assert written == [20, 21, 22]


@pytest.mark.parametrize("kv_tokens", [1, 2, 3, 100])
def test_warm_up_fits_any_pool(tiny: Path, kv_tokens: int) -> None:
    ModelRunner(tiny, kv_tokens=kv_tokens, device="cpu").warm_up()


def test_devices_and_backends_by_name(tiny: Path) -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ModelUnsupported, match="--device cpu"):
            pick_device("cuda")
    kv = ModelRunner(tiny, kv_tokens=4, device="cpu").kv
    assert type(make_attention("auto", kv, 6)).__name__ == "BlockedAttention"
    assert type(make_attention("sdpa", kv, 6)).__name__ == "SdpaAttention"
