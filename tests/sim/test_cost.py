"""Cost models: work takes time, a roofline is of the right size, a calibration is read or refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trieway.fleet.calibrate import Calibration
from trieway.fleet.fitting import DecodePoint, PrefillPoint, fit_decode, fit_prefill
from trieway.loadgen.sim.cost import GPUS, MODELS, CostModel, Rates, calibrated, roofline

RATES = Rates(
    prefill_tokens_per_s=2000.0, prefill_step_s=0.004, decode_step_s=0.02, per_decode_s=0.001,
    per_context_token_s=1e-6, request_s=0.005,
)  # fmt: skip
H100 = roofline("h100", "llama-3.1-8b")
shapes = st.tuples(st.integers(0, 4096), st.integers(0, 10**7), st.integers(0, 256), st.integers(0, 10**6))


@given(shape=shapes, more=shapes, model=st.sampled_from([RATES, H100]))
def test_more_work_never_takes_less_time(
    shape: tuple[int, int, int, int], more: tuple[int, int, int, int], model: CostModel
) -> None:
    larger = tuple(one + other for one, other in zip(shape, more, strict=True))
    assert 0.0 <= model.step_s(*shape) <= model.step_s(*larger) + 1e-12


def test_a_mixed_step_pays_its_fixed_cost_once() -> None:
    alone = RATES.step_s(100, 0, 0, 0)
    assert alone == pytest.approx(0.004 + 0.05)
    assert RATES.step_s(0, 0, 4, 1000) == pytest.approx(0.02 + 0.004 + 0.001)
    assert RATES.step_s(100, 0, 4, 1000) == pytest.approx(0.02 + 0.05 + 0.004 + 0.001)


def test_a_roofline_has_the_size_of_its_machine() -> None:
    # 16 GB of weights at 75 % of 3.35 TB/s are 6.4 ms; 8,192 tokens at half of 989 TFLOP/s are 270 ms.
    assert H100.step_s(0, 0, 1, 1000) == pytest.approx(0.0085, rel=0.1)
    assert H100.step_s(8192, 8192 * 4096, 0, 0) == pytest.approx(0.30, rel=0.15)
    assert 400_000 < H100.kv_tokens < 450_000
    assert roofline("h100", "llama-3.1-70b", gpus=4).step_s(0, 0, 1, 0) < 0.02


def test_unusable_models_are_refused() -> None:
    for what, match in (
        (lambda: roofline("tpu", "llama-3.1-8b"), "no GPU named 'tpu'"),
        (lambda: roofline("l4", "gpt"), "no model named 'gpt'"),
        (lambda: roofline("l4", "llama-3.1-70b"), "does not fit"),
        (lambda: replace(RATES, prefill_tokens_per_s=0.0), "above 0"),
        (lambda: replace(RATES, per_decode_s=-1.0), "negative"),
        (lambda: replace(H100, compute_share=0.0), "shares"),
    ):
        with pytest.raises(ValueError, match=match):
            what()  # type: ignore[no-untyped-call]


def test_every_named_pair_that_fits_can_be_used() -> None:
    fits = 0
    for gpu in GPUS:
        for model in MODELS:
            try:
                fits += roofline(gpu, model).step_s(1, 1, 1, 1) > 0.0
            except ValueError:
                assert model == "llama-3.1-70b"
    assert fits >= 15


def test_a_calibration_is_read_as_it_was_measured() -> None:
    prefill = fit_prefill([PrefillPoint(tokens=count, ms=30.0 + count / 2.0) for count in (64, 256, 1024)])
    decode = fit_decode([
        DecodePoint(batch=batch, context_tokens=context, step_ms=20.0 + batch + batch * context * 0.002)
        for batch, context in ((1, 32), (4, 32), (8, 32), (1, 1024), (8, 512))
    ])  # fmt: skip
    report = Calibration(version=1, model="m", repeats=1, prefill=prefill, decode=decode)
    rates = calibrated(json.loads(json.dumps(report.as_json())))
    assert rates.prefill_tokens_per_s == pytest.approx(2000.0, rel=0.01)
    assert rates.decode_step_s == pytest.approx(0.020, rel=0.01)
    assert rates.request_s == pytest.approx(0.010, rel=0.02)
    assert rates.per_context_token_s == pytest.approx(2e-6, rel=0.01)
    # A lone prompt takes what was measured.
    assert rates.request_s + rates.step_s(256, 0, 0, 0) == pytest.approx(0.158, rel=0.01)
    assert rates.step_s(0, 0, 8, 8 * 512) == pytest.approx(0.0362, rel=0.01)


def test_an_overhead_below_a_decode_step_is_all_the_steps_own() -> None:
    report = {
        "prefill": {"tokens_per_s": 100.0, "overhead_ms": 5.0},
        "decode": {"step_ms": 20.0, "per_sequence_ms": 0.0, "per_context_token_us": 0.0},
    }
    rates = calibrated(report)
    assert (rates.prefill_step_s, rates.request_s) == (0.005, 0.0)


@pytest.mark.parametrize(
    "broken", [{}, {"prefill": {}}, {"prefill": 3, "decode": 4}, {"prefill": None, "decode": None}]
)
def test_what_is_no_calibration_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="calibration"):
        calibrated(broken)


def test_rates_are_values() -> None:
    assert Rates(**asdict(RATES)) == RATES
