"""The router's whole decision at 128 KB: read the body, render the template, hash, match, choose."""

from __future__ import annotations

import pytest

from tests.tools.bench import best_us, chat_body, decider
from tests.verify.fleet import report
from trieway.kernels import block_hash


@pytest.mark.skipif(block_hash.NATIVE is None, reason="the bound is for the native hash")
def test_a_decision_at_128_kb_takes_under_two_milliseconds_of_cpu() -> None:
    decide = decider(chat_body(131_072), workers=4)
    assert decide().available_tokens > 0
    spent_us = best_us(decide, rounds=3)
    report(f"decision about a 128 KB chat, 4 workers: {spent_us:.0f} us of CPU")
    assert spent_us < 2000
