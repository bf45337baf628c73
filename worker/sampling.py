"""From logits to tokens.

A sample is the maximum of scores plus Gumbel noise, and the noise of a token is a hash of (seed, position, token id).
So a request's noise does not depend on its batch, on the device, or on what was sampled before; a small difference in
the logits rarely changes the token; and no generator's state has to be kept. The work is done in numpy, which sorts,
compares and searches a vocabulary many times faster than torch does on a CPU.

Keeps true: a row of the batch never influences another. Log-probabilities are those of the model's own logits, before
penalties and temperature, as vLLM gives them. Does not know the model or text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from torch import Tensor

Scores = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_GREEDY_BELOW = 1e-5
"""Temperatures below it mean: take the best."""
_NOISE_BITS = 23
_MASK = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How to choose tokens; the names and meanings are vLLM's. Raises ValueError for a value without meaning."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: all."""
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    """How many alternatives to report per token; 0: the token's own log-probability only; None: nothing."""

    def __post_init__(self) -> None:
        _check(self.temperature >= 0 and math.isfinite(self.temperature), "temperature must be at least 0")
        _check(0 < self.top_p <= 1, "top_p must be in (0, 1]")
        _check(self.top_k >= -1, "top_k must be at least -1")
        _check(0 <= self.min_p <= 1, "min_p must be in [0, 1]")
        _check(abs(self.presence_penalty) <= 2, "presence_penalty must be in [-2, 2]")
        _check(abs(self.frequency_penalty) <= 2, "frequency_penalty must be in [-2, 2]")
        _check(0 < self.repetition_penalty < math.inf, "repetition_penalty must be above 0")
        _check(self.logprobs is None or self.logprobs >= 0, "logprobs must be at least 0")

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken."""
        return self.temperature < _GREEDY_BELOW

    @property
    def penalises(self) -> bool:
        """Whether earlier tokens change the scores."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


