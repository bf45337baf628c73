"""A matrix product with a constant weight, in the fastest form the machine has.

On a CPU in bf16 the weight is stored once in oneDNN's blocked layout, where torch offers it: decoding reads every
weight for a handful of rows, and the blocked form is read twice as fast as rows are. Elsewhere it is torch's linear.

Keeps true: both forms accumulate in float32 and round once. Does not know models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

Linear = Callable[[Tensor], Tensor]
"""x [rows, in] to [rows, out]."""


def make_linear(weight: Tensor) -> Linear:
    """The product with `weight` [out, in]: x @ weight.T. The weight may be dropped by the caller."""
    if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _packing_works():
        return _packed(weight)
    kept = weight.contiguous()
    return lambda x: linear(x, kept)


def _packed(weight: Tensor) -> Linear:
    # Private operators: torch's own compiler uses them, so they live, but any of it may move (see _packing_works).
    ops = cast(Any, torch.ops.mkldnn)
    packed = ops._reorder_linear_weight(weight.contiguous())
    product = ops._linear_pointwise

    def apply(x: Tensor) -> Tensor:
        out: Tensor = product(x, packed, None, "none", [], "")
        return out

    return apply


@cache
def _packing_works() -> bool:
    """Whether this torch, on this processor, packs weights and gives the same product."""
    x = torch.linspace(-1, 1, 5 * 32).view(5, 32).to(torch.bfloat16)
    weight = torch.linspace(1, -2, 48 * 32).view(48, 32).to(torch.bfloat16)
    try:
        with torch.inference_mode():
            got = _packed(weight)(x).float()
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(got, linear(x.float(), weight.float()), rtol=0.02, atol=0.05)
