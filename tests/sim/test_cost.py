"""Cost models: work takes time, a roofline is of the right size, a calibration is read or refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.support import calibration
from trieway.loadgen.sim.cost import GPUS, MODELS, CostModel, Rates, SharedMachine, calibrated, roofline

RATES = Rates(
    prefill_tokens_per_s=2000.0, prefill_step_s=0.004, decode_step_s=0.02, per_decode_s=0.001,
    per_context_token_s=1e-6, per_pair_s=4e-7, per_prefill_context_s=8e-6, per_request_s=0.002, request_s=0.005,
)  # fmt: skip
SHARED = SharedMachine(
    alone=RATES, together=replace(RATES, prefill_tokens_per_s=1500.0, decode_step_s=0.03), machine=2, request_s=0.005
)
H100 = roofline("h100", "llama-3.1-8b")
shapes = st.tuples(
    st.integers(0, 4096), st.integers(0, 10**7), st.integers(0, 256), st.integers(0, 10**6), st.integers(0, 10**5),
    st.integers(0, 50),
)  # fmt: skip
Shape = tuple[int, int, int, int, int, int]


@given(shape=shapes, more=shapes, model=st.sampled_from([RATES, SHARED, H100]), busy=st.floats(0.0, 1.0))
def test_more_work_never_takes_less_time(shape: Shape, more: Shape, model: CostModel, busy: float) -> None:
    larger = tuple(one + other for one, other in zip(shape, more, strict=True))
    assert 0.0 <= model.step_s(*shape, busy) <= model.step_s(*larger, busy) + 1e-12


@given(shape=shapes, busy=st.floats(0.0, 1.0))
def test_neighbours_slow_a_step_by_their_share(shape: Shape, busy: float) -> None:
    alone, together = SHARED.alone.step_s(*shape), SHARED.together.step_s(*shape)
    assert SHARED.step_s(*shape, 0.0) == alone
    assert SHARED.step_s(*shape, 1.0) == pytest.approx(together)
    assert SHARED.step_s(*shape, busy) == pytest.approx(alone + busy * (together - alone))


def test_a_mixed_step_pays_its_fixed_cost_once() -> None:
    alone = RATES.step_s(100, 0, 0, 0)
    assert alone == pytest.approx(0.004 + 0.05)
    assert RATES.step_s(0, 0, 4, 1000) == pytest.approx(0.02 + 0.004 + 0.001)
    assert RATES.step_s(100, 0, 4, 1000) == pytest.approx(0.02 + 0.05 + 0.004 + 0.001)


def test_what_prompts_attend_to_and_requests_as_such_cost_too() -> None:
    assert RATES.step_s(10, 10_000, 0, 0, 1000, 2) == pytest.approx(0.004 + 0.005 + 0.004 + 0.008 + 0.004)
    # Context of prompts is nothing where none is computed.
    assert RATES.step_s(0, 0, 1, 0, 1000) == pytest.approx(0.021)


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
        (lambda: replace(SHARED, machine=1), "two workers"),
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
    rates = calibrated(json.loads(json.dumps(calibration())))
    assert isinstance(rates, Rates)
    assert (rates.request_s, rates.machine) == (0.005, 1)
    # 100 new tokens after 500 old ones, with what their request takes; then 8 decodes.
    pairs = 100 * 500 + 5050
    assert rates.step_s(100, pairs, 0, 0, 500, 1) == pytest.approx(0.012 + 0.06 + pairs * 4e-7 + 0.004 + 0.002)
    assert rates.step_s(0, 0, 8, 4000) == pytest.approx(0.012 + 0.0072 + 0.012)


def test_workers_that_were_measured_together_share_their_machine() -> None:
    shared = calibrated(calibration(workers=4, slower=2.0))
    assert isinstance(shared, SharedMachine)
    assert (shared.request_s, shared.machine) == (0.005, 4)
    assert shared.step_s(0, 0, 8, 4000, busy=1.0) == pytest.approx(2.0 * shared.step_s(0, 0, 8, 4000))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({}, "has no 'version'"),
        ({"version": 1, "prefill": {}}, "version 1, not 2: measure again"),
        ({**calibration(), "alone": {}}, "has no 'step_ms'"),
        ({**calibration(), "alone": 3}, "not what"),
        ({**calibration(), "latency_ms": None}, "not what"),
        ({**calibration(), "workers": 1, "together": calibration()["alone"]}, "two workers"),
        ({**calibration(), "latency_ms": -1.0}, "negative"),
        ({**calibration(), "alone": {**calibration()["alone"], "prefill_token_us": -1.0}}, "above 0"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_calibration_is_refused(broken: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        calibrated(broken)


def test_rates_are_values() -> None:
    assert Rates(**asdict(RATES)) == RATES