class SamplingState:
    """One sequence's part in sampling: its parameters, and the tokens that penalties count."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], seed: int) -> None:
        """`seed`, any integer, is used where the parameters name none: draw it afresh for each sequence."""
        self.params = params
        self.key = params.seed if params.seed is not None else seed
        self.position = 0
        """Tokens sampled so far."""
        # Distinct tokens of prompt and output, for the repetition penalty alone.
        self._seen: dict[int, None] = dict.fromkeys(prompt) if params.repetition_penalty != 1 else {}
        self._counts: Counter[int] = Counter()

    def append(self, token: int) -> None:
        """Count a token as sampled; `Sampler.sample` does it itself."""
        self.position += 1
        if self.params.penalises:
            self._counts[token] += 1
            self._seen[token] = None

    def penalised(self, logits: Scores) -> Scores:
        """A copy of logits [vocabulary] with the penalties applied."""
        params, out = self.params, logits.copy()
        if params.repetition_penalty != 1:
            seen = np.fromiter(self._seen, np.int64, len(self._seen))
            scores, factor = out[seen], np.float32(params.repetition_penalty)
            out[seen] = np.where(scores > 0, scores / factor, scores * factor)
        if self._counts and (params.frequency_penalty or params.presence_penalty):
            ids = np.fromiter(self._counts, np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            out[ids] -= np.float32(params.frequency_penalty) * counts + np.float32(params.presence_penalty)
        return out


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """A chosen token. `logprob` and `top` (id, log-probability; best first) only where asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses the next token of each row."""

    def sample(self, logits: Tensor, states: Sequence[SamplingState]) -> list[Sampled]:
        """Next tokens for logits [len(states), vocabulary] float32, counted into their states."""
        assert len(logits) == len(states)
        if logits.device.type != "cpu" and all(_plain(state.params) for state in states):
            sampled = [Sampled(token=token) for token in logits.argmax(-1).tolist()]
        else:
            rows: Scores = logits.cpu().numpy()
            sampled = [_sample_row(row, state) for row, state in zip(rows, states, strict=True)]
        for item, state in zip(sampled, states, strict=True):
            state.append(item.token)
        return sampled


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[Sampled]:
    """Log-probabilities of given tokens: `tokens[i]` under logits [n, vocabulary] row i, with `top` alternatives.

    For a prompt: row i predicts token i + 1.
    """
    rows: Scores = logits.cpu().numpy()
    return [_report(row, token, top) for row, token in zip(rows, tokens, strict=True)]


def draw(scores: Scores, params: SamplingParams, key: int, position: int) -> int:
    """One random token from scores [vocabulary], by temperature, min_p, top_k and top_p, in that order.

    Tokens as good as the last one that a limit lets through come through too.
    """
    scores = scores / np.float32(params.temperature)
    ids, size, floor = vocabulary_ids(len(scores)), len(scores), -math.inf
    if params.min_p > 0:
        floor = float(scores.max()) + math.log(params.min_p)
    if 0 < params.top_k < size:
        floor = max(floor, float(np.partition(scores, size - params.top_k)[size - params.top_k]))
    if floor > -math.inf:
        ids = np.flatnonzero(scores >= floor)
        scores = scores[ids]
    if params.top_p < 1:
        nucleus = np.flatnonzero(scores >= nucleus_floor(scores, params.top_p))
        ids, scores = ids[nucleus], scores[nucleus]
    return int(ids[(scores + gumbel(ids, key, position)).argmax()])


def nucleus_floor(scores: Scores, top_p: float) -> float:
    """The worst of the fewest best `scores` whose probability, among all of them, reaches `top_p`."""
    total = logsumexp(scores)
    # Those less probable than (1 - top_p) / n reach less than 1 - top_p together, so none of them is needed.
    needed = scores[scores >= total + math.log((1 - top_p) / len(scores))]
    if not len(needed):  # only when they round below it: the best one is enough
        return float(scores.max())
    best_first = np.sort(needed)[::-1]
    probabilities = np.exp(best_first - np.float32(total))
    reached_before = np.cumsum(probabilities) - probabilities
    return float(best_first[max(1, int((reached_before < top_p).sum())) - 1])


def logsumexp(scores: Scores) -> float:
    """log(sum(exp(scores))), without overflow."""
    best = scores.max()
    return float(best) + math.log(float(np.exp(scores - best).sum()))


def gumbel(ids: Ids, key: int, position: int) -> Scores:
    """Standard Gumbel noise for token `ids` at `position`: a function of its arguments alone."""
    stream = _mix(_mix(key) + position)
    # MurmurHash3's finaliser in 32 bits; the stream's two halves are mixed in before it and within it.
    x = ids.astype(np.uint32) * np.uint32(0x9E3779B9) + np.uint32(stream & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= (x >> np.uint32(13)) ^ np.uint32(stream >> 32)
    x *= np.uint32(0xC2B2AE35)
    # An odd multiple of 2 ** -24 is exact in float32, and never 0 or 1.
    uniform = (x >> np.uint32(32 - _NOISE_BITS)).astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(0.5**_NOISE_BITS)
    exponential: Scores = -np.log(uniform)
    return -np.log(exponential)


@cache
def vocabulary_ids(size: int) -> Ids:
    """0 .. size - 1; kept, since every random row needs them."""
    return np.arange(size)


def _plain(params: SamplingParams) -> bool:
    return params.greedy and params.logprobs is None and not params.penalises


def _sample_row(row: Scores, state: SamplingState) -> Sampled:
    params = state.params
    scores = state.penalised(row) if params.penalises else row
    token = int(scores.argmax()) if params.greedy else draw(scores, params, state.key, state.position)
    return Sampled(token=token) if params.logprobs is None else _report(row, token, params.logprobs)


def _report(row: Scores, token: int, top: int) -> Sampled:
    """`token` with its log-probability under the logits `row`, and the `top` best."""
    total, top = logsumexp(row), min(top, len(row))
    best = np.argpartition(row, len(row) - top)[len(row) - top :] if top else np.empty(0, np.int64)
    best = best[np.argsort(-row[best], kind="stable")]
    alternatives = tuple((int(i), float(row[i]) - total) for i in best)
    return Sampled(token=token, logprob=float(row[token]) - total, top=alternatives)


def _mix(value: int) -> int:
    """SplitMix64's step from any integer to 64 well-mixed bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise ValueError(message)
