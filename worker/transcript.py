"""What one sample has said so far: text that is safe to show, and its tokens' scores.

Keeps true: text goes out only once no stop string can cut it, and tokens only with (the beginning of) their text; a
token that ends the sample has no text; the path holds every sampled token. Does not know the scheduler or the model.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from trieway.worker.core.sequence import Work
from trieway.worker.detokenizer import Detokenizer, StopMatcher
from trieway.worker.generation import ScoredToken
from trieway.worker.sampling import Sampled


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """`special_ids` have no text in an answer."""

    token_bytes: Sequence[bytes]
    special_ids: frozenset[int]


class Transcript:
    """`text_start`: characters of the choice's text before the generated part. `scored`: tokens are given out too."""

    def __init__(self, vocabulary: Vocabulary, *, stop: Sequence[str], text_start: int, scored: bool) -> None:
        self._detokenizer = Detokenizer(vocabulary.token_bytes, vocabulary.special_ids)
        self._matcher = StopMatcher(stop)
        self._text_start = text_start
        self._scored = scored
        self._path: list[int] = []
        self._decoded_chars = 0
        self._ready: list[str] = []
        self._shown_chars = 0
        self._held: list[ScoredToken] = []
        self.stopped = False
        """A stop string was found: what follows it is dropped."""

    @property
    def generated(self) -> int:
        """Sampled tokens, one that ended the sample included."""
        return len(self._path)

    @property
    def path(self) -> tuple[int, ...]:
        return tuple(self._path)

    def append(self, chosen: Sampled, *, ends: bool) -> bool:
        """Takes a sampled token; `ends`: it is an end token, which is not shown. True if a stop string is complete."""
        assert not self.stopped
        self._path.append(chosen.token)
        if ends:
            return False
        if self._scored:
            offset = self._text_start + self._decoded_chars
            self._held.append(ScoredToken(token=chosen.token, offset=offset, logprob=chosen.logprob, top=chosen.top))
        self._push(self._detokenizer.push(chosen.token))
        return self.stopped

    def take(self, *, last: bool) -> tuple[str, tuple[ScoredToken, ...]]:
        """What may be shown and has not been. `last`: nothing follows, so nothing is held back but what a stop cut."""
        if last and not self.stopped:
            self._push(self._detokenizer.finish())
            if not self.stopped:
                self._ready.append(self._matcher.finish())
        text = "".join(self._ready)
        self._ready.clear()
        self._shown_chars += len(text)
        if last and not self.stopped:
            count = len(self._held)
        else:
            shown_end = self._text_start + self._shown_chars
            count = sum(1 for scored in self._held if scored.offset < shown_end)
        tokens, self._held = tuple(self._held[:count]), self._held[count:]
        return text, tokens

    def _push(self, text: str) -> None:
        self._decoded_chars += len(text)
        if text:
            matched = self._matcher.push(text)
            self._ready.append(matched.text)
            self.stopped = matched.stop is not None


class PromptScores:
    """The prompt's own log probabilities, gathered chunk by chunk. `hidden_chars` of its text are not shown (BOS)."""

    def __init__(self, vocabulary: Vocabulary, tokens: Sequence[int], *, hidden_chars: int = 0) -> None:
        self._table = vocabulary.token_bytes
        self._tokens = tokens
        self._hidden_chars = hidden_chars
        self._by_position: dict[int, Sampled] = {}

    @property
    def complete(self) -> bool:
        """Every token but the first is scored; nothing precedes that one."""
        return len(self._by_position) == len(self._tokens) - 1

    def targets(self, work: Work) -> list[int]:
        """For each position of `work` that has a next prompt token, that token; such positions lead."""
        return list(self._tokens[work.start + 1 : work.start + 1 + len(work.tokens)])

    def take(self, work: Work, scores: Sequence[Sampled]) -> None:
        """Keeps the scores of `targets(work)`. A replayed chunk replaces what it gave before."""
        for offset, scored in enumerate(scores):
            self._by_position[work.start + 1 + offset] = scored

    def all(self) -> tuple[ScoredToken, ...]:
        """Every prompt token with its place in the shown text."""
        assert self.complete
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        scored: list[ScoredToken] = []
        chars = -self._hidden_chars
        for position, token in enumerate(self._tokens):
            found = self._by_position.get(position, Sampled(token=token))
            scored.append(ScoredToken(token=token, offset=max(0, chars), logprob=found.logprob, top=found.top))
            chars += len(decode(self._table[token]))
        return tuple(scored)
