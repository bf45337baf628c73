"""Sampling against its definitions: distributions, limits, penalties, log-probabilities, and what a seed promises."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trieway.worker.sampling import (
    Sampled,
    Sampler,
    SamplingParams,
    SamplingState,
    draw,
    gumbel,
    nucleus_floor,
    token_logprobs,
)

VOCABULARY = 40


Scores = npt.NDArray[np.float32]


def logits(seed: int = 0, rows: int = 1, scale: float = 2.0) -> Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * scale


def state(prompt: tuple[int, ...] = (), seed: int = 1, **params: Any) -> SamplingState:
    return SamplingState(SamplingParams(**params), prompt, seed)


def row_of(seed: int) -> Scores:
    row: Scores = logits(seed)[0].numpy()
    return row


def allowed(row: Scores, params: SamplingParams) -> set[int]:
    """Ids that may be drawn, by vLLM's definition: temperature, min_p, top_k, top_p, each on what is left.

    A hair wider than exact, since the limits are compared in float32.
    """
    probabilities = torch.softmax(torch.from_numpy(row).double() / params.temperature, 0)
    order = probabilities.argsort(descending=True).tolist()
    kept = [i for i in order if probabilities[i] >= (params.min_p - 1e-6) * probabilities[order[0]]]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    total, reached, result = sum(float(probabilities[i]) for i in kept), 0.0, set()
    for i in kept:
        if reached >= params.top_p + 1e-6:
            break
        result.add(i)
        reached += float(probabilities[i]) / total
    return result


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([-1, 0, 1, 5, 100]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_draws_exactly_what_the_limits_allow(
    seed: int, temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    scores = row_of(seed)
    may = allowed(scores, params)
    drawn = {draw(scores, params, seed, position) for position in range(60)}
    assert drawn <= may
    if len(may) == 1:
        assert drawn == may


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.6}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 10, "top_p": 0.7}]
)
def test_frequencies_follow_the_probabilities(params: dict[str, Any]) -> None:
    made = SamplingParams(**params)
    scores = row_of(3)
    may = sorted(allowed(scores, made))
    probabilities = torch.softmax(torch.from_numpy(scores[may]).double() / made.temperature, 0)
    count = 4000
    counts = Counter(draw(scores, made, 12345, position) for position in range(count))
    statistic = sum(
        (counts[i] - count * p) ** 2 / (count * p) for i, p in zip(may, probabilities.tolist(), strict=True)
    )
    degrees = len(may) - 1
    assert statistic < degrees + 5 * math.sqrt(2 * degrees) + 5


def test_noise_is_gumbel_and_independent_between_streams() -> None:
    ids = np.arange(100_000)
    noise = gumbel(ids, 7, 0)
    assert np.isfinite(noise).all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, rel=0.03)
    others = [(ids, 7, 1), (ids, 8, 0), (ids + 1, 7, 0), (ids, -7, 0), (ids, 2**70, 0)]
    for other in (gumbel(*arguments) for arguments in others):
        assert abs(float(np.corrcoef(noise, other)[0, 1])) < 0.02
    assert np.array_equal(gumbel(ids[5:9], 7, 0), noise[5:9])


def test_noise_never_changes() -> None:
    """A seeded answer can be had again by a later version, too."""
    got = gumbel(np.array([0, 1, 49151]), 42, 3)
    assert got.dtype == np.float32
    assert got.tolist() == pytest.approx([0.681204, -0.778543, 1.883335], abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(-(2**63), 2**64), others=st.integers(0, 4), place=st.integers(0, 4))
def test_a_seed_gives_the_same_tokens_whatever_the_batch(seed: int, others: int, place: int) -> None:
    steps = [logits(step, rows=6) for step in range(5)]
    params = SamplingParams(seed=seed, temperature=1.3, top_p=0.95)
    alone, again = SamplingState(params, (), 11), SamplingState(params, (), 99)
    crowd = [state(seed=i, temperature=0.0 if i % 2 else 1.0, repetition_penalty=1.2) for i in range(others)]
    place = min(place, others)
    crowd.insert(place, again)
    sampler = Sampler()
    for step in steps:
        rows = step[: len(crowd)].clone()
        rows[place] = step[5]
        (wanted,) = sampler.sample(step[5:6], [alone])
        assert sampler.sample(rows, crowd)[place] == wanted


def test_unseeded_sequences_take_the_seed_given() -> None:
    row = torch.zeros(1, VOCABULARY)
    sampler = Sampler()
    tokens = {sampler.sample(row, [state(seed=seed)])[0].token for seed in range(200)}
    assert len(tokens) > VOCABULARY * 0.9
    sequence = state(seed=5)
    assert len({sampler.sample(row, [sequence])[0].token for _ in range(200)}) > VOCABULARY * 0.9


def test_greedy_takes_the_best_and_ignores_limits() -> None:
    rows = logits(4, rows=3)
    states = [state(temperature=0.0), state(temperature=0.0, top_k=3, top_p=0.1, min_p=0.9), state(temperature=1e-7)]
    assert [item.token for item in Sampler().sample(rows, states)] == rows.argmax(-1).tolist()


def test_a_low_temperature_is_nearly_greedy() -> None:
    rows = logits(5)
    for seed in range(20):
        assert Sampler().sample(rows, [state(seed=seed, temperature=0.01)])[0].token == int(rows.argmax())


def penalised_by_hand(row: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    row = list(row)
    for i in set(prompt) | set(output):
        row[i] = row[i] / params.repetition_penalty if row[i] > 0 else row[i] * params.repetition_penalty
    for i, count in Counter(output).items():
        row[i] -= params.frequency_penalty * count + params.presence_penalty
    return row


@settings(max_examples=50, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), max_size=8),
    output=st.lists(st.integers(0, VOCABULARY - 1), max_size=8),
    repetition=st.sampled_from([0.5, 1.0, 1.7]),
    presence=st.sampled_from([-1.0, 0.0, 0.5]),
    frequency=st.sampled_from([0.0, 0.3, 2.0]),
)
def test_penalties_count_as_vllm_counts(
    prompt: list[int], output: list[int], repetition: float, presence: float, frequency: float
) -> None:
    made = state(tuple(prompt), repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    for token in output:
        made.append(token)
    row = row_of(9)
    wanted = penalised_by_hand(row.tolist(), prompt, output, made.params)
    before = row.copy()
    np.testing.assert_allclose(made.penalised(row), wanted, atol=1e-5, rtol=1e-5)
    assert np.array_equal(row, before)
    assert made.position == len(output)


def test_a_penalty_changes_only_its_own_row() -> None:
    rows = torch.zeros(2, VOCABULARY)
    rows[:, 3], rows[:, 4] = 5.0, 4.9
    first, second = state(temperature=0.0, frequency_penalty=1.0), state(temperature=0.0)
    sampler = Sampler()
    tokens = [[item.token for item in sampler.sample(rows, [first, second])] for _ in range(3)]
    assert tokens == [[3, 3], [4, 3], [3, 3]]


def test_logprobs_are_the_models_own() -> None:
    rows = logits(6, rows=3)
    states = [
        state(temperature=0.0, logprobs=4),
        state(temperature=5.0, logprobs=0, repetition_penalty=3.0, prompt=tuple(range(20))),
        state(temperature=1.0),
    ]
    got = Sampler().sample(rows, states)
    wanted = torch.log_softmax(rows, -1)
    assert got[0].logprob == pytest.approx(float(wanted[0].max()), abs=1e-5)
    assert [i for i, _ in got[0].top] == wanted[0].topk(4).indices.tolist()
    assert [value for _, value in got[0].top] == pytest.approx(wanted[0].topk(4).values.tolist(), abs=1e-5)
    assert got[1].logprob == pytest.approx(float(wanted[1, got[1].token]), abs=1e-5)
    assert got[1].top == ()
    assert got[2] == Sampled(token=got[2].token)


def test_prompt_logprobs() -> None:
    rows = logits(8, rows=4)
    got = token_logprobs(rows, [5, 0, 39, 5], 2)
    wanted = torch.log_softmax(rows, -1)
    assert [item.token for item in got] == [5, 0, 39, 5]
    for row, item in enumerate(got):
        assert item.logprob == pytest.approx(float(wanted[row, item.token]), abs=1e-5)
        assert len(item.top) == 2
    assert token_logprobs(rows[:0], [], 3) == []
    assert len(token_logprobs(rows[:1], [1], 1000)[0].top) == VOCABULARY


def test_the_nucleus_keeps_at_least_the_best() -> None:
    assert nucleus_floor(np.array([3, 2, 1, 0], dtype=np.float32), 0.7) == 2
    assert nucleus_floor(np.array([0, 9, 1], dtype=np.float32), 0.5) == 9
    assert nucleus_floor(np.array([5], dtype=np.float32), 1e-9) == 5
    assert nucleus_floor(np.zeros(10, dtype=np.float32), 1e-9) == 0


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.5},
        {"repetition_penalty": 0.0},
        {"logprobs": -1},
    ],
)
def test_values_without_meaning_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        SamplingParams(**params)


def test_one_state_per_row() -> None:
    with pytest.raises(AssertionError):
        Sampler().sample(logits(rows=2), [state()])
