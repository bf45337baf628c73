"""From logits to tokens.

A sample is the maximum of scores plus Gumbel noise, and the noise of a token is a hash of (seed, position, token id).
So a request's noise does not depend on its batch, on the device, or on what was sampled before; a small difference in
the logits rarely changes the token; and no generator's state has to be kept.

Keeps true: a row of the batch never influences another. Log-probabilities are those of the model's own logits, before
penalties and temperature, as vLLM gives them. Does not know the model or text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

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

    def penalised(self, logits: Tensor) -> Tensor:
        """A copy of logits [vocabulary] with the penalties applied."""
        params, out, device = self.params, logits.clone(), logits.device
        if params.repetition_penalty != 1:
            seen = torch.tensor(list(self._seen), dtype=torch.int64, device=device)
            scores = out[seen]
            factor = params.repetition_penalty
            out[seen] = torch.where(scores > 0, scores / factor, scores * factor)
        if self._counts and (params.frequency_penalty or params.presence_penalty):
            ids = torch.tensor(list(self._counts), dtype=torch.int64, device=device)
            counts = torch.tensor(list(self._counts.values()), dtype=out.dtype, device=device)
            out[ids] -= params.frequency_penalty * counts + params.presence_penalty
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
        with torch.inference_mode():
            scores = self._scores(logits, states)
            if all(state.params.greedy for state in states):
                tokens: list[int] = scores.argmax(-1).tolist()
            else:
                tokens = [self._choose(row, state) for row, state in zip(scores, states, strict=True)]
            sampled = [self._report(logits[i], token, states[i].params) for i, token in enumerate(tokens)]
        for token, state in zip(tokens, states, strict=True):
            state.append(token)
        return sampled

    def _choose(self, scores: Tensor, state: SamplingState) -> int:
        if state.params.greedy:
            return int(scores.argmax())
        return draw(scores, state.params, state.key, state.position)

    def _scores(self, logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
        if not any(state.params.penalises for state in states):
            return logits
        return torch.stack(
            [state.penalised(row) if state.params.penalises else row for row, state in zip(logits, states, strict=True)]
        )

    def _report(self, logits: Tensor, token: int, params: SamplingParams) -> Sampled:
        if params.logprobs is None:
            return Sampled(token=token)
        return token_logprobs(logits[None], [token], params.logprobs)[0]


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[Sampled]:
    """Log-probabilities of given tokens: `tokens[i]` under logits [n, vocabulary] row i, with `top` alternatives.

    For a prompt: row i predicts token i + 1.
    """
    if not tokens:
        return []
    with torch.inference_mode():
        totals = logits.logsumexp(-1, keepdim=True)
        chosen = logits.gather(-1, torch.tensor(tokens, device=logits.device)[:, None]) - totals
        values, ids = logits.topk(min(top, logits.shape[-1]), dim=-1)
        rows = zip(tokens, chosen[:, 0].tolist(), ids.tolist(), (values - totals).tolist(), strict=True)
        return [
            Sampled(token=token, logprob=logprob, top=tuple(zip(row_ids, row_values, strict=True)))
            for token, logprob, row_ids, row_values in rows
        ]


def draw(scores: Tensor, params: SamplingParams, key: int, position: int) -> int:
    """One random token from scores [vocabulary], by temperature, min_p, top_k and top_p, in that order."""
    scores = scores / params.temperature
    keep = len(scores)
    if params.min_p > 0:
        keep = int((scores >= float(scores.max()) + math.log(params.min_p)).sum())
    if params.top_k > 0:
        keep = min(keep, params.top_k)
    ids = vocabulary_ids(len(scores), scores.device)
    if keep < len(scores):
        scores, ids = scores.topk(keep)
    if params.top_p < 1:
        scores, ids = nucleus(scores, ids, params.top_p)
    return int(ids[(scores + gumbel(ids, key, position)).argmax()])


def nucleus(scores: Tensor, ids: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest best of `scores` and their `ids` whose probability reaches `top_p`, best first; at least one."""
    total = float(scores.logsumexp(0))
    # Those less probable than (1 - top_p) / n reach less than 1 - top_p together: none is needed, and sorting the
    # others is cheap.
    needed = int((scores >= total + math.log((1 - top_p) / len(scores))).sum())
    scores, order = scores.topk(max(1, needed))
    probabilities = (scores - total).exp()
    before = probabilities.cumsum(0) - probabilities
    size = max(1, int((before < top_p).sum()))
    return scores[:size], ids[order[:size]]


def gumbel(ids: Tensor, key: int, position: int) -> Tensor:
    """Standard Gumbel noise for token `ids` (int32 or int64) at `position`, float32: a function of its arguments."""
    stream = _mix(_mix(key) + position)
    # MurmurHash3's finaliser in 32 bits, the stream's two halves mixed in before and between. torch's shift keeps the
    # sign, hence the masks.
    x = ids.to(torch.int32) * -0x61C88647 + _signed(stream)
    x = (x ^ ((x >> 16) & 0xFFFF)) * -0x7A143595
    x = ((x ^ ((x >> 13) & 0x7FFFF)) ^ _signed(stream >> 32)) * -0x3D4D51CB
    bits = (x >> (32 - _NOISE_BITS)) & ((1 << _NOISE_BITS) - 1)
    # An odd multiple of 2 ** -24 is exact in float32, and never 0 or 1.
    uniform = bits.float().add_(0.5).mul_(0.5**_NOISE_BITS)
    return uniform.log_().neg_().log_().neg_()


@cache
def vocabulary_ids(size: int, device: torch.device) -> Tensor:
    """0 .. size - 1, int32; kept, since every random row needs them."""
    return torch.arange(size, dtype=torch.int32, device=device)


def _signed(value: int) -> int:
    """The low 32 bits of `value` as a signed number."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _mix(value: int) -> int:
    """SplitMix64's step from any integer to 64 well-mixed bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise ValueError(message)
