"""Every attention backend against attention written out by hand, on random batches over shuffled pages."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trieway.kernels.attention import paged
from trieway.kernels.attention.blocked import BlockedAttention
from trieway.kernels.attention.paged import AttentionBackend, PagedKV, Span, decode_groups, padded_slots
from trieway.kernels.attention.sdpa import SdpaAttention

Make = Callable[[PagedKV, int], AttentionBackend]
BACKENDS: list[Make] = [SdpaAttention, BlockedAttention]
CPU = torch.device("cpu")
LAYERS = 2


@dataclass
class Case:
    """Sequences with all their keys and values, as the oracle sees them."""

    heads: int
    kv_heads: int
    dim: int
    page_size: int
    contexts: list[int]
    new: list[int]
    seed: int


def oracle(q: Tensor, k: Tensor, v: Tensor, context: int) -> Tensor:
    """q [n, heads, dim] against k, v [context + n, kv_heads, dim], one query and head at a time, in float64."""
    out = torch.empty_like(q, dtype=torch.float64)
    groups = q.shape[1] // k.shape[1]
    for row in range(len(q)):
        for head in range(q.shape[1]):
            seen_k = k[: context + row + 1, head // groups].double()
            scores = seen_k @ q[row, head].double() * q.shape[2] ** -0.5
            out[row, head] = torch.softmax(scores, 0) @ v[: context + row + 1, head // groups].double()
    return out.flatten(1)


def run_case(make: Make, case: Case, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """What the backend gives and what the oracle gives, for the last layer. Other layers hold other numbers."""
    generator = torch.Generator().manual_seed(case.seed)
    totals = [context + new for context, new in zip(case.contexts, case.new, strict=True)]
    counts = [-(-total // case.page_size) for total in totals]
    pages = list(range(sum(counts) + 3))
    random.Random(case.seed).shuffle(pages)
    tables = [[pages.pop() for _ in range(count)] for count in counts]
    kv = PagedKV(LAYERS, sum(counts) + 3, case.page_size, case.kv_heads, case.dim, dtype, CPU)

    def draw(n: int, heads: int) -> Tensor:
        return torch.randn(n, heads, case.dim, generator=generator).to(dtype)

    batch = [
        Span(tokens=new, context=context, pages=table)
        for new, context, table in zip(case.new, case.contexts, tables, strict=True)
    ]
    backend = make(kv, case.heads)
    with torch.inference_mode():
        for layer in range(LAYERS):
            ks = [draw(total, case.kv_heads) for total in totals]
            vs = [draw(total, case.kv_heads) for total in totals]
            qs = [draw(new, case.heads) for new in case.new]
            for span, k, v in zip(batch, ks, vs, strict=True):
                kv.write(layer, kv.slots(span)[: span.context], k[: span.context], v[: span.context])
            if layer == 0:
                backend.plan(batch)
            new_k = torch.cat([k[span.context :] for span, k in zip(batch, ks, strict=True)])
            new_v = torch.cat([v[span.context :] for span, v in zip(batch, vs, strict=True)])
            got = backend.run(layer, torch.cat(qs), new_k, new_v)
            for span, k in zip(batch, ks, strict=True):
                assert torch.equal(kv.layer(layer)[0][kv.slots(span)], k)
    wanted = [oracle(q, k, v, span.context) for q, k, v, span in zip(qs, ks, vs, batch, strict=True)]
    return got, torch.cat(wanted)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads = draw(st.sampled_from([1, 2, 3, 5]))
    sequences = draw(st.integers(1, 5))
    return Case(
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        dim=draw(st.sampled_from([4, 16])),
        page_size=draw(st.sampled_from([1, 3, 16])),
        contexts=[draw(st.integers(0, 40)) for _ in range(sequences)],
        new=[draw(st.sampled_from([1, 1, 2, 7, 20])) for _ in range(sequences)],
        seed=draw(st.integers(0, 2**31)),
    )


@pytest.mark.parametrize("make", BACKENDS)
@settings(max_examples=25, deadline=None)
@given(case=cases())
def test_equals_attention_by_hand(make: Make, case: Case) -> None:
    got, wanted = run_case(make, case)
    torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("make", BACKENDS)
def test_long_prefill_crosses_blocks(make: Make) -> None:
    case = Case(heads=6, kv_heads=2, dim=8, page_size=4, contexts=[37], new=[300], seed=1)
    got, wanted = run_case(make, case)
    torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("kv_heads", [3, 5])
def test_long_decodes_share_a_padded_gather(make: Make, kv_heads: int) -> None:
    contexts = [400, 390, 333, 250, 90, 3, 1]
    case = Case(heads=kv_heads * 3, kv_heads=kv_heads, dim=16, page_size=1, contexts=contexts, new=[1] * 7, seed=2)
    got, wanted = run_case(make, case)
    torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("make", BACKENDS)
def test_bfloat16_is_within_its_rounding(make: Make) -> None:
    case = Case(heads=9, kv_heads=3, dim=64, page_size=16, contexts=[400, 380, 0, 50], new=[1, 1, 140, 9], seed=3)
    got, wanted = run_case(make, case, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), wanted, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("make", BACKENDS)
def test_strided_inputs_are_read_right(make: Make) -> None:
    """q, k and v may be slices of one fused projection."""
    kv = PagedKV(1, 8, 1, 1, 4, torch.float32, CPU)
    fused = torch.randn(5, 4, 4)
    q, k, v = fused[:, :2], fused[:, 2:3], fused[:, 3:]
    backend = make(kv, 2)
    backend.plan([Span(tokens=5, context=0, pages=[7, 1, 3, 0, 2])])
    torch.testing.assert_close(backend.run(0, q, k, v).double(), oracle(q, k, v, 0), atol=2e-6, rtol=1e-5)


def test_scores_are_bounded_by_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trieway.kernels.attention.blocked._SCORES_MAX", 2048)
    case = Case(heads=4, kv_heads=2, dim=8, page_size=1, contexts=[10], new=[75], seed=4)
    got, wanted = run_case(BlockedAttention, case)
    torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=1e-5)


def test_decode_groups_bound_the_padding() -> None:
    batch = [Span(tokens=n, context=c, pages=[]) for n, c in [(1, 99), (1, 60), (1, 48), (1, 20), (4, 0), (1, 9)]]
    assert decode_groups(batch) == [(0, 2), (2, 3), (3, 4), (5, 6)]
    assert decode_groups([]) == []


@given(st.lists(st.tuples(st.sampled_from([1, 1, 1, 5]), st.integers(0, 1000)), max_size=20))
def test_decode_groups_hold_each_decode_once(shape: list[tuple[int, int]]) -> None:
    batch = [Span(tokens=tokens, context=context, pages=[]) for tokens, context in shape]
    groups = decode_groups(batch)
    members = [index for first, end in groups for index in range(first, end)]
    assert members == [index for index, span in enumerate(batch) if span.tokens == 1]
    for first, end in groups:
        lengths = [span.context + 1 for span in batch[first:end]]
        assert min(lengths) * 2 >= max(lengths)


def test_padded_slots() -> None:
    table, padding = padded_slots([torch.tensor([4, 5, 6]), torch.tensor([9])])
    assert table.tolist() == [[4, 5, 6], [9, 0, 0]]
    assert padding is not None
    assert padding.tolist() == [[False, False, False], [False, True, True]]
    assert padded_slots([torch.tensor([1]), torch.tensor([2])])[1] is None


def test_slots_follow_the_page_table() -> None:
    kv = PagedKV(1, 10, 4, 1, 2, torch.float32, CPU)
    assert kv.slots(Span(tokens=2, context=4, pages=[7, 2])).tolist() == [28, 29, 30, 31, 8, 9]
    with pytest.raises(AssertionError, match="too short"):
        kv.slots(Span(tokens=5, context=4, pages=[7, 2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pool_starts_at_zero_and_knows_its_size(dtype: torch.dtype) -> None:
    kv = PagedKV(2, 5, 4, 3, 8, dtype, CPU)
    assert kv.bytes == 2 * 2 * 20 * 3 * 8 * dtype.itemsize
    assert not kv.keys.any()
    assert not kv.values.any()
    kv.write(1, torch.tensor([6]), torch.ones(1, 3, 8, dtype=dtype), torch.full((1, 3, 8), 2.0, dtype=dtype))
    keys, values = kv.paged(1)
    assert keys.shape == (5, 4, 3, 8)
    assert keys[1, 2].float().mean() == 1
    assert values[1, 2].float().mean() == 2
    assert not kv.layer(0)[0].any()


def test_zeros_on_another_device() -> None:
    made = paged._zeros((2, 3), torch.float16, torch.device("meta"))
    assert made.shape == (2, 3)
    assert made.device.type == "meta"
