"""The constant product, in both of its forms."""

from __future__ import annotations

import pytest
import torch

from trieway.worker.models import linear
from trieway.worker.models.linear import make_linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_is_the_product_with_the_transposed_weight(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(70, 33).to(dtype), torch.randn(rows, 33).to(dtype)
    with torch.inference_mode():
        got = make_linear(weight)(x)
    assert got.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.06
    torch.testing.assert_close(got.double(), x.double() @ weight.double().T, atol=tolerance, rtol=tolerance / 4)


def test_without_packing_the_plain_form_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(weight: torch.Tensor) -> linear.Linear:
        raise AttributeError("no such operator")

    linear._packing_works.cache_clear()
    monkeypatch.setattr(linear, "_packed", absent)
    try:
        weight, x = torch.randn(8, 4).bfloat16(), torch.randn(2, 4).bfloat16()
        torch.testing.assert_close(make_linear(weight)(x), torch.nn.functional.linear(x, weight))
    finally:
        linear._packing_works.cache_clear()


def test_a_packed_form_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    linear._packing_works.cache_clear()
    monkeypatch.setattr(linear, "_packed", lambda weight: lambda x: torch.zeros(len(x), len(weight)))
    try:
        assert not linear._packing_works()
    finally:
        linear._packing_works.cache_clear()
